// Delta rule problems and the forms that solve them, for the suites that bring other people's shapes.
//
// Thread safety: free functions; one thread at a time on one backend. Ownership: plain values.
//
//   const DeltaRuleProblem problem = RandomDeltaRule(dims, {40, 0, 64}, {.strongest = -20.0f}, random);
//   return CompareDeltaRule(DeltaRuleForm::kChunk, problem, backend);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/layer_dims.h"
#include "kernels/backend.h"
#include "tools/gdn_parity/difference.h"
#include "tools/gdn_parity/random_tensor.h"

namespace gdn::parity {

enum class DeltaRuleForm {
  kScan,    // Backend::DeltaRuleScan, whole sequences in one call
  kChunk,   // Backend::DeltaRuleChunk, likewise
  kDecode,  // Backend::DeltaRuleDecode, a token of every sequence a call, then the log folded
  kDraft,   // Backend::DeltaRuleDecode, whole sequences (8 tokens at most) in one call
  kStages,  // kernels/delta_rule_stages with chunks of 64; needs a GPU backend
};

struct DeltaRuleProblem {
  LayerDims dims = {};
  std::vector<int32_t> lengths = {};
  std::vector<float> q = {};        // [tokens, H, K], scaled
  std::vector<float> k = {};        // [tokens, H, K]
  std::vector<float> v = {};        // [tokens, HV, V]
  std::vector<float> g = {};        // [tokens, HV]
  std::vector<float> beta = {};     // [tokens, HV]
  std::vector<float> initial = {};  // [sequences, HV, K, V]

  int64_t tokens() const;
  int64_t sequences() const { return static_cast<int64_t>(lengths.size()); }
};

struct DeltaRuleInputs {
  float strongest = -1.0f;  // g is uniform in [strongest, weakest]
  float weakest = 0.0f;
  float scale = 0.0f;            // of q; 0: K^-0.5
  float state_deviation = 0.5f;  // 0: a fresh state
  float key_correlation = 0.0f;  // 0 .. 1, share of a direction that all keys have in common
};

// q and k have unit length, q is scaled after.
DeltaRuleProblem RandomDeltaRule(const LayerDims& dims, const std::vector<int32_t>& lengths,
                                 const DeltaRuleInputs& inputs, RandomTensor& random);

struct DeltaRuleResult {
  std::vector<float> output = {};  // [tokens, HV, V]
  std::vector<float> states = {};  // [sequences, HV, K, V]
};

DeltaRuleResult DeltaRuleReferenceResult(const DeltaRuleProblem& problem);
absl::StatusOr<DeltaRuleResult> RunDeltaRule(DeltaRuleForm form, const DeltaRuleProblem& problem, Backend& backend);

// Outputs and final states against the reference's; dumped as op "delta_rule".
absl::StatusOr<Difference> CompareDeltaRule(DeltaRuleForm form, const DeltaRuleProblem& problem, Backend& backend);

// For check_parity_dump.py: the problem as op "delta_rule", with these results.
absl::Status DumpDeltaRule(const DeltaRuleProblem& problem, const DeltaRuleResult& result);

const char* DeltaRuleFormName(DeltaRuleForm form);  // "scan", "chunk", ...

}  // namespace gdn::parity
