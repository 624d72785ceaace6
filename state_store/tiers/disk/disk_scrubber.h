// Verifies the checksums of states on the disk while the server is idle, so that bit rot is found while another copy
// may still exist, and not when a session needs the state.
//
// A pass reads every state of the tier, also those of earlier servers and named checkpoints. It reads files in pieces
// at a limited rate, and pauses between two pieces as soon as there is work. It holds no lock while it reads; a file
// that is replaced or removed meanwhile does not count as damaged. It sets damaged files aside (DiskTier::SetAside) and
// replaces them by another copy if there is one (TierStack::HandleDamage).
// Thread safety: one thread calls Step; any may call counts. Ownership: the constructor's arguments must outlive it.
//
//   DiskScrubber scrubber({.disk = disk, .tiers = tiers, .activity = activity}, {.bytes_per_second = 8 << 20});
//   while (!stop.GivenWithin(scrubber.Step())) {}
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/threads/steady_clock.h"
#include "state_store/tiers/disk/disk_tier.h"
#include "state_store/tiers/disk/file_check.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct ScrubActivity {
  bool busy = false;  // work runs, or waits to run
  int64_t work = 0;   // changes whenever work has run
};

struct DiskScrubberParts {
  DiskTier& disk;
  TierStack& tiers;
  std::function<ScrubActivity()> activity;
  // Called on the thread of Step if the newest checkpoint of a live session is found damaged on the disk and has no
  // other copy. The session goes on, and should be checkpointed again.
  std::function<void(const StateKey&)> on_not_durable = [](const StateKey&) {};
};

struct DiskScrubberOptions {
  int64_t bytes_per_second = int64_t{8} << 20;   // highest read rate; above 0
  absl::Duration idle_after = absl::Seconds(2);  // time without work before the scrubber reads
  absl::Duration pass_every = absl::Hours(1);    // least time between the starts of two passes
  const SteadyClock* clock = &SteadyClock::Real();
};

struct ScrubCounts {
  int64_t verified_states = 0;
  int64_t verified_bytes = 0;  // bytes read, also of damaged states
  // Numbers of damaged states by outcome (TierStack::DamageOutcome).
  int64_t copy_used = 0;
  int64_t not_durable = 0;
  int64_t lost = 0;
  absl::Time last_pass = absl::InfinitePast();  // when the last whole pass ended; InfinitePast: none has
};

class DiskScrubber {
 public:
  static constexpr int64_t kPieceBytes = int64_t{256} << 10;

  DiskScrubber(DiskScrubberParts parts, const DiskScrubberOptions& options);
  DiskScrubber(const DiskScrubber&) = delete;
  DiskScrubber& operator=(const DiskScrubber&) = delete;

  // Reads at most one piece of kPieceBytes, or a header; blocks on the disk. Returns the time to wait before the next
  // call, at most 1 s.
  absl::Duration Step();
  ScrubCounts counts() const;

 private:
  // Returns the time until the server counts as idle; 0 if it is idle.
  absl::Duration UntilIdle(SteadyTime now);
  bool OpenNext(SteadyTime now);
  void OpenFile();
  void Read(SteadyTime now);
  void Handle(const absl::Status& damage);
  void EndState(bool verified);
  template <typename Change>
  void Count(Change change) {
    absl::MutexLock lock(&mu_);
    change(counts_);
  }

  const DiskScrubberParts parts_;
  const DiskScrubberOptions options_;

  // Used only by the thread that calls Step.
  int64_t work_ = -1;      // ScrubActivity::work at the last call
  SteadyTime idle_since_;  // last time that work was seen
  SteadyTime due_;         // earliest time of the next read, by the rate
  SteadyTime next_pass_;
  bool in_pass_ = false;
  std::optional<StateKey> key_;     // the last state that this pass has begun
  std::vector<std::string> files_;  // files of key_ that are still to be read, in reverse order
  std::unique_ptr<FileCheck> check_;

  mutable absl::Mutex mu_;
  ScrubCounts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
