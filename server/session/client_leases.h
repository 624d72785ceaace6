// Leases of clients: a session that was created under a lease ends when the lease does. (SessionLease, StepLease and
// NodeLease are something else: rights inside the server.)
//
// A lease ends when its grace has passed since its client's last sign of life, or when the client ends it. A lease that
// has ended is forgotten. Another lease may get its id, but keeps none of its sessions: sessions hold the object. In a
// fleet (server/fleet/fleet_leases.h) Redis has the last sign of life, because a client reaches one server and has
// sessions on several. There the fleet says when a lease ends, and EndLapsed ends none.
// Thread safety: safe from any thread. Ownership: leases are shared with their sessions and may outlive ClientLeases;
// the clock must outlive it.
//
//   ClientLeases leases(SteadyClock::Real());
//   GDN_ASSIGN_OR_RETURN(const ClientLeasePtr lease, leases.Open(account, principal, id, absl::Seconds(60)));
//   leases.Renew(principal, id);
//   leases.EndLapsed(now);  // lease->ended() is true if its grace has passed
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/threads/steady_clock.h"
#include "server/admission/byte_ledger.h"

namespace gdn {

// Most leases of one account. A client needs one for each of its processes; a lease takes less than 1 KiB.
inline constexpr int64_t kMostLeases = 1000;

class ClientLease {
 public:
  ClientLease(std::string principal, std::string id, absl::Duration grace, ByteAccountPtr account, SteadyTime end)
      : principal_(std::move(principal)), id_(std::move(id)), grace_(grace), account_(std::move(account)) {
    SetEnd(end);
  }
  ClientLease(const ClientLease&) = delete;
  ClientLease& operator=(const ClientLease&) = delete;

  const std::string& principal() const { return principal_; }
  const std::string& id() const { return id_; }
  absl::Duration grace() const { return grace_; }
  const ByteAccountPtr& account() const { return account_; }  // nullptr: made by ClientLeases::Adopt
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Returns the time when the lease ends without another sign of life, by the clock of ClientLeases.
  SteadyTime end() const { return SteadyTime::FromNanos(end_.load(std::memory_order_relaxed)); }
  int64_t sessions() const { return sessions_.load(std::memory_order_relaxed); }

 private:
  friend class ClientLeases;
  friend class CountedInLease;
  void SetEnd(SteadyTime end) { end_.store(end.ToNanos(), std::memory_order_relaxed); }

  const std::string principal_;
  const std::string id_;
  const absl::Duration grace_;
  const ByteAccountPtr account_;
  std::atomic<int64_t> end_{0};  // SteadyTime in nanoseconds
  std::atomic<bool> ended_{false};
  std::atomic<int64_t> sessions_{0};
};
using ClientLeasePtr = std::shared_ptr<ClientLease>;

// Counts a session in its lease while it lives. nullptr: there is no lease, and nothing is counted.
class CountedInLease {
 public:
  explicit CountedInLease(ClientLeasePtr lease = nullptr) : lease_(std::move(lease)) { Add(1); }
  CountedInLease(CountedInLease&& other) noexcept : lease_(std::move(other.lease_)) {}
  CountedInLease& operator=(CountedInLease&& other) noexcept {
    std::swap(lease_, other.lease_);
    return *this;
  }
  ~CountedInLease() { Add(-1); }

 private:
  void Add(int64_t count) const {
    if (lease_ != nullptr) lease_->sessions_.fetch_add(count, std::memory_order_relaxed);
  }
  ClientLeasePtr lease_;
};

class ClientLeases {
 public:
  explicit ClientLeases(const SteadyClock& clock) : clock_(clock) {}
  ClientLeases(const ClientLeases&) = delete;
  ClientLeases& operator=(const ClientLeases&) = delete;

  // Opens a lease, which ends `grace` from now. If the principal has one with this id, that is a sign of life of it: it
  // is returned, and ends `grace` from now too. ALREADY_EXISTS (LEASE_EXISTS) if that lease has another grace.
  // RESOURCE_EXHAUSTED (TOO_MANY_LEASES) if the account has kMostLeases.
  absl::StatusOr<ClientLeasePtr> Open(const ByteAccountPtr& account, const std::string& principal,
                                      const std::string& id, absl::Duration grace);
  // Notes a sign of life: the lease now ends its grace from now. NOT_FOUND (LEASE_NOT_FOUND), also if it has ended.
  absl::StatusOr<ClientLeasePtr> Renew(const std::string& principal, const std::string& id);
  // Returns the lease, which counts as no sign of life. NOT_FOUND (LEASE_NOT_FOUND), also if it has ended.
  absl::StatusOr<ClientLeasePtr> Find(const std::string& principal, const std::string& id) const;
  // Returns the lease of a session that was found in a tier or comes from another server. If this server does not know
  // the lease, it is made, without an account, and its grace begins now.
  ClientLeasePtr Adopt(const std::string& principal, const std::string& id, absl::Duration grace);
  // Ends the lease: ended() is true and its id is free. Its sessions are for the caller to end. Does nothing if it has
  // ended.
  void End(const ClientLeasePtr& lease);
  // Ends leases whose grace has passed at `now`. In a fleet (SetShared): none.
  void EndLapsed(SteadyTime now);

  // Returns at most `limit` leases of the principal with ids after `after` ("": from the first), ascending by id.
  std::vector<ClientLeasePtr> List(const std::string& principal, const std::string& after, size_t limit) const;

  // For the fleet. SetShared: from now on EndLapsed ends no lease. SetEnd: the lease ends at this time, if no later
  // sign of life is known here. All: the leases of all principals.
  void SetShared() { shared_.store(true, std::memory_order_relaxed); }
  void SetEnd(const ClientLeasePtr& lease, SteadyTime end);
  std::vector<ClientLeasePtr> All() const;

  const SteadyClock& clock() const { return clock_; }

 private:
  using Key = std::pair<std::string, std::string>;  // principal, id
  const SteadyClock& clock_;
  std::atomic<bool> shared_{false};
  mutable absl::Mutex mu_;
  std::map<Key, ClientLeasePtr> leases_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
