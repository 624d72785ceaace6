// A folder for one test, removed with everything in it.
//
// Thread safety: constant. Ownership: owns the folder.
//
//   const TempFolder folder;
//   std::ofstream(folder.path() + "/file") << "text";
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace gdn {

class TempFolder {
 public:
  TempFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "gdn-test-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) std::abort();
    path_ = path;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gdn
