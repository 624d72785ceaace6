// One session's decode calls on one slot of host memory, by the CPU's kernels.
//
// Thread safety: for one thread. Ownership: borrows the pool.
//
//   Session session(pool, /*slot=*/0);
//   std::vector<float> output = session.Decode(Slice(inputs, 0, 8), threads);
#pragma once

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn {

class Session {
 public:
  Session(HostStatePool& pool, int32_t slot, int32_t log_length = 0)
      : pool_(pool), slot_(slot), log_length_(log_length) {}

  std::vector<float> Decode(const DeltaRuleInputs& inputs, ThreadPool& threads) {
    const std::vector<int32_t> offsets = {0, static_cast<int32_t>(inputs.tokens)};
    std::vector<float> output(inputs.v.size(), 1234.5f);
    const DeltaRuleParams rule = MakeDeltaRuleParams(
        inputs, pool_.view(), {.sequences = 1, .cu_seqlens = offsets.data(), .slots = &slot_}, output);
    const absl::Status status = DeltaRuleDecodeCpu({.rule = rule, .log_lengths = &log_length_}, threads);
    EXPECT_TRUE(status.ok()) << status;
    return output;
  }

  void Fold(ThreadPool& threads) {
    const MaterializeStateParams params{
        .pool = pool_.view(), .count = 1, .src = &slot_, .dst = &slot_, .log_lengths = &log_length_};
    const absl::Status status = MaterializeStateCpu(params, threads);
    EXPECT_TRUE(status.ok()) << status;
    log_length_ = 0;
  }

  int32_t log_length() const { return log_length_; }

 private:
  HostStatePool& pool_;
  int32_t slot_;
  int32_t log_length_;
};

}  // namespace gdn
