// Reads the states that rest on the disk while nothing else is to be done, and verifies their checksums: what has
// rotted is found while another copy may still be there, and not when a session needs it.
//
// A pass looks at every state of the tier, adopted ones and named checkpoints too, a piece of a file at a time, at no
// more than a rate, and stops between two pieces as soon as there is work. No lock is held while a file is read, and
// one that is replaced or removed meanwhile is no damage. One that is damaged is set aside (DiskTier::SetAside);
// another copy takes its place where there is one (TierStack::HandleDamage).
// Thread safety: Step for one thread; counts from any. Ownership: what it is made with must outlive it.
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
#include "base/steady_clock.h"
#include "state_store/tiers/disk_tier.h"
#include "state_store/tiers/file_check.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {

struct ScrubActivity {
  bool busy = false;  // something runs, or waits to
  int64_t work = 0;   // changes whenever something has run
};

struct DiskScrubberParts {
  DiskTier& disk;
  TierStack& tiers;
  std::function<ScrubActivity()> activity;
  // A session that goes on has lost its checkpoint on the disk.
  std::function<void(const StateKey&)> on_not_durable = [](const StateKey&) {};
};

struct DiskScrubberOptions {
  int64_t bytes_per_second = int64_t{8} << 20;   // above 0
  absl::Duration idle_after = absl::Seconds(2);  // without work, before anything is read
  absl::Duration pass_every = absl::Hours(1);    // from the begin of a pass to that of the next
  const SteadyClock* clock = &SteadyClock::Real();
};

struct ScrubCounts {
  int64_t verified_states = 0;
  int64_t verified_bytes = 0;  // read for it, damaged ones too
  // Damaged states, by what became of them (TierStack::DamageOutcome).
  int64_t copy_used = 0;
  int64_t not_durable = 0;
  int64_t lost = 0;
  absl::Time last_pass = absl::InfinitePast();  // when the last one ended
};

class DiskScrubber {
 public:
  static constexpr int64_t kPieceBytes = int64_t{256} << 10;

  DiskScrubber(DiskScrubberParts parts, const DiskScrubberOptions& options);
  DiskScrubber(const DiskScrubber&) = delete;
  DiskScrubber& operator=(const DiskScrubber&) = delete;

  // Reads a piece at most. How long to wait before the next call.
  absl::Duration Step();
  ScrubCounts counts() const;

 private:
  // How long until the server counts as idle; 0: it does.
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

  // Of the thread that calls Step.
  int64_t work_ = -1;      // as last seen
  SteadyTime idle_since_;  // nothing was seen since
  SteadyTime due_;         // by the rate
  SteadyTime next_pass_;
  bool in_pass_ = false;
  std::optional<StateKey> key_;     // of this pass the last that was begun
  std::vector<std::string> files_;  // of it, still to read; the last one first
  std::unique_ptr<FileCheck> check_;

  mutable absl::Mutex mu_;
  ScrubCounts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
