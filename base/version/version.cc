#include "base/version/version.h"

#include "base/string_cat.h"

#ifndef GDN_VERSION
#error "GDN_VERSION, GDN_BUILD_KIND and GDN_BACKENDS come from CMake"
#endif

namespace gdn {

extern const char kCommit[];  // of a file that commit.cmake writes at each build

namespace {

std::string Compiler() {
#if defined(__clang__)
  return StrCat("clang ", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#else
  return StrCat("g++ ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace

std::string_view ProductVersion() { return GDN_VERSION; }

std::string VersionText(std::string_view program) {
  return StrCat(program, " ", ProductVersion(), "\ncommit ", kCommit, ", built by ", Compiler(), " (", GDN_BUILD_KIND,
                ")\nbackends: ", GDN_BACKENDS, "\n");
}

}  // namespace gdn
