#include "tools/gdnctl/doctor_checks.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/string_cat.h"
#include "tools/gdnctl/print.h"

namespace gdn::doctor {
namespace {

using Gpus = std::vector<const GpuNode*>;

constexpr std::string_view kAbove = "cannot be told before the above is mended";

std::string Describe(const PciCard& card) {
  const std::string name = CardName(card.device_id);
  return absl::StrFormat("%s %s (1002:%04x)", card.address, name.empty() ? "AMD GPU" : name, card.device_id);
}

std::string Describe(const GpuNode& gpu) {
  const std::string name = CardName(gpu.device_id);
  return StrCat("node ", gpu.kfd_node, ": ", gpu.gfx.empty() ? "no gfx name" : gpu.gfx, name.empty() ? "" : " ", name,
                ", ", FormatBytes(gpu.memory_bytes), ", ", gpu.pci_address, gpu.link.empty() ? "" : ", ", gpu.link);
}

std::string Describe(const Gpus& gpus) {
  return absl::StrJoin(gpus, "; ", [](std::string* out, const GpuNode* gpu) { *out += Describe(*gpu); });
}

class Doctor {
 public:
  Doctor(const NodeFacts& facts, const HipRuntime& runtime, const Environment& environment,
         const Requirements& requirements)
      : facts_(facts), runtime_(runtime), environment_(environment), requirements_(requirements) {}

  std::vector<Check> Run() {
    for (const GpuNode& gpu : facts_.gpus) gpus_.push_back(&gpu);
    CheckCard();
    CheckDriver();
    CheckKfd();
    CheckTopology();
    CheckRenderNodes();
    CheckVisible();
    CheckArchitecture();
    CheckMemory();
    CheckRuntime();
    CheckRuntimeDevices();
    CheckBuild();
    return std::move(checks_);
  }

 private:
  void Ok(std::string name, std::string found) {
    checks_.push_back({std::move(name), Verdict::kOk, std::move(found), ""});
  }
  void Note(std::string name, std::string found, std::string to_do) {
    checks_.push_back({std::move(name), Verdict::kNote, std::move(found), std::move(to_do)});
  }
  void Unknown(std::string name) { checks_.push_back({std::move(name), Verdict::kUnknown, std::string(kAbove), ""}); }
  void Missing(std::string name, std::string found, std::string to_do) {
    checks_.push_back({std::move(name), Verdict::kMissing, std::move(found), std::move(to_do)});
  }

  std::string GroupName(gid_t group) const {
    const auto found = facts_.group_names.find(group);
    return found == facts_.group_names.end() ? StrCat("group ", group)
                                             : StrCat("group ", found->second, " (", group, ")");
  }

  std::string GroupWord(gid_t group) const {
    const auto found = facts_.group_names.find(group);
    return found == facts_.group_names.end() ? StrCat(group) : found->second;
  }

  // What keeps a device file from being used, and what to do about it.
  void MissingDevice(std::string name, const DeviceFile& file) {
    if (!file.permitted) {
      const std::string mode = absl::StrFormat("%04o", file.mode);
      if ((file.mode & 0060) != 0060) {
        Missing(std::move(name),
                StrCat(file.path, " has mode ", mode, ": its ", GroupName(file.group), " may not use it"),
                StrCat("let the group read and write it: a udev rule with MODE=\"0660\", then 'udevadm trigger'"));
        return;
      }
      Missing(std::move(name),
              StrCat(file.path, " belongs to ", GroupName(file.group), " with mode ", mode, "; user ",
                     facts_.identity.uid, " is in none of its groups"),
              StrCat("as root: 'usermod -aG ", GroupWord(file.group),
                     " USER', then log in anew; in a container: --group-add ", file.group,
                     " (Kubernetes: supplementalGroups: [", file.group, "])"));
      return;
    }
    const std::string why = StrCat(file.path, " does not open: ", std::strerror(file.open_error));
    if (file.open_error == EPERM || file.open_error == EACCES) {
      Missing(std::move(name), StrCat(why, "; its mode allows it, so a container's device rules do not"),
              StrCat("pass the device to the container: --device ", file.path, " (Kubernetes: the limit amd.com/gpu)"));
    } else {
      Missing(std::move(name), why, "look at the kernel log: 'dmesg | grep -i -e amdgpu -e kfd'");
    }
  }

