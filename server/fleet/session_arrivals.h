// Sessions that calls name and this server does not have: whether they are in the store, and whose they are.
//
//   nobody's     it is taken, with its state as stored: in the same epoch if it was given up in order, else in a new
//                one, so that clients send again what is missing
//   a server's   that one is asked for it, and it is taken once it has been given up
//   unknown      there is none; or, for one that is to be made, its name is taken
// What is taken is given back by the same way, one thing at a time for a session. Calls of one session share one
// attempt, which ends when nobody waits for it any more. Nobody's thread waits meanwhile.
// Thread safety: safe from any thread; Bring goes on at the executor that it began on. Ownership: what it is made with
// must outlive it; on destruction every call is answered first.
//
//   BringRequest request = {.account = account, .deadline = deadline};
//   const absl::Status here = co_await arrivals.Bring(key, std::move(request));
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/open_count.h"
#include "base/task/deadline.h"
#include "base/task/executor.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task_queue.h"
#include "base/turn_queue.h"
#include "server/admission/byte_ledger.h"
#include "server/session/recovery.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/redis_tier.h"

namespace gdn {

struct SessionArrivalsParts {
  RedisTier& redis;
  RedisShare& share;
  TierStack& tiers;
  SessionManager& sessions;
  SessionEnvironment& environment;
  Executor& executor;  // of the attempts, between two looks at Redis
  SpecOfModelFn spec_of;
};

struct BringRequest {
  bool make = false;  // the call makes the session if there is none
  ByteAccountPtr account;
  Deadline deadline;
};

class SessionArrivals {
 public:
  // A call waits `longest_wait` at most for a server that does not hand over.
  SessionArrivals(SessionArrivalsParts parts, absl::Duration longest_wait);
  ~SessionArrivals();
  SessionArrivals(const SessionArrivals&) = delete;
  SessionArrivals& operator=(const SessionArrivals&) = delete;

  // OK if the session is here, or its name is taken for it to be made; NOT_FOUND (SESSION_NOT_FOUND) if there is none.
  // UNAVAILABLE (SESSION_ELSEWHERE: node; SERVER_DRAINING; NODE_LEASE_LAPSED; TIER_UNAVAILABLE), DATA_LOSS
  // (INVALID_STATE_FILE), errors of AdoptSession and of the deadline.
  Task<absl::Status> Bring(StateKey key, BringRequest request);
  // Others may have a session that is not here, whatever right to it this server has; some time later.
  void GiveBack(const StateKey& key) { Join(key, nullptr); }
  // No session is taken any more.
  void Close() { closed_ = true; }

  int64_t taken_over() const { return taken_over_; }
  int64_t replayed() const { return replayed_; }  // of those, in a new epoch
  // How many are asked for and have not come yet.
  int64_t waiting() const;

 private:
  // What an attempt and the calls that wait for it share.
  struct Arrival;

  // The attempt for the session, which is begun if there is none. One that no call begins gives the session back first.
  std::shared_ptr<Arrival> Join(const StateKey& key, const BringRequest* call);
  // The attempt. Everything that is done with Redis for the session is done here, one thing after another.
  Task<void> Arrive(StateKey key, std::shared_ptr<Arrival> arrival, bool give_back);
  Turn TurnOf(const Arrival& arrival) const;
  bool Makes(const Arrival& arrival) const;
  // False if nobody waits any more. The session has no attempt then, and the caller ends.
  bool IsWanted(const StateKey& key, const Arrival& arrival);
  // Tells the calls. False if it is to be tried again for them. `made`: the name was taken, if there was none.
  bool Finish(const StateKey& key, Arrival& arrival, absl::Status status, bool made);

  // On threads that may block. Nothing: the session is here, or its name is taken. Else the server that has it.
  absl::StatusOr<std::optional<TakenSession>> Take(const StateKey& key, bool make);
  absl::Status Adopt(const StateKey& key, const TakenSession& taken, bool make);
  void AdoptCheckpoints(const StateKey& key);

  const SessionArrivalsParts parts_;
  const absl::Duration longest_wait_;
  std::atomic<bool> closed_{false};
  std::atomic<int64_t> taken_over_{0}, replayed_{0};
  mutable absl::Mutex mu_;
  std::map<StateKey, std::shared_ptr<Arrival>> arrivals_ ABSL_GUARDED_BY(mu_);
  CancelSource end_;  // of the attempts' pauses
  OpenCount calls_;   // that wait
  TaskQueue threads_;
  TaskGroup group_;  // last: its tasks use all of the above
};

}  // namespace gdn
