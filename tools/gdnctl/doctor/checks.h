// Checks whether a node can run the GPU backend. Each check says what was found and what to do.
//
// A check passes if at least one GPU passes it and all checks before it, so a second, unsupported card is harmless.
// Thread safety: free functions on values. Ownership: plain values.
//
//   const std::vector<Check> checks = CheckNode(facts, runtime, {.architectures = {"gfx906"}});
//   return Usable(checks) ? 0 : 1;
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/gdnctl/doctor/hip_runtime.h"
#include "tools/gdnctl/doctor/node.h"

namespace gdn::doctor {

enum class Verdict {
  kOk,
  kNote,     // worth knowing, but no problem
  kUnknown,  // cannot be checked until an earlier problem is fixed
  kMissing,  // something that the GPU backend needs is missing
};
std::string_view VerdictName(Verdict verdict);  // "ok", "note", "unknown", "missing"

struct Check {
  std::string name;  // "driver", "/dev/kfd", ...
  Verdict verdict = Verdict::kOk;
  std::string found;  // the finding, for people
  std::string to_do;  // what to do; always set for kMissing, sometimes for kNote
};

struct Environment {
  std::optional<std::string> hip_visible_devices;
  std::optional<std::string> rocr_visible_devices;
  std::optional<std::string> hsa_override_gfx_version;
};
Environment ProcessEnvironment();

struct Requirements {
  std::vector<std::string> architectures = {"gfx906"};  // architectures that kernels are built for
  bool gpu_build = true;                                // this build has GPU kernels
  int64_t memory_bytes = int64_t{4} << 30;              // bytes that must be free on one GPU, for weights and states
};

// Makes the checks in their order; a check may rely on those before it. Checks that have nothing to say are left out.
std::vector<Check> CheckNode(const NodeFacts& facts, const HipRuntime& runtime, const Environment& environment,
                             const Requirements& requirements);

// True if no check has the verdict kMissing or kUnknown, so the node can run the GPU backend.
bool Usable(const std::vector<Check>& checks);

// Returns "doctor: usable: ..." or "doctor: NOT usable: ...", in one line.
std::string Summary(const std::vector<Check>& checks);

// Returns the GPUs that a *_VISIBLE_DEVICES value selects, each once, in its order. The value is a list of indices into
// `gpus` or of "GPU-<unique id in hexadecimal>", separated by commas. Stops at the first element that matches no GPU,
// as the runtimes do; "" selects none.
std::vector<const GpuNode*> VisibleGpus(const std::vector<const GpuNode*>& gpus, const std::string& value);

// For the checks alone, each in the .cc that is named after what it looks at.

using Gpus = std::vector<const GpuNode*>;  // borrowed from NodeFacts::gpus
// The input of a check: all facts, and the GPUs that passed every check before it.
struct Node {
  const NodeFacts& facts;
  const HipRuntime& runtime;
  const Environment& environment;
  const Requirements& requirements;
  Gpus gpus;
};

// Make a Check without a name; CheckNode sets the name.
inline Check Ok(std::string found) { return {"", Verdict::kOk, std::move(found), ""}; }
inline Check Note(std::string found, std::string to_do) {
  return {"", Verdict::kNote, std::move(found), std::move(to_do)};
}
inline Check Unknown() { return {"", Verdict::kUnknown, "cannot be checked until the problem above is solved", ""}; }
inline Check Missing(std::string found, std::string to_do) {
  return {"", Verdict::kMissing, std::move(found), std::move(to_do)};
}

// Make one check each. A check about GPUs removes those that fail it from node.gpus. nullopt: it has nothing to say.
std::optional<Check> CheckCard(Node& node);  // this one and the next four are in devices_check.cc
std::optional<Check> CheckDriver(Node& node);
std::optional<Check> CheckKfd(Node& node);
std::optional<Check> CheckTopology(Node& node);
std::optional<Check> CheckRenderNodes(Node& node);
std::optional<Check> CheckVisible(Node& node);  // this one and the next six are in gpus_check.cc
std::optional<Check> CheckOverride(Node& node);
std::optional<Check> CheckArchitecture(Node& node);
std::optional<Check> CheckMemory(Node& node);
std::optional<Check> CheckRuntime(Node& node);
std::optional<Check> CheckRuntimeDevices(Node& node);
std::optional<Check> CheckBuild(Node& node);

}  // namespace gdn::doctor
