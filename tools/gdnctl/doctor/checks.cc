#include "tools/gdnctl/doctor/checks.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_join.h"
#include "base/string_cat.h"

namespace gdn::doctor {
namespace {

// In order: a check may rely on those above it. One that returns nothing has nothing to say.
constexpr std::pair<const char*, std::optional<Check> (*)(Node&)> kChecks[] = {
    {"card", CheckCard},
    {"driver", CheckDriver},
    {"/dev/kfd", CheckKfd},
    {"topology", CheckTopology},
    {"/dev/dri", CheckRenderNodes},
    {"visible", CheckVisible},
    {"override", CheckOverride},
    {"gfx name", CheckArchitecture},
    {"memory", CheckMemory},
    {"HIP runtime", CheckRuntime},
    {"HIP devices", CheckRuntimeDevices},
    {"build", CheckBuild},
};

std::optional<std::string> FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

std::string_view VerdictName(Verdict verdict) {
  static constexpr std::string_view kNames[] = {"ok", "note", "unknown", "missing"};
  return kNames[static_cast<size_t>(verdict)];
}

Environment ProcessEnvironment() {
  return {.hip_visible_devices = FromEnvironment("HIP_VISIBLE_DEVICES"),
          .rocr_visible_devices = FromEnvironment("ROCR_VISIBLE_DEVICES"),
          .hsa_override_gfx_version = FromEnvironment("HSA_OVERRIDE_GFX_VERSION")};
}

std::vector<Check> CheckNode(const NodeFacts& facts, const HipRuntime& runtime, const Environment& environment,
                             const Requirements& requirements) {
  Node node{facts, runtime, environment, requirements, {}};
  for (const GpuNode& gpu : facts.gpus) node.gpus.push_back(&gpu);
  std::vector<Check> checks;
  for (const auto& [name, look] : kChecks) {
    std::optional<Check> check = look(node);
    if (!check.has_value()) continue;
    check->name = name;
    checks.push_back(*std::move(check));
  }
  return checks;
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

}  // namespace gdn::doctor
