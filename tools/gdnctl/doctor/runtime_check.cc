// Does the HIP runtime load and find the GPU, and has this build kernels for it?
#include "absl/strings/str_join.h"
#include "base/string_cat.h"
#include "tools/gdnctl/doctor/checks.h"

namespace gdn::doctor {

std::optional<Check> CheckRuntime(Node& node) {
  if (!node.runtime.found) {
    return Missing(StrCat("libamdhip64 does not load: ", node.runtime.error),
                   "on Debian 12: 'apt-get install libamdhip64-5 libhsa-runtime64-1 libamd-comgr2'; elsewhere ROCm's "
                   "hip-runtime-amd, and its lib folder known to ldconfig");
  }
  return Ok(
      StrCat(node.runtime.library, node.runtime.version.empty() ? ", version not told" : " ", node.runtime.version));
}

std::optional<Check> CheckRuntimeDevices(Node& node) {
  if (!node.runtime.found || node.gpus.empty()) return Unknown();
  if (!node.runtime.device_count) return Note("not asked: this is not the running node", "");
  if (!node.runtime.device_error.empty() || *node.runtime.device_count == 0) {
    return Missing(
        StrCat("the runtime finds none", node.runtime.device_error.empty() ? "" : " (", node.runtime.device_error,
               node.runtime.device_error.empty() ? "" : ")", ", though the kernel shows one"),
        "see what it says with AMD_LOG_LEVEL=3; ROCm releases after 5.7 no longer list gfx906 as supported: "
        "try another release of the runtime");
  }
  return Ok(StrCat("the runtime finds ", *node.runtime.device_count));
}

std::optional<Check> CheckBuild(Node& node) {
  if (node.requirements.gpu_build) {
    return Ok(StrCat("has kernels for ", absl::StrJoin(node.requirements.architectures, ", ")));
  }
  return Note(
      "this gdnctl comes from a build without GPU kernels",
      "the server beside it computes on the CPU; for the GPU: scripts/setup.sh --hip, cmake --preset hip-gfx906");
}

}  // namespace gdn::doctor
