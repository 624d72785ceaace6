// The text that every program prints for `--version`.
//
// Thread safety: free functions. Ownership: values.
//
//   if (line.version) std::cout << VersionText("gdnctl");
#pragma once

#include <string>
#include <string_view>

namespace gdn {

// Returns the product's version from CMakeLists.txt: "0.1.0".
std::string_view ProductVersion();

// Returns three lines, each with a newline:
//   gdnctl 0.1.0
//   commit 1a2b3c4d5e6f, built by g++ 12.2.0 (Release)
//   backends: cpu, gpu (HIP for gfx906)
// The commit ends in "-changed" if files differed from it. Outside a clone it is CMake's GDN_COMMIT, or "unknown".
std::string VersionText(std::string_view program);

}  // namespace gdn
