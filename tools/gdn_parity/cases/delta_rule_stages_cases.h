// Runs the stages of the chunked delta rule on a delta rule problem: by the references, with the result of every stage,
// and on a backend.
//
// Thread safety: free functions; one thread at a time on one backend. Ownership: plain values.
//
//   const ChunkedProblem p = CutIntoChunks(RandomDeltaRule(dims, {40, 0, 64}, {}, random), 32);
//   const StageTensors expected = StagesReference(p);
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/primitives/delta_rule_stages/delta_rule_stages.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"

namespace gdn::parity {

struct ChunkedProblem {
  DeltaRuleProblem rule = {};
  int32_t chunk_tokens = 0;
  std::vector<int32_t> cu_seqlens = {};
  std::vector<int32_t> chunk_offsets = {};

  // Returns a batch that points to this problem's index arrays, on the host.
  ChunkedBatch batch() const;
  int64_t matrices() const { return int64_t{chunk_offsets.back()} * rule.dims.value_heads; }
  int64_t matrix_elements() const { return matrices() * chunk_tokens * chunk_tokens; }
  int64_t k_stride() const { return rule.dims.key_features(); }
  int64_t v_stride() const { return rule.dims.value_features(); }
};

ChunkedProblem CutIntoChunks(DeltaRuleProblem rule, int32_t chunk_tokens);

// kernels/primitives/delta_rule_stages describes each tensor.
struct StageTensors {
  std::vector<double> g_sum;
  std::vector<float> a, mask, t, attention, w, u, h, v_new, output, final_state;
};

StageTensors StagesReference(const ChunkedProblem& problem);

// Runs the stages on the backend, waits for them, and returns the outputs and states. Errors of GpuStreamOf if it is no
// GPU backend, and of the device.
absl::StatusOr<DeltaRuleResult> RunStages(const ChunkedProblem& problem, Backend& backend);

}  // namespace gdn::parity
