// Finds a node's HIP runtime library, its version, and the number of devices that it sees.
//
// Thread safety: one thread at a time, because loading a library runs its initialisers. Ownership: plain values; a
// loaded library stays loaded, because ROCm's libraries do not survive being unloaded.
//
//   const HipRuntime runtime = FindHipRuntime("/");
//   if (runtime.found) absl::PrintF("%s %s\n", runtime.library, runtime.version);  // "libamdhip64.so.5 5.2.21153"
#pragma once

#include <optional>
#include <string>

namespace gdn::doctor {

struct HipRuntime {
  bool found = false;
  std::string library;  // name or path of the library
  std::string version;  // "5.2.21153"; empty if the library does not report it
  std::string error;    // if not found: the loader's error for the newest library name
  // Result of hipGetDeviceCount, 0 if it failed; nullopt if it was not called, for example because the root is not "/".
  std::optional<int> device_count;
  std::string device_error;  // error of hipGetDeviceCount: "hipErrorNoDevice: no ROCm-capable device is detected"
};

// If `root` is "/", loads and queries the library. Otherwise only looks for its file in the usual folders.
HipRuntime FindHipRuntime(const std::string& root);

}  // namespace gdn::doctor
