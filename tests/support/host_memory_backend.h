// A backend for tests that load weights: host memory that can pose as a device's memory, and no operators.
//
// Thread safety: for one thread. Ownership: must outlive every buffer made from it.
//
//   HostMemoryBackend backend(/*unified_memory=*/false);
//   auto model = LoadModel(backend, "tiny", directory);
//   EXPECT_TRUE(backend.Owns(model->layers().at(0).out.data));
#pragma once

#include <map>

#include "kernels/backend.h"

namespace gdn {

class HostMemoryBackend : public Backend {
 public:
  explicit HostMemoryBackend(bool unified_memory, uint32_t weight_formats = kPlainWeights) {
    info_.unified_memory = unified_memory;
    info_.weight_formats = weight_formats;
  }

  // True if `data` points into memory that was allocated from this backend and is not freed.
  bool Owns(const void* data) const;
  size_t live_allocations() const { return live_.size(); }
  size_t live_bytes() const;
  int total_allocations() const { return total_allocations_; }
  // Poses as a device that multiplies fp16 numbers in exact products.
  void TakeHalves() { info_.takes_halves = true; }
  // Lets `count` more allocations succeed; the next one fails.
  void FailAfter(int count) { allocations_left_ = count; }

  const BackendInfo& info() const override { return info_; }
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* data, size_t bytes) override;
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

  absl::Status Projection(const ProjectionParams&) override { return NoOperators(); }
  absl::Status QkvzSplit(const QkvzSplitParams&) override { return NoOperators(); }
  absl::Status CausalConv1d(const CausalConv1dParams&) override { return NoOperators(); }
  absl::Status Gating(const GatingParams&) override { return NoOperators(); }
  absl::Status QkL2Norm(const QkL2NormParams&) override { return NoOperators(); }
  absl::Status DeltaRuleChunk(const DeltaRuleParams&) override { return NoOperators(); }
  absl::Status DeltaRuleScan(const DeltaRuleParams&) override { return NoOperators(); }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams&) override { return NoOperators(); }
  absl::Status MaterializeState(const MaterializeStateParams&) override { return NoOperators(); }
  absl::Status GatedRmsNorm(const GatedRmsNormParams&) override { return NoOperators(); }

 private:
  static absl::Status NoOperators() { return absl::UnimplementedError("this backend only holds memory"); }

  BackendInfo info_;
  std::map<const char*, size_t> live_;
  int total_allocations_ = 0;
  int allocations_left_ = -1;  // negative: no limit
};

}  // namespace gdn
