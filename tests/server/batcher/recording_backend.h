// A backend that passes everything on to another, notes the delta-rule calls, and fails one on request.
//
// Thread safety: as Backend; Record, events and FailNext from any thread. Ownership: borrows the other backend.
//
//   RecordingBackend backend(*null_backend);
//   EXPECT_THAT(backend.events(), ElementsAre("decode of 4", "prefill of 512"));
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"

namespace gdn {

class RecordingBackend final : public Backend {
 public:
  explicit RecordingBackend(Backend& other) : other_(other) {}

  void Record(const std::string& event) {
    absl::MutexLock lock(&mu_);
    events_.push_back(event);
  }
  std::vector<std::string> events() const {
    absl::MutexLock lock(&mu_);
    return events_;
  }
  // The next delta-rule call returns `status`.
  void FailNext(absl::Status status) {
    absl::MutexLock lock(&mu_);
    failure_ = std::move(status);
  }

  const BackendInfo& info() const override { return other_.info(); }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return other_.Allocate(bytes); }
  void Free(void* data, size_t bytes) override { other_.Free(data, bytes); }
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override {
    return other_.CopyIn(device, host, bytes);
  }
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override {
    return other_.CopyOut(host, device, bytes);
  }
  absl::Status Synchronize() override { return other_.Synchronize(); }
  absl::Status ZeroSlot(const StatePoolView& pool, int32_t slot) override { return other_.ZeroSlot(pool, slot); }
  absl::Status Projection(const ProjectionParams& params) override { return other_.Projection(params); }
  absl::Status QkvzSplit(const QkvzSplitParams& params) override { return other_.QkvzSplit(params); }
  absl::Status CausalConv1d(const CausalConv1dParams& params) override { return other_.CausalConv1d(params); }
  absl::Status Gating(const GatingParams& params) override { return other_.Gating(params); }
  absl::Status QkL2Norm(const QkL2NormParams& params) override { return other_.QkL2Norm(params); }
  absl::Status MaterializeState(const MaterializeStateParams& params) override {
    return other_.MaterializeState(params);
  }
  absl::Status GatedRmsNorm(const GatedRmsNormParams& params) override { return other_.GatedRmsNorm(params); }

  absl::Status DeltaRuleChunk(const DeltaRuleParams& params) override {
    if (absl::Status failure = TakeFailure(); !failure.ok()) return failure;
    Record("prefill of " + std::to_string(params.batch.tokens()));
    return other_.DeltaRuleChunk(params);
  }
  absl::Status DeltaRuleScan(const DeltaRuleParams& params) override {
    if (absl::Status failure = TakeFailure(); !failure.ok()) return failure;
    Record("prefill of " + std::to_string(params.batch.tokens()));
    return other_.DeltaRuleScan(params);
  }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams& params) override {
    if (absl::Status failure = TakeFailure(); !failure.ok()) return failure;
    Record("decode of " + std::to_string(params.rule.batch.sequences));
    return other_.DeltaRuleDecode(params);
  }

 private:
  absl::Status TakeFailure() {
    absl::MutexLock lock(&mu_);
    return std::exchange(failure_, absl::OkStatus());
  }

  Backend& other_;
  mutable absl::Mutex mu_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

// With every run of whole segments, whose lengths follow what earlier ones took, as one event.
inline std::vector<std::string> WithSegmentsAsOne(const std::vector<std::string>& events) {
  std::vector<std::string> folded;
  for (const std::string& event : events) {
    int tokens = 0;
    const bool whole = std::sscanf(event.c_str(), "prefill of %d", &tokens) == 1 && tokens % 64 == 0;
    if (whole && !folded.empty() && folded.back() == "segments") continue;
    folded.push_back(whole ? "segments" : event);
  }
  return folded;
}

}  // namespace gdn