  void CheckCard() {
    if (facts_.cards.empty()) {
      if (!gpus_.empty()) return Note("card", "the PCI bus is not visible here; the driver shows a GPU", "");
      return Missing("card", "no AMD GPU on the PCI bus",
                     "check the card's seat and its power cables; in a virtual machine, pass the card through");
    }
    const std::string cards =
        absl::StrJoin(facts_.cards, "; ", [](std::string* out, const PciCard& card) { *out += Describe(card); });
    for (const PciCard& card : facts_.cards) {
      if (card.driver.empty() || card.driver == "amdgpu") return Ok("card", cards);
    }
    Missing("card", StrCat(cards, ": bound to ", facts_.cards[0].driver),
            StrCat("unbind it from ", facts_.cards[0].driver,
                   " and bind it to amdgpu; a card that is passed through to a "
                   "virtual machine is for that machine to use"));
  }

  void CheckDriver() {
    const std::string kernel = facts_.kernel_release.empty() ? "" : StrCat(", kernel ", facts_.kernel_release);
    if (!facts_.driver_loaded) {
      return Missing("driver", StrCat("the kernel module amdgpu is not loaded", kernel),
                     "as root: 'modprobe amdgpu'; if there is no such module, install the kernel's full image "
                     "(linux-image-amd64) and firmware-amd-graphics; see that nothing blacklists it");
    }
    const bool bound = facts_.cards.empty() || std::any_of(facts_.cards.begin(), facts_.cards.end(),
                                                           [](const auto& c) { return c.driver == "amdgpu"; });
    if (!bound) {
      return Missing(
          "driver", "amdgpu is loaded but drives no card",
          "look at 'dmesg | grep amdgpu': missing firmware (install firmware-amd-graphics) and a PCI window too "
          "small for the card (turn on 'Above 4G decoding' in the firmware setup) are the usual causes");
    }
    Ok("driver", StrCat("amdgpu ", facts_.driver_version.empty() ? "of the kernel" : facts_.driver_version, kernel));
  }

  void CheckKfd() {
    if (!facts_.kfd.exists) {
      return Missing(
          "/dev/kfd", "there is no /dev/kfd",
          facts_.driver_loaded
              ? "in a container: --device /dev/kfd (Kubernetes: the limit amd.com/gpu); else the kernel lacks "
                "CONFIG_HSA_AMD, or amdgpu took no card"
              : "it comes with the driver; in a container: --device /dev/kfd (Kubernetes: the limit amd.com/gpu)");
    }
    if (!facts_.kfd.usable()) return MissingDevice("/dev/kfd", facts_.kfd);
    Ok("/dev/kfd", StrCat("opens; ", GroupName(facts_.kfd.group)));
  }

  void CheckTopology() {
    if (!gpus_.empty()) return Ok("topology", Describe(gpus_));
    if (!facts_.driver_loaded || !facts_.kfd.exists) return Unknown("topology");
    if (!facts_.topology_exists) {
      return Missing("topology", "there is no /sys/class/kfd/kfd/topology",
                     "mount /sys into the container as its runtime does by default; else the driver has no KFD");
    }
    if (facts_.unreadable_nodes > 0) {
      return Missing(
          "topology", StrCat(facts_.unreadable_nodes, " nodes of the KFD topology may not be read"),
          "a container reads only the nodes of devices that it was given: pass /dev/dri/renderD* of the card");
    }
    Missing("topology", "the KFD topology has processors, but no GPU",
            "look at 'dmesg | grep -i kfd': it tells why the card was left out");
  }

