// Delta-rule problems for the GPU launchers on the host executor, whose device memory is the host's: state pools with
// bases [HV][V][K], and calls over them.
//
// Thread safety: for one thread. Ownership: values that own their data; a GpuProblem has a pool of its own.
//
//   GpuProblem problem(inputs, /*lengths=*/{3, 40}, /*slots=*/{1, -1}, stream);
//   problem.SetBase(1, base);  // [HV, K, V]
//   ASSERT_TRUE(problem.Run(DeltaRulePath::kChunk).ok());
#pragma once

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn {

class GpuPool {
 public:
  GpuPool(const LayerDims& dims, int32_t slots, int32_t max_draft) : pool_(dims, slots, max_draft) {}

  const StatePoolView& view() const { return pool_.view(); }
  absl::Span<float> slot(int32_t index) { return pool_.slot(index); }
  void SetBase(int32_t index, absl::Span<const float> base) {
    const LayerDims& dims = view().layout.dims();
    Swap(base.data(), dims.key_dim, dims.value_dim, pool_.base(index).data());
  }
  std::vector<float> Base(int32_t index) {
    const LayerDims& dims = view().layout.dims();
    std::vector<float> base(dims.state_elements());
    Swap(pool_.base(index).data(), dims.value_dim, dims.key_dim, base.data());
    return base;
  }

 private:
  // [HV, rows, columns] to [HV, columns, rows].
  void Swap(const float* from, int32_t rows, int32_t columns, float* to) const {
    for (int64_t head = 0; head < view().layout.dims().value_heads; ++head) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          to[(head * columns + j) * rows + i] = from[(head * rows + i) * columns + j];
        }
      }
    }
  }

  HostStatePool pool_;
};

class GpuProblem {
 public:
  GpuProblem(DeltaRuleInputs inputs, std::vector<int32_t> lengths, std::vector<int32_t> slots,
             const gpu::Stream& stream)
      : inputs_(std::move(inputs)),
        slots_(std::move(slots)),
        starts_(CumulativeLengths(lengths)),
        max_length_(*std::max_element(lengths.begin(), lengths.end())),
        stream_(stream),
        output_(inputs_.v.size(), 1234.5f),  // not zero, so that a row nobody writes shows
        pool_(inputs_.dims, slot_count(), kMaxDraftLimit) {}

  int32_t slot_count() const { return std::max(0, *std::max_element(slots_.begin(), slots_.end())) + 1; }
  void SetBase(int32_t slot, absl::Span<const float> base) { pool_.SetBase(slot, base); }
  std::vector<float> Base(int32_t slot) { return pool_.Base(slot); }
  const std::vector<float>& output() const { return output_; }

  // Decode: from an empty log, as many calls as max_draft asks for, and a fold at the end.
  absl::Status Run(DeltaRulePath path) {
    const DeltaRuleParams params = Params(pool_);
    if (path == DeltaRulePath::kScan) return DeltaRuleScanGpu(params, Device(nullptr), stream_);
    if (path == DeltaRulePath::kChunk) {
      // Not a number, so that what nobody wrote shows.
      AlignedBuffer<float> workspace(static_cast<size_t>(DeltaRuleChunkGpuWorkspaceFloats(params)));
      std::fill_n(workspace.data(), DeltaRuleChunkGpuWorkspaceFloats(params), std::numeric_limits<float>::quiet_NaN());
      return DeltaRuleChunkGpu(params, Device(nullptr), workspace.data(), stream_);
    }
    return DecodeAndFold();
  }

  absl::Status Decode(GpuPool& pool, int32_t* log_lengths) {
    const std::vector<int32_t> before(log_lengths, log_lengths + slots_.size());
    return DeltaRuleDecodeGpu({.rule = Params(pool), .log_lengths = log_lengths}, Device(before.data()), nullptr,
                              stream_);
  }

 private:
  PackedBatch Batch() const {
    return {.sequences = static_cast<int32_t>(slots_.size()), .cu_seqlens = starts_.data(), .slots = slots_.data()};
  }
  DeltaRuleParams Params(const GpuPool& pool) { return MakeDeltaRuleParams(inputs_, pool.view(), Batch(), output_); }
  gpu::DeviceBatch Device(const int32_t* log_lengths) const {
    return {.sequences = static_cast<int32_t>(slots_.size()),
            .tokens = starts_.back(),
            .max_length = max_length_,
            .cu_seqlens = starts_.data(),
            .slots = slots_.data(),
            .log_lengths = log_lengths};
  }

  // Longer sequences than max_draft take a second call, of the tokens from there on.
  absl::Status DecodeAndFold() {
    std::vector<int32_t> log_lengths(slots_.size(), 0);
    if (max_length_ <= kMaxDraftLimit) {
      GDN_RETURN_IF_ERROR(Decode(pool_, log_lengths.data()));
    } else {
      std::vector<int32_t> starts;
      std::swap(starts, starts_);
      const DeltaRuleInputs inputs = inputs_;
      std::vector<float> output;
      for (int32_t done = 0; done < inputs.tokens; done += kMaxDraftLimit) {
        inputs_ = Slice(inputs, done, std::min<int64_t>(done + kMaxDraftLimit, inputs.tokens));
        starts_ = {0, static_cast<int32_t>(inputs_.tokens)};
        output_.assign(inputs_.v.size(), 1234.5f);
        GDN_RETURN_IF_ERROR(Decode(pool_, log_lengths.data()));
        output.insert(output.end(), output_.begin(), output_.end());
      }
      inputs_ = inputs;
      output_ = output;
      starts_ = starts;
    }
    std::vector<int32_t> slots;
    std::vector<int32_t> lengths;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i] < 0) continue;
      slots.push_back(slots_[i]);
      lengths.push_back(log_lengths[i]);
    }
    return MaterializeStateGpu({.pool = pool_.view(),
                                .count = static_cast<int32_t>(slots.size()),
                                .src = slots.data(),
                                .dst = slots.data(),
                                .log_lengths = lengths.data()},
                               slots.data(), slots.data(), lengths.data(), nullptr, stream_);
  }

  DeltaRuleInputs inputs_;
  std::vector<int32_t> slots_;
  std::vector<int32_t> starts_;
  int32_t max_length_;
  gpu::Stream stream_;
  std::vector<float> output_;
  GpuPool pool_;
};

}  // namespace gdn
