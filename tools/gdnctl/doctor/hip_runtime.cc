#include "tools/gdnctl/doctor/hip_runtime.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/string_cat.h"

namespace gdn::doctor {
namespace {

namespace fs = std::filesystem;

// Newest first. The bare name is a development link and comes last.
constexpr const char* kLibraries[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so.4",
                                      "libamdhip64.so"};
constexpr const char* kFolders[] = {"usr/lib/x86_64-linux-gnu", "opt/rocm/lib", "usr/lib64", "usr/lib",
                                    "usr/local/lib"};

using VersionCall = int (*)(int*);
using CountCall = int (*)(int*);
using TextCall = const char* (*)(int);

// 50221153 is 5.2.21153.
std::string DecodeVersion(int version) {
  return absl::StrFormat("%d.%d.%d", version / 10'000'000, version / 100'000 % 100, version % 100'000);
}

std::string ErrorText(void* library, int code) {
  const auto name = reinterpret_cast<TextCall>(dlsym(library, "hipGetErrorName"));
  const auto text = reinterpret_cast<TextCall>(dlsym(library, "hipGetErrorString"));
  return StrCat(name == nullptr ? StrCat("error ", code) : std::string(name(code)),
                text == nullptr ? "" : StrCat(": ", text(code)));
}

HipRuntime LoadRuntime() {
  HipRuntime runtime;
  std::vector<std::string> names(std::begin(kLibraries), std::end(kLibraries));
  names.emplace_back("/opt/rocm/lib/libamdhip64.so");  // packages of AMD do not always tell the loader of their folder
  void* library = nullptr;
  for (const std::string& name : names) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      runtime.library = name;
      break;
    }
    // A library that is there but lacks one of its own is the more telling error.
    const char* const error = dlerror();
    const std::string text = error == nullptr ? "" : error;
    if (runtime.error.empty() || !absl::StartsWith(text, StrCat(name, ":"))) runtime.error = text;
  }
  if (library == nullptr) return runtime;
  runtime.found = true;
  runtime.error.clear();
  if (const auto call = reinterpret_cast<VersionCall>(dlsym(library, "hipRuntimeGetVersion"))) {
    int version = 0;
    if (call(&version) == 0 && version > 0) runtime.version = DecodeVersion(version);
  }
  if (const auto call = reinterpret_cast<CountCall>(dlsym(library, "hipGetDeviceCount"))) {
    int count = 0;
    const int code = call(&count);
    runtime.device_count = code == 0 ? count : 0;
    if (code != 0) runtime.device_error = ErrorText(library, code);
  }
  return runtime;
}

HipRuntime LookForRuntime(const fs::path& root) {
  HipRuntime runtime;
  for (const char* const name : kLibraries) {
    for (const char* const folder : kFolders) {
      const fs::path path = root / folder / name;
      std::error_code error;
      if (!fs::exists(path, error)) continue;
      runtime.found = true;
      runtime.library = StrCat("/", folder, "/", name);
      // The file's own name ends in the full version: libamdhip64.so.5.2.21153.
      const std::string file = fs::canonical(path, error).filename().string();
      constexpr std::string_view kPrefix = "libamdhip64.so.";
      if (!error && absl::StartsWith(file, AbslView(kPrefix)) && std::count(file.begin(), file.end(), '.') >= 4) {
        runtime.version = file.substr(kPrefix.size());
      }
      return runtime;
    }
  }
  runtime.error = "libamdhip64.so.*: no such file in the library folders";
  return runtime;
}

}  // namespace

HipRuntime FindHipRuntime(const std::string& root) {
  std::error_code error;
  return fs::equivalent(root, "/", error) ? LoadRuntime() : LookForRuntime(root);
}

}  // namespace gdn::doctor
