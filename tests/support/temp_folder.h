// A folder for one test, removed with everything in it.
//
// Thread safety: constant. Ownership: owns the folder.
//
//   const TempFolder folder;
//   std::ofstream(folder.path() + "/file") << "text";
#pragma once

#include <string>

#include "base/temporary_folder.h"

namespace gdn {

class TempFolder {
 public:
  const std::string& path() const { return folder_.path(); }

 private:
  const TemporaryFolder folder_ = *TemporaryFolder::Make();  // a test without a temporary folder ends here
};

}  // namespace gdn
