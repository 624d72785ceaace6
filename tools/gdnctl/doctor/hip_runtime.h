// The HIP runtime library of a node: is there one, of which version, and how many devices does it see.
//
// Thread safety: free functions, for one thread at a time: loading a library runs its initialisers. Ownership: plain
// values; a library stays loaded once it is, since ROCm's do not survive being unloaded.
//
//   const HipRuntime runtime = FindHipRuntime("/");
//   if (runtime.found) absl::PrintF("%s %s\n", runtime.library, runtime.version);  // "libamdhip64.so.5 5.2.21153"
#pragma once

#include <optional>
#include <string>

namespace gdn::doctor {

struct HipRuntime {
  bool found = false;
  std::string library;  // what was found, by name or path
  std::string version;  // "5.2.21153"; empty: it does not say
  std::string error;    // where not found: what the loader said of the newest name that it tried
  // hipGetDeviceCount's answer; absent where it was not asked, as under a root other than "/".
  std::optional<int> device_count;
  std::string device_error;  // where it failed: "hipErrorNoDevice: no ROCm-capable device is detected"
};

// Loads the library where `root` is "/" and asks it; elsewhere looks for its file in the usual folders.
HipRuntime FindHipRuntime(const std::string& root);

}  // namespace gdn::doctor
