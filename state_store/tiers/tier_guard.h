// A durable tier whose calls end though its disk or its server hangs.
//
// Each call runs on a thread of the guard, and its caller waits for it. If that thread stands still for `stall_after`
// (base/thread_pulse.h), the caller gets UNAVAILABLE (TIER_UNAVAILABLE: tier) and goes on; the call itself stays where
// it hangs. Until it ends, the guard refuses every further call at once and without asking the tier. So a tier that
// hangs costs each of its callers `stall_after` at most once, the guard's threads bound the calls that hang, and no two
// calls of one key run at the same time. A call that was given up may still do its work: as after an answer that was
// lost, whether a Store or an Erase came to pass is not known.
// If the last such call ends with UNAVAILABLE, or any call does after a wait (a time limit of its own), the guard
// probes the tier until it answers, and refuses calls meanwhile.
// Thread safety: as StateTier. Ownership: the tier must outlive it; destruction waits for calls that hang.
//
//   TierGuard guard(disk, {.stall_after = absl::Seconds(5)});
//   TierStack stack({&host, &guard});
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/stop_signal.h"
#include "base/task_queue.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

struct TierGuardOptions {
  absl::Duration stall_after = absl::Seconds(5);
  absl::Duration probe_every = absl::Seconds(1);
};

class TierGuard final : public StateTier {
 public:
  explicit TierGuard(StateTier& tier, const TierGuardOptions& options = {});
  ~TierGuard() override;

  std::string_view name() const override { return tier_.name(); }
  bool durable() const override { return tier_.durable(); }

  absl::StatusOr<StoreResult> Store(const StateKey& key, const SessionImagePtr& image) override;
  absl::StatusOr<SessionImagePtr> Load(const StateKey& key) override;
  absl::Status Erase(const StateKey& key, bool all) override;
  absl::StatusOr<StoredSession> Describe(const StateKey& key) override;
  absl::Status SetErasureNote(const StateKey& session, const std::set<std::string>& tiers) override;
  // Work of the caller's that asks the tier, or what the tier lies on. It must not refer to the caller's variables.
  absl::Status Run(std::function<absl::Status()> work);

  // Those that a server makes when it starts, or on a thread of their own, wait for the tier.
  absl::StatusOr<std::vector<StoredSession>> List() override { return tier_.List(); }
  absl::StatusOr<int64_t> NextIncarnation() override { return tier_.NextIncarnation(); }
  absl::StatusOr<std::string> KeepSecret(std::string_view proposed) override { return tier_.KeepSecret(proposed); }
  absl::Status CheckClaim() override { return tier_.CheckClaim(); }
  absl::StatusOr<std::map<StateKey, std::set<std::string>>> ErasureNotes() override { return tier_.ErasureNotes(); }

  // Nothing is asked for these.
  BaseVersions KnownBases(const StateKey& key) const override { return tier_.KnownBases(key); }
  absl::Status Answers() const override;
  TierUsage usage() const override;

 private:
  struct Call {
    std::condition_variable ended;
    int thread = 0;  // that runs it; 0: none yet
    bool done = false;
    bool given_up = false;
  };
  template <typename Result, typename Ask>
  Result Guarded(Ask ask);
  // The work's status; nullopt if the tier does not answer.
  std::optional<absl::Status> TryRun(std::function<absl::Status()> work);
  void Work(Call& call, const std::function<absl::Status()>& work);
  // Whether the call ended before its thread stood still for too long.
  bool Await(Call& call, std::unique_lock<std::mutex>& lock) const;
  void NoteHanging();  // with mu_
  absl::Status NoAnswer() const;

  StateTier& tier_;
  const TierGuardOptions options_;
  StopSignal stop_;
  mutable std::mutex mu_;
  int hanging_ = 0;      // calls that were given up and have not ended, and who probes; guarded by mu_
  TaskQueue threads_;    // last: they use all of the above
  TaskQueue unhurried_;  // for callers that give way to others (base/this_thread.h)
};

}  // namespace gdn
