// A temporary folder for one test, removed at its end with all contents; and functions that write and read files.
//
// Thread safety: constant. Ownership: owns the folder.
//
//   const TempFolder folder;
//   WriteFile(folder.path() + "/file", "text");
#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "base/files/temporary_folder.h"
#include "gtest/gtest.h"

namespace gdn {

class TempFolder {
 public:
  const std::string& path() const { return folder_.path(); }

 private:
  const TemporaryFolder folder_ = *TemporaryFolder::Make();  // ends the program if there is no temporary folder
};

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  EXPECT_TRUE(file.good()) << path;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace gdn
