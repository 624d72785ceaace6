// Delta rule problems and the operators that solve them, for suites with shapes of other projects.
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
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {

// Returns dims of a bare operator, without a convolution.
inline LayerDims Dims(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim) {
  return {.key_heads = key_heads, .value_heads = value_heads, .key_dim = key_dim, .value_dim = value_dim};
}
// Returns `dims` with a decay for each key channel.
inline LayerDims ByChannel(LayerDims dims) {
  dims.decay = DecayKind::kPerChannel;
  return dims;
}

std::string DimsName(const LayerDims& dims);  // "H=2 HV=4 K=32 V=48", with " by channel" for decays by channel

// Shapes with head groups, dimensions that are no multiple of a SIMD vector, and decays g uniform in [strongest, 0].
struct DecayShape {
  LayerDims dims;
  float strongest;
};
inline const DecayShape kDecayShapes[] = {{Dims(2, 4, 128, 128), -1.0f},
                                          {Dims(1, 3, 48, 32), -0.05f},
                                          {Dims(2, 2, 37, 51), -1.0f},
                                          {Dims(1, 2, 64, 64), -20.0f}};

enum class DeltaRuleForm {
  kScan,    // Backend::DeltaRuleScan, whole sequences in one call
  kChunk,   // Backend::DeltaRuleChunk, whole sequences in one call
  kDecode,  // Backend::DeltaRuleDecode, one token of every sequence in a call, then the log is folded
  kDraft,   // Backend::DeltaRuleDecode, up to 8 tokens of every sequence in a call
  kStages,  // primitives/delta_rule_stages with chunks of 64; needs a GPU backend
};

struct DeltaRuleProblem {
  LayerDims dims = {};
  std::vector<int32_t> lengths = {};
  float max_beta = 1.0f;            // upper bound of beta (DeltaRuleParams::max_beta)
  std::vector<float> q = {};        // [tokens, H, K], already multiplied by the scale
  std::vector<float> k = {};        // [tokens, H, K]
  std::vector<float> v = {};        // [tokens, HV, V]
  std::vector<float> g = {};        // [tokens, HV], or [tokens, HV, K]
  std::vector<float> beta = {};     // [tokens, HV]
  std::vector<float> initial = {};  // [sequences, HV, K, V]

  int64_t tokens() const;
  int64_t sequences() const { return static_cast<int64_t>(lengths.size()); }
};

struct DeltaRuleInputs {
  float strongest = -1.0f;       // g is uniform in [strongest, 0]
  float scale = 0.0f;            // multiplies q; 0: K^-0.5
  float state_deviation = 0.5f;  // standard deviation of initial states; 0: fresh states
  float key_correlation = 0.0f;  // 0 .. 1, share of a direction that all keys have in common
};

// Makes a random problem. q and k have unit length before q is multiplied by the scale.
DeltaRuleProblem RandomDeltaRule(const LayerDims& dims, const std::vector<int32_t>& lengths,
                                 const DeltaRuleInputs& inputs, RandomTensor& random);

// A problem's tensors in backend memory.
struct DeltaRuleTensors {
  DeltaRuleParams rule;    // without pool and batch; the output is poisoned
  float* state = nullptr;  // holds `initial`
};
absl::StatusOr<DeltaRuleTensors> Upload(const DeltaRuleProblem& problem, BackendData& data);

struct DeltaRuleResult {
  std::vector<float> output = {};  // [tokens, HV, V]
  std::vector<float> states = {};  // [sequences, HV, K, V]
};

// Returns the problem that has tokens [begin, end) of a problem of one sequence, and `initial` as its initial state.
DeltaRuleProblem Part(const DeltaRuleProblem& whole, int64_t begin, int64_t end, const std::vector<float>& initial);

// State slots of sequences with their log lengths, which calls of any form can advance. Frees its backend memory when
// it is destroyed; the backend must outlive it.
class DeltaRuleSlots {
 public:
  // Makes slots on the backend, one for each of the initial bases `states` [slots, HV, K, V], with empty logs.
  static absl::StatusOr<DeltaRuleSlots> Make(Backend& backend, const LayerDims& dims, const std::vector<float>& states);

  const StatePoolView& pool() const { return state_.device(); }
  std::vector<int32_t>& log_lengths() { return log_lengths_; }

  // Advances slot i by sequence i and returns the outputs, [tokens, HV, V]. Not for kStages. `draft` and `base_slots`
  // (slots whose bases are read; null: the own ones) are for kDecode and kDraft; with either, each sequence's tokens go
  // in one call.
  absl::StatusOr<std::vector<float>> Advance(DeltaRuleForm form, const DeltaRuleProblem& problem, bool draft = false,
                                             const int32_t* base_slots = nullptr);
  // Folds the logs of the first `count` slots onto the bases of `base_slots` (null: their own), and returns the states
  // [count, HV, K, V]. The logs are then empty.
  absl::StatusOr<std::vector<float>> States(int32_t count, const int32_t* base_slots = nullptr);

 private:
  explicit DeltaRuleSlots(Backend& backend) : backend_(&backend) {}

  Backend* backend_;
  StatePair state_;
  std::vector<int32_t> log_lengths_;
};

DeltaRuleResult DeltaRuleReferenceResult(const DeltaRuleProblem& problem);
absl::StatusOr<DeltaRuleResult> RunDeltaRule(DeltaRuleForm form, const DeltaRuleProblem& problem, Backend& backend);

// Returns the difference of the outputs and states from the expected ones.
Difference CompareResults(const DeltaRuleResult& actual, const DeltaRuleResult& expected);
// Compares each sequence separately, and returns the worst differences, so that large sequences do not hide errors of
// small ones.
Difference CompareSequences(const DeltaRuleProblem& problem, const DeltaRuleResult& actual,
                            const DeltaRuleResult& expected);

// Compares outputs and final states with the reference's, and dumps them as op "delta_rule".
CaseResult CompareWithReference(const DeltaRuleProblem& problem, const DeltaRuleResult& actual);
CaseResult CompareDeltaRule(DeltaRuleForm form, const DeltaRuleProblem& problem, Backend& backend);

struct DeltaRuleCall {
  DeltaRuleForm form;
  int64_t tokens;
};
// Runs the calls one after the other on the same state, and compares with one pass of the reference over all tokens.
// `whole` has one sequence, with as many tokens as the calls together.
CaseResult CompareDeltaRuleCalls(const DeltaRuleProblem& whole, const std::vector<DeltaRuleCall>& calls,
                                 Backend& backend);

// Dumps the problem with these results as op "delta_rule", for check_parity_dump.py. Does nothing if dumps are off.
// Errors of Dump.
absl::Status DumpDeltaRule(const DeltaRuleProblem& problem, const DeltaRuleResult& result);

const char* DeltaRuleFormName(DeltaRuleForm form);  // "scan", "chunk", "decode", "draft" or "stages"

}  // namespace gdn::parity
