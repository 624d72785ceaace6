#include "base/files/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/string_cat.h"

namespace gdn {

absl::StatusOr<TemporaryFolder> TemporaryFolder::Make() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) return absl::UnavailableError(StrCat("no temporary folder: ", error.message()));
  return MakeIn(parent.string());
}

absl::StatusOr<TemporaryFolder> TemporaryFolder::MakeIn(const std::string& parent) {
  std::error_code ignored;
  std::filesystem::create_directories(parent, ignored);
  std::string path = (std::filesystem::path(parent) / "gdn.XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(StrCat("cannot make a folder in '", parent, "': ", std::strerror(errno)));
  }
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace gdn
