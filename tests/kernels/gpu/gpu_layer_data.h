// Inputs of the layer's GPU operators on the host executor, where device memory is the host's.
//
// Thread safety: for one thread. Ownership: plain values that own their data; batches borrow it.
//
//   Sequences sequences({1, 0, 37}, /*slots=*/{2, 0, -1}, /*counts=*/{5, 0, 0});
//   CausalConv1dGpu({.pool = ..., .batch = sequences.batch(), ...}, sequences.device(), stream);
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/common/packed_batch.h"
#include "kernels/gpu/stream.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn {

// The executor as a device of two processors.
inline gpu::Stream HostExecutor(int wave_width) {
  return {.handle = nullptr, .wave_width = wave_width, .processors = 2};
}

class Sequences {
 public:
  Sequences(const std::vector<int32_t>& lengths, std::vector<int32_t> slots, std::vector<int64_t> counts)
      : max_length_(*std::max_element(lengths.begin(), lengths.end())),
        cu_seqlens_(CumulativeLengths(lengths)),
        slots_(std::move(slots)),
        counts_(std::move(counts)) {}

  int32_t tokens() const { return cu_seqlens_.back(); }
  const int64_t* counts() const { return counts_.data(); }
  PackedBatch batch() const {
    return {.sequences = static_cast<int32_t>(slots_.size()), .cu_seqlens = cu_seqlens_.data(), .slots = slots_.data()};
  }
  gpu::DeviceBatch device() const {
    return {.sequences = static_cast<int32_t>(slots_.size()),
            .tokens = tokens(),
            .max_length = max_length_,
            .cu_seqlens = cu_seqlens_.data(),
            .slots = slots_.data(),
            .token_counts = counts_.data(),
            .log_lengths = nullptr};
  }

 private:
  int32_t max_length_;
  std::vector<int32_t> cu_seqlens_;
  std::vector<int32_t> slots_;
  std::vector<int64_t> counts_;
};

}  // namespace gdn
