// The main of a soak: runs it in a temporary folder, which stays if the soak failed.
#pragma once

#include <iostream>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/temporary_folder.h"

namespace gdn {

// Runs `soak` in a new folder. Returns the exit code of `program`: 0, or 1 after it has printed the error and where the
// servers' files are.
inline int RunInFolder(std::string_view program, absl::FunctionRef<absl::Status(const std::string& folder)> soak) {
  auto folder = TemporaryFolder::Make();
  const absl::Status status = folder.ok() ? soak(folder->path()) : folder.status();
  if (status.ok()) return 0;
  std::cerr << program << ": " << status << "\n";
  if (!folder.ok()) return 1;
  std::cerr << "The servers' logs and files are in " << folder->path() << "\n";
  folder->Keep();
  return 1;
}

}  // namespace gdn