  void CheckRenderNodes() {
    if (facts_.render_files.empty()) {
      return Missing("/dev/dri", "there is no /dev/dri/renderD*",
                     facts_.driver_loaded ? "in a container: --device /dev/dri (Kubernetes: the limit amd.com/gpu)"
                                          : "it comes with the driver; in a container: --device /dev/dri");
    }
    Gpus open;
    const DeviceFile* closed = nullptr;
    for (const GpuNode* gpu : gpus_) {
      const DeviceFile* const file = gpu->render_node(facts_.render_files);
      if (file != nullptr && file->usable()) open.push_back(gpu);
      if (file != nullptr && !file->usable() && closed == nullptr) closed = file;
    }
    if (!open.empty()) {
      gpus_ = std::move(open);
      const DeviceFile& file = *gpus_[0]->render_node(facts_.render_files);
      return Ok("/dev/dri", StrCat(file.path, " opens; ", GroupName(file.group)));
    }
    if (closed != nullptr) {
      gpus_.clear();
      return MissingDevice("/dev/dri", *closed);
    }
    if (gpus_.empty()) return Unknown("/dev/dri");
    const int minor = gpus_[0]->render_minor;
    gpus_.clear();
    Missing("/dev/dri",
            StrCat("there is no /dev/dri/renderD", minor, ", the GPU's own; there is ", facts_.render_files[0].path),
            StrCat("pass the right device to the container: --device /dev/dri/renderD", minor));
  }

  void CheckVisible() {
    std::vector<std::string> set;
    const auto apply = [&](const char* name, const std::optional<std::string>& value) {
      if (!value) return true;
      set.push_back(StrCat(name, "=", value->empty() ? "''" : *value));
      if (gpus_.empty()) return true;
      Gpus visible = VisibleGpus(gpus_, *value);
      const size_t count = gpus_.size();
      gpus_ = std::move(visible);
      if (!gpus_.empty()) return true;
      Missing("visible", StrCat(set.back(), " hides all of the node's ", count, " usable GPUs"),
              StrCat("unset ", name, ", or set it to numbers from 0 to ", count - 1));
      return false;
    };
    if (!apply("ROCR_VISIBLE_DEVICES", environment_.rocr_visible_devices)) return;
    if (!apply("HIP_VISIBLE_DEVICES", environment_.hip_visible_devices)) return;
    if (set.empty())
      return Ok("visible", "HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES are not set: all GPUs are visible");
    if (gpus_.empty()) return Unknown("visible");
    Ok("visible", StrCat(absl::StrJoin(set, ", "), ": ", gpus_.size(), gpus_.size() == 1 ? " GPU" : " GPUs"));
  }

  void CheckArchitecture() {
    if (gpus_.empty()) return Unknown("gfx name");
    const std::string built = absl::StrJoin(requirements_.architectures, ", ");
    Gpus supported;
    for (const GpuNode* gpu : gpus_) {
      if (std::find(requirements_.architectures.begin(), requirements_.architectures.end(), gpu->gfx) !=
          requirements_.architectures.end())
        supported.push_back(gpu);
    }
    if (environment_.hsa_override_gfx_version) {
      Note("override",
           StrCat("HSA_OVERRIDE_GFX_VERSION=", *environment_.hsa_override_gfx_version,
                  " makes the runtime take the card for another"),
           "unset it: kernels are chosen by the card's true name");
    }
    if (supported.empty()) {
      const std::string names =
          absl::StrJoin(gpus_, ", ", [](std::string* out, const GpuNode* gpu) { *out += gpu->gfx; });
      gpus_.clear();
      return Missing("gfx name", StrCat("this node has ", names, "; kernels are built for ", built),
                     StrCat("build for it: cmake --preset hip-gfx906 -DGDN_HIP_ARCHITECTURES=", names,
                            "; only gfx906 is the product's own target"));
    }
    gpus_ = std::move(supported);
    Ok("gfx name", StrCat(gpus_[0]->gfx, ", which kernels are built for"));
  }

