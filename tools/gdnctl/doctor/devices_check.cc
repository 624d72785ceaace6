// Is there a card, does the driver drive it, may the process use the device files, and does the driver show GPUs there?
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/string_cat.h"
#include "tools/gdnctl/doctor/checks.h"
#include "tools/gdnctl/print.h"

namespace gdn::doctor {
namespace {

std::string Describe(const PciCard& card) {
  const std::string name = CardName(card.device_id);
  return absl::StrFormat("%s %s (1002:%04x)", card.address, name.empty() ? "AMD GPU" : name, card.device_id);
}

std::string GroupName(const Node& node, gid_t group) {
  const auto found = node.facts.group_names.find(group);
  return found == node.facts.group_names.end() ? StrCat("group ", group)
                                               : StrCat("group ", found->second, " (", group, ")");
}

// What keeps a device file from being used, and what to do about it.
Check MissingDevice(const Node& node, const DeviceFile& file) {
  if (!file.permitted) {
    const auto named = node.facts.group_names.find(file.group);
    const std::string group = named == node.facts.group_names.end() ? StrCat(file.group) : named->second;
    const std::string mode = absl::StrFormat("%04o", file.mode);
    if ((file.mode & 0060) != 0060) {
      return Missing(StrCat(file.path, " has mode ", mode, ": its ", GroupName(node, file.group), " may not use it"),
                     "let the group read and write it: a udev rule with MODE=\"0660\", then 'udevadm trigger'");
    }
    return Missing(StrCat(file.path, " belongs to ", GroupName(node, file.group), " with mode ", mode, "; user ",
                          node.facts.identity.uid, " is in none of its groups"),
                   StrCat("as root: 'usermod -aG ", group, " USER', then log in anew; in a container: --group-add ",
                          file.group, " (Kubernetes: supplementalGroups: [", file.group, "])"));
  }
  const std::string why = StrCat(file.path, " does not open: ", std::strerror(file.open_error));
  if (file.open_error == EPERM || file.open_error == EACCES) {
    return Missing(
        StrCat(why, "; its mode allows it, so a container's device rules do not"),
        StrCat("pass the device to the container: --device ", file.path, " (Kubernetes: the limit amd.com/gpu)"));
  }
  return Missing(why, "look at the kernel log: 'dmesg | grep -i -e amdgpu -e kfd'");
}

std::string Describe(const GpuNode& gpu) {
  const std::string name = CardName(gpu.device_id);
  return StrCat("node ", gpu.kfd_node, ": ", gpu.gfx.empty() ? "no gfx name" : gpu.gfx, name.empty() ? "" : " ", name,
                ", ", FormatBytes(gpu.memory_bytes), ", ", gpu.pci_address, gpu.link.empty() ? "" : ", ", gpu.link);
}

}  // namespace

std::optional<Check> CheckCard(Node& node) {
  if (node.facts.cards.empty()) {
    if (!node.gpus.empty()) return Note("the PCI bus is not visible here; the driver shows a GPU", "");
    return Missing("no AMD GPU on the PCI bus",
                   "check the card's seat and its power cables; in a virtual machine, pass the card through");
  }
  const std::string cards =
      absl::StrJoin(node.facts.cards, "; ", [](std::string* out, const PciCard& card) { *out += Describe(card); });
  for (const PciCard& card : node.facts.cards) {
    if (card.driver.empty() || card.driver == "amdgpu") return Ok(cards);
  }
  return Missing(StrCat(cards, ": bound to ", node.facts.cards[0].driver),
                 StrCat("unbind it from ", node.facts.cards[0].driver,
                        " and bind it to amdgpu; a card that is passed through to a "
                        "virtual machine is for that machine to use"));
}

std::optional<Check> CheckDriver(Node& node) {
  const std::string kernel = node.facts.kernel_release.empty() ? "" : StrCat(", kernel ", node.facts.kernel_release);
  if (!node.facts.driver_loaded) {
    return Missing(StrCat("the kernel module amdgpu is not loaded", kernel),
                   "as root: 'modprobe amdgpu'; if there is no such module, install the kernel's full image "
                   "(linux-image-amd64) and firmware-amd-graphics; see that nothing blacklists it");
  }
  const bool bound = node.facts.cards.empty() || std::any_of(node.facts.cards.begin(), node.facts.cards.end(),
                                                             [](const auto& c) { return c.driver == "amdgpu"; });
  if (!bound) {
    return Missing(
        "amdgpu is loaded but drives no card",
        "look at 'dmesg | grep amdgpu': missing firmware (install firmware-amd-graphics) and a PCI window too "
        "small for the card (turn on 'Above 4G decoding' in the firmware setup) are the usual causes");
  }
  return Ok(StrCat("amdgpu ", node.facts.driver_version.empty() ? "of the kernel" : node.facts.driver_version, kernel));
}

std::optional<Check> CheckKfd(Node& node) {
  if (!node.facts.kfd.exists) {
    return Missing(
        "there is no /dev/kfd",
        node.facts.driver_loaded
            ? "in a container: --device /dev/kfd (Kubernetes: the limit amd.com/gpu); else the kernel lacks "
              "CONFIG_HSA_AMD, or amdgpu took no card"
            : "it comes with the driver; in a container: --device /dev/kfd (Kubernetes: the limit amd.com/gpu)");
  }
  if (!node.facts.kfd.usable()) return MissingDevice(node, node.facts.kfd);
  return Ok(StrCat("opens; ", GroupName(node, node.facts.kfd.group)));
}

std::optional<Check> CheckTopology(Node& node) {
  if (!node.gpus.empty()) {
    return Ok(absl::StrJoin(node.gpus, "; ", [](std::string* out, const GpuNode* gpu) { *out += Describe(*gpu); }));
  }
  if (!node.facts.driver_loaded || !node.facts.kfd.exists) return Unknown();
  if (!node.facts.topology_exists) {
    return Missing("there is no /sys/class/kfd/kfd/topology",
                   "mount /sys into the container as its runtime does by default; else the driver has no KFD");
  }
  if (node.facts.unreadable_nodes > 0) {
    return Missing(StrCat(node.facts.unreadable_nodes, " nodes of the KFD topology may not be read"),
                   "a container reads only the nodes of devices that it was given: pass /dev/dri/renderD* of the card");
  }
  return Missing("the KFD topology has processors, but no GPU",
                 "look at 'dmesg | grep -i kfd': it tells why the card was left out");
}

std::optional<Check> CheckRenderNodes(Node& node) {
  if (node.facts.render_files.empty()) {
    return Missing("there is no /dev/dri/renderD*",
                   node.facts.driver_loaded ? "in a container: --device /dev/dri (Kubernetes: the limit amd.com/gpu)"
                                            : "it comes with the driver; in a container: --device /dev/dri");
  }
  const Gpus all = std::exchange(node.gpus, {});
  const DeviceFile* closed = nullptr;
  for (const GpuNode* gpu : all) {
    const DeviceFile* const file = gpu->render_node(node.facts.render_files);
    if (file != nullptr && file->usable()) node.gpus.push_back(gpu);
    if (file != nullptr && !file->usable() && closed == nullptr) closed = file;
  }
  if (!node.gpus.empty()) {
    const DeviceFile& file = *node.gpus[0]->render_node(node.facts.render_files);
    return Ok(StrCat(file.path, " opens; ", GroupName(node, file.group)));
  }
  if (closed != nullptr) return MissingDevice(node, *closed);
  if (all.empty()) return Unknown();
  const int minor = all[0]->render_minor;
  return Missing(
      StrCat("there is no /dev/dri/renderD", minor, ", the GPU's own; there is ", node.facts.render_files[0].path),
      StrCat("pass the right device to the container: --device /dev/dri/renderD", minor));
}

}  // namespace gdn::doctor
