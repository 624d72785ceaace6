// Sessions that calls name and this server does not have: whether they are in the store, and whose they are.
//
//   nobody's     it is taken, with its state as stored: in the same epoch where it was given up in order, else in a new
//                one, so that clients send again what is missing
//   a server's   that one is asked for it, and it is taken once it has been given up
//   unknown      there is none; or, for one that is to be made, its name is taken
// What is taken is given back by the same way, one thing at a time for a session. Calls of one session share one
// attempt. Nobody's thread waits meanwhile.
// Thread safety: safe from any thread; `done` comes from any thread, maybe before Bring returns. Ownership: what it is
// made with must outlive it; on destruction every call is answered first.
//
//   arrivals.Bring(key, {.account = account, .limit = limit}, [](const absl::Status& here) { ... });
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/task_queue.h"
#include "server/admission/byte_ledger.h"
#include "server/session/recovery.h"
#include "server/session/session_manager.h"
#include "server/session/wait_limit.h"
#include "state_store/tiers/redis_tier.h"

namespace gdn {

struct SessionArrivalsParts {
  RedisTier& redis;
  RedisShare& share;
  TierStack& tiers;
  SessionManager& sessions;
  SessionEnvironment& environment;
  SpecOfModelFn spec_of;
};

struct BringRequest {
  bool make = false;  // the call makes the session where there is none
  ByteAccountPtr account;
  WaitLimit limit;
};

class SessionArrivals {
 public:
  using Done = std::function<void(const absl::Status&)>;

  // A call waits `longest_wait` at most for a server that does not hand over.
  SessionArrivals(SessionArrivalsParts parts, absl::Duration longest_wait);
  ~SessionArrivals();
  SessionArrivals(const SessionArrivals&) = delete;
  SessionArrivals& operator=(const SessionArrivals&) = delete;

  // OK where the session is here, or its name is taken for it to be made; NOT_FOUND (SESSION_NOT_FOUND) where there is
  // none. UNAVAILABLE (SESSION_ELSEWHERE: node; SERVER_DRAINING;
  // NODE_LEASE_LAPSED; TIER_UNAVAILABLE), DATA_LOSS (INVALID_STATE_FILE), errors of AdoptSession and WaitLimit::Check.
  void Bring(const StateKey& key, BringRequest request, Done done);
  // Others may have a session that is not here, whatever right to it this server has; some time later.
  void GiveBack(const StateKey& key);
  // No session is taken any more.
  void Close() { closed_ = true; }

  int64_t taken_over() const { return taken_over_; }
  int64_t replayed() const { return replayed_; }  // of those, in a new epoch
  // How many are asked for and have not come yet.
  int64_t waiting() const;

 private:
  struct Waiter {
    BringRequest request;
    Done done;
  };
  struct Arrival {
    std::vector<Waiter> waiters;
    bool give_back = false;  // first
    SteadyTime begun = SteadyTime::InfinitePast();
    SteadyTime again = SteadyTime::InfiniteFuture();  // when it is tried again; else a try is under way
    SteadyTime ask_again = SteadyTime::InfinitePast();
    absl::Duration pause = absl::ZeroDuration();
    std::string holder_name;
  };

  void Loop();
  // Answers those who do not wait any more; false where nobody does, and the arrival is gone.
  bool DropLate(const StateKey& key);
  void Post(const StateKey& key, const Turn& turn);
  void Try(const StateKey& key);
  // What came of it; nullopt: its holder has been asked.
  std::optional<absl::Status> TryOnce(const StateKey& key, bool make);
  absl::Status Adopt(const StateKey& key, const TakenSession& taken, bool make);
  void AdoptCheckpoints(const StateKey& key);
  // `made`: the name was taken, if there was none.
  void Finish(const StateKey& key, const absl::Status& status, bool made);

  const SessionArrivalsParts parts_;
  const absl::Duration longest_wait_;
  std::atomic<bool> closed_{false};
  std::atomic<int64_t> taken_over_{0}, replayed_{0};
  mutable absl::Mutex mu_;
  std::map<StateKey, Arrival> arrivals_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  TaskQueue threads_;
  std::thread timer_;  // last: it uses all of the above
};

}  // namespace gdn
