// Is one of the GPUs visible to the process, of a kind that kernels are built for, and with memory to spare? Does the
// HIP runtime load and find it, and has this build kernels?
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/string_cat.h"
#include "tools/gdnctl/doctor/checks.h"
#include "tools/gdnctl/print.h"

namespace gdn::doctor {

std::vector<const GpuNode*> VisibleGpus(const std::vector<const GpuNode*>& gpus, const std::string& value) {
  Gpus visible;
  for (const absl::string_view part : absl::StrSplit(value, ',')) {
    const absl::string_view entry = absl::StripAsciiWhitespace(part);
    const GpuNode* named = nullptr;
    int number = 0;
    if (absl::SimpleAtoi(entry, &number)) {
      if (number >= 0 && static_cast<size_t>(number) < gpus.size()) named = gpus[static_cast<size_t>(number)];
    } else {
      for (const GpuNode* gpu : gpus) {
        if (gpu->unique_id != 0 && absl::EqualsIgnoreCase(entry, absl::StrFormat("GPU-%016x", gpu->unique_id)))
          named = gpu;
      }
    }
    if (named == nullptr) break;
    if (std::find(visible.begin(), visible.end(), named) == visible.end()) visible.push_back(named);
  }
  return visible;
}

std::optional<Check> CheckVisible(Node& node) {
  std::vector<std::string> set;
  for (const auto& [name, value] : {std::pair("ROCR_VISIBLE_DEVICES", &node.environment.rocr_visible_devices),
                                    std::pair("HIP_VISIBLE_DEVICES", &node.environment.hip_visible_devices)}) {
    if (!value->has_value()) continue;
    set.push_back(StrCat(name, "=", (*value)->empty() ? "''" : **value));
    if (node.gpus.empty()) continue;
    const size_t count = node.gpus.size();
    node.gpus = VisibleGpus(node.gpus, **value);
    if (!node.gpus.empty()) continue;
    return Missing(StrCat(set.back(), " hides all of the node's ", count, " usable GPUs"),
                   StrCat("unset ", name, ", or set it to numbers from 0 to ", count - 1));
  }
  if (set.empty()) return Ok("HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES are not set: all GPUs are visible");
  if (node.gpus.empty()) return Unknown();
  return Ok(StrCat(absl::StrJoin(set, ", "), ": ", node.gpus.size(), node.gpus.size() == 1 ? " GPU" : " GPUs"));
}

std::optional<Check> CheckOverride(Node& node) {
  if (node.gpus.empty() || !node.environment.hsa_override_gfx_version) return std::nullopt;
  return Note(StrCat("HSA_OVERRIDE_GFX_VERSION=", *node.environment.hsa_override_gfx_version,
                     " makes the runtime take the card for another"),
              "unset it: kernels are chosen by the card's true name");
}

std::optional<Check> CheckArchitecture(Node& node) {
  if (node.gpus.empty()) return Unknown();
  const std::vector<std::string>& built = node.requirements.architectures;
  const std::string names =
      absl::StrJoin(node.gpus, ", ", [](std::string* out, const GpuNode* gpu) { *out += gpu->gfx; });
  std::erase_if(node.gpus, [&built](const GpuNode* gpu) {
    return std::find(built.begin(), built.end(), gpu->gfx) == built.end();
  });
  if (!node.gpus.empty()) return Ok(StrCat(node.gpus[0]->gfx, ", which kernels are built for"));
  return Missing(StrCat("this node has ", names, "; kernels are built for ", absl::StrJoin(built, ", ")),
                 StrCat("build for it: cmake --preset hip-gfx906 -DGDN_HIP_ARCHITECTURES=", names,
                        "; only gfx906 is the product's own target"));
}

std::optional<Check> CheckMemory(Node& node) {
  if (node.gpus.empty()) return Unknown();
  const auto free_bytes = [](const GpuNode* gpu) { return gpu->memory_bytes - std::max<int64_t>(gpu->used_bytes, 0); };
  int64_t largest = 0;
  for (const GpuNode* gpu : node.gpus) largest = std::max(largest, free_bytes(gpu));
  const GpuNode* first = node.gpus[0];
  std::erase_if(node.gpus, [&](const GpuNode* gpu) { return free_bytes(gpu) < node.requirements.memory_bytes; });
  if (!node.gpus.empty()) first = node.gpus[0];
  const std::string wanted = FormatBytes(node.requirements.memory_bytes);
  const std::string total = StrCat(" of ", FormatBytes(first->memory_bytes));
  if (!node.gpus.empty()) return Ok(StrCat(FormatBytes(free_bytes(first)), total, " free; asked for: ", wanted));
  return Missing(
      StrCat(FormatBytes(largest), total, " are free, ", wanted, " are asked for"),
      "end what else uses the card ('rocm-smi --showpids'), or serve a smaller model and say so with --need");
}

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
