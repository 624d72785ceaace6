// gdnctl doctor.
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/doctor/checks.h"

ABSL_FLAG(std::string, root, "/", "Look at the node whose /sys, /dev, /proc and /etc are under this folder.");
ABSL_FLAG(double, need, 4.0,
          "GiB that must be free on one GPU: the GDN weights of the model (2.3 for Qwen3-Next-80B in bfloat16) and the "
          "session states (105 MiB each).");

#ifndef GDN_HIP_ARCHITECTURES
#error "GDN_HIP_ARCHITECTURES comes from CMake: names of GPUs, separated by commas"
#endif
#ifndef GDN_HAS_HIP_KERNELS
#error "GDN_HAS_HIP_KERNELS comes from CMake: 0 or 1"
#endif

namespace gdn {
namespace {

std::string CheckToText(const doctor::Check& check) {
  std::string text = absl::StrFormat("%-8s %-12s %s\n", doctor::VerdictName(check.verdict), check.name, check.found);
  if (!check.to_do.empty()) absl::StrAppendFormat(&text, "%-8s %-12s -> %s\n", "", "", check.to_do);
  return text;
}

nlohmann::ordered_json ToJson(const std::vector<doctor::Check>& checks) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const doctor::Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"verdict", std::string(doctor::VerdictName(check.verdict))},
                    {"found", check.found},
                    {"to_do", check.to_do}});
  }
  return {{"usable", doctor::Usable(checks)}, {"summary", doctor::Summary(checks)}, {"checks", std::move(list)}};
}

absl::StatusOr<int> RunDoctor(const std::vector<std::string>&) {
  const std::string root = absl::GetFlag(FLAGS_root);
  const double need = absl::GetFlag(FLAGS_need);
  if (root.empty()) return UsageError("--root is empty, expected a folder such as /");
  if (!(need >= 0 && need <= 1024)) return UsageError("--need is in GiB, 0 .. 1024");
  const doctor::NodeFacts facts = doctor::ReadNode({.root = root, .identity = doctor::ProcessIdentity()});
  const std::vector<doctor::Check> checks =
      doctor::CheckNode(facts, doctor::FindHipRuntime(root), doctor::ProcessEnvironment(),
                        {.architectures = absl::StrSplit(GDN_HIP_ARCHITECTURES, ','),
                         .gpu_build = GDN_HAS_HIP_KERNELS != 0,
                         .memory_bytes = static_cast<int64_t>(need * (1 << 30))});
  if (absl::GetFlag(FLAGS_json)) {
    absl::PrintF("%s\n", ToJson(checks).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    for (const doctor::Check& check : checks) absl::PrintF("%s", CheckToText(check));
    absl::PrintF("%s\n", doctor::Summary(checks));
  }
  return doctor::Usable(checks) ? kExitOk : kExitFailed;
}

}  // namespace

std::vector<Command> DoctorCommands() {
  return {{.name = "doctor",
           .summary = "Explain what this node lacks for the GPU backend",
           .details =
               "Looks at the driver, the device files and their groups, the GPUs, their memory, the environment\n"
               "and the HIP runtime. Each line is ok, note, missing (with what to do) or unknown. An unknown line\n"
               "cannot be checked until you repair a missing line above it. The exit code is 0 if the GPU backend can\n"
               "run, else 1. Needs no server.\n",
           .flags = {"json", "root", "need"},
           .run = RunDoctor}};
}

}  // namespace gdn
