// Wraps a durable tier so that callers get an answer even if its disk or server hangs.
//
// Each call runs on a thread of the guard while the caller waits. If that thread makes no progress for `stall_after`
// (base/threads/this_thread.h), the caller gets UNAVAILABLE (TIER_UNAVAILABLE: tier), and the call is abandoned: it
// goes on hanging on its thread. Until it ends, the guard refuses all other calls at once, without asking the tier. So
// a hang costs each caller `stall_after` at most once, the number of threads bounds the calls that hang, and no two
// calls for one key run at the same time. An abandoned Store or Erase may still take effect, as after a lost reply.
// The guard probes the tier until it answers, and refuses calls meanwhile, in two cases: the last abandoned call ends
// with UNAVAILABLE, or any call ends so after a quarter of `stall_after` or more (a timeout of its own).
// Thread safety: as StateTier. Ownership: the tier must outlive the guard; the destructor waits for calls that hang.
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
#include "base/threads/stop_signal.h"
#include "base/threads/task_queue.h"
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
  // Runs `work`, which uses the tier or its storage, like a call of the tier: returns its status, or UNAVAILABLE
  // (TIER_UNAVAILABLE: tier) if it hangs. `work` may outlive this call, so it must not refer to local variables of the
  // caller.
  absl::Status Run(std::function<absl::Status()> work);

  // These calls are not guarded: they wait for the tier. A server makes them at startup or on a thread for them alone.
  absl::StatusOr<std::vector<StoredSession>> List() override { return tier_.List(); }
  absl::StatusOr<int64_t> NextIncarnation() override { return tier_.NextIncarnation(); }
  absl::StatusOr<std::string> KeepSecret(std::string_view proposed) override { return tier_.KeepSecret(proposed); }
  absl::Status CheckClaim() override { return tier_.CheckClaim(); }
  absl::StatusOr<std::map<StateKey, std::set<std::string>>> ErasureNotes() override { return tier_.ErasureNotes(); }

  // These calls do not ask the store.
  BaseVersions KnownBases(const StateKey& key) const override { return tier_.KnownBases(key); }
  absl::Status Answers() const override;
  TierUsage usage() const override;

 private:
  struct Call {
    std::condition_variable ended;
    int thread = 0;  // number of the thread that runs the call; 0: none yet
    bool done = false;
    bool given_up = false;  // the caller has stopped waiting for it
  };
  template <typename Result, typename Ask>
  Result Guarded(Ask ask);
  // Runs `work` and returns its status; nullopt if the tier hangs already, or `work` hangs.
  std::optional<absl::Status> TryRun(std::function<absl::Status()> work);
  void Work(Call& call, const std::function<absl::Status()>& work);
  // Waits for the call. True if it has ended, false if its thread made no progress for stall_after.
  bool Await(Call& call, std::unique_lock<std::mutex>& lock) const;
  void NoteHanging();  // requires mu_
  absl::Status NoAnswer() const;

  StateTier& tier_;
  const TierGuardOptions options_;
  StopSignal stop_;
  mutable std::mutex mu_;
  int hanging_ = 0;      // abandoned calls that have not ended, or 1 for a thread that probes; guarded by mu_
  TaskQueue threads_;    // must be destroyed first, because its threads use the members above
  TaskQueue unhurried_;  // low priority, for callers that give way to others (base/threads/this_thread.h)
};

}  // namespace gdn
