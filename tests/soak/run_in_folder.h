// Runs a soak in a temporary folder, and keeps the folder if the soak failed.
#pragma once

#include <iostream>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/files/temporary_folder.h"

namespace gdn {

// Runs `soak` in a new folder. Returns an exit code: 0, or 1 after printing the error and the folder's path.
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