  void CheckMemory() {
    if (gpus_.empty()) return Unknown("memory");
    Gpus enough;
    int64_t largest = 0;
    const auto free_bytes = [](const GpuNode& gpu) { return gpu.memory_bytes - std::max<int64_t>(gpu.used_bytes, 0); };
    for (const GpuNode* gpu : gpus_) {
      largest = std::max(largest, free_bytes(*gpu));
      if (free_bytes(*gpu) >= requirements_.memory_bytes) enough.push_back(gpu);
    }
    const std::string wanted = FormatBytes(requirements_.memory_bytes);
    const GpuNode& first = enough.empty() ? *gpus_[0] : *enough[0];
    const std::string total = StrCat(" of ", FormatBytes(first.memory_bytes));
    gpus_ = std::move(enough);
    if (gpus_.empty()) {
      return Missing(
          "memory", StrCat(FormatBytes(largest), total, " are free, ", wanted, " are asked for"),
          "end what else uses the card ('rocm-smi --showpids'), or serve a smaller model and say so with --need");
    }
    Ok("memory", StrCat(FormatBytes(free_bytes(first)), total, " free; asked for: ", wanted));
  }

  void CheckRuntime() {
    if (!runtime_.found) {
      return Missing("HIP runtime", StrCat("libamdhip64 does not load: ", runtime_.error),
                     "on Debian 12: 'apt-get install libamdhip64-5 libhsa-runtime64-1 libamd-comgr2'; elsewhere ROCm's "
                     "hip-runtime-amd, and its lib folder known to ldconfig");
    }
    Ok("HIP runtime",
       StrCat(runtime_.library, runtime_.version.empty() ? ", version not told" : " ", runtime_.version));
  }

  void CheckRuntimeDevices() {
    if (!runtime_.found || gpus_.empty()) return Unknown("HIP devices");
    if (!runtime_.device_count) return Note("HIP devices", "not asked: this is not the running node", "");
    if (!runtime_.device_error.empty() || *runtime_.device_count == 0) {
      return Missing(
          "HIP devices",
          StrCat("the runtime finds none", runtime_.device_error.empty() ? "" : " (", runtime_.device_error,
                 runtime_.device_error.empty() ? "" : ")", ", though the kernel shows one"),
          "see what it says with AMD_LOG_LEVEL=3; ROCm releases after 5.7 no longer list gfx906 as supported: "
          "try another release of the runtime");
    }
    Ok("HIP devices", StrCat("the runtime finds ", *runtime_.device_count));
  }

  void CheckBuild() {
    if (requirements_.gpu_build) {
      return Ok("build", StrCat("has kernels for ", absl::StrJoin(requirements_.architectures, ", ")));
    }
    Note("build", "this gdnctl comes from a build without GPU kernels",
         "the server beside it computes on the CPU; for the GPU: scripts/setup.sh --hip, cmake --preset hip-gfx906");
  }

  const NodeFacts& facts_;
  const HipRuntime& runtime_;
  const Environment& environment_;
  const Requirements& requirements_;
  Gpus gpus_;  // that passed every check so far
  std::vector<Check> checks_;
};

std::optional<std::string> FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kNote:
      return "note";
    case Verdict::kUnknown:
      return "unknown";
    case Verdict::kMissing:
      return "missing";
  }
  return "";
}

Environment ProcessEnvironment() {
  return {.hip_visible_devices = FromEnvironment("HIP_VISIBLE_DEVICES"),
          .rocr_visible_devices = FromEnvironment("ROCR_VISIBLE_DEVICES"),
          .hsa_override_gfx_version = FromEnvironment("HSA_OVERRIDE_GFX_VERSION")};
}

std::vector<Check> CheckNode(const NodeFacts& facts, const HipRuntime& runtime, const Environment& environment,
                             const Requirements& requirements) {
  return Doctor(facts, runtime, environment, requirements).Run();
}

bool Usable(const std::vector<Check>& checks) {
  return std::none_of(checks.begin(), checks.end(), [](const Check& check) {
    return check.verdict == Verdict::kMissing || check.verdict == Verdict::kUnknown;
  });
}

std::string Summary(const std::vector<Check>& checks) {
  if (Usable(checks)) return "doctor: usable: the GPU backend finds what it needs";
  std::vector<std::string> missing;
  for (const Check& check : checks) {
    if (check.verdict == Verdict::kMissing) missing.push_back(check.name);
  }
  return StrCat("doctor: NOT usable: ", missing.size(), missing.size() == 1 ? " thing is" : " things are", " missing (",
                absl::StrJoin(missing, ", "), "); begin with the first");
}

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

}  // namespace gdn::doctor
