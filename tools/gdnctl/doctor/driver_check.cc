// Is there a card, and does the driver drive it?
#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/string_cat.h"
#include "tools/gdnctl/doctor/checks.h"

namespace gdn::doctor {
namespace {

std::string Describe(const PciCard& card) {
  const std::string name = CardName(card.device_id);
  return absl::StrFormat("%s %s (1002:%04x)", card.address, name.empty() ? "AMD GPU" : name, card.device_id);
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

}  // namespace gdn::doctor
