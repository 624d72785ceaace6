// A backend that forwards everything to another, records the delta-rule calls, and fails one on request.
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
#include "tests/support/forwarding_backend.h"

namespace gdn {

class RecordingBackend final : public ForwardingBackend {
 public:
  explicit RecordingBackend(Backend& other) : ForwardingBackend(other) {}

  void Record(const std::string& event) {
    absl::MutexLock lock(&mu_);
    events_.push_back(event);
  }
  std::vector<std::string> events() const {
    absl::MutexLock lock(&mu_);
    return events_;
  }
  // Makes the next delta-rule call return `status`.
  void FailNext(absl::Status status) {
    absl::MutexLock lock(&mu_);
    failure_ = std::move(status);
  }

  // Issues every step and replays none, so that all are recorded; Prepare issues nothing.
  absl::Status IssueOrReplay(const ReplayableStep& /*step*/, absl::FunctionRef<absl::Status()> issue) override {
    return issue();
  }
  absl::Status Prepare(absl::FunctionRef<absl::Status()> /*issue*/) override { return absl::OkStatus(); }

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

  mutable absl::Mutex mu_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

// Replaces each run of whole segments (multiples of 64 tokens) by one event, because their lengths depend on timing.
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
