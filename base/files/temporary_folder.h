// A temporary folder that is removed with its contents on destruction.
//
// Thread safety: constant once made. Ownership: owns the folder; movable.
//
//   GDN_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Make());
//   std::ofstream(folder.path() + "/file") << "text";
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace gdn {

class TemporaryFolder {
 public:
  // Makes a folder in the system's folder for temporary files ($TMPDIR, else /tmp). UNAVAILABLE if that fails.
  static absl::StatusOr<TemporaryFolder> Make();
  // Makes a folder in `parent`, which is created if it does not exist. UNAVAILABLE if that fails.
  static absl::StatusOr<TemporaryFolder> MakeIn(const std::string& parent);

  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }
  // Prevents the removal of the folder. path() is "" afterwards, so read it first.
  void Keep() { path_.clear(); }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace gdn
