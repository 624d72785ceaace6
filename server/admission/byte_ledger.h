// Counts how many of the server's bytes each caller holds, and decides who may hold more.
//
// Memory of calls, of copies of states and of stored replies, and the sessions on the device and in each tier, are
// charged to the *account* of their caller, in the *pool* that they come from. A pool may have a limit, which its
// accounts share by weight. An account within its share may use everything that is free. An account over its share must
// leave `headroom` of the limit free. So one caller may use nearly all of an idle server, a caller that comes later
// finds room at once, and under contention the accounts over their share wait. Each listed principal has an account.
// All other callers together have weight 1, which is split evenly between the addresses that they call from, so
// inventing principals gains nothing. An account may have quotas (quota_limits.h), which it cannot exceed even if more
// is free. There may also be quotas for all accounts together. Sessions and named checkpoints are counted in pools too.
// Tokens of steps are limited by rate.
// Thread safety: safe from any thread. A waiting flow that gets its charge is posted to its executor outside the lock.
// Ownership: accounts and charges may outlive calls and sessions, but not the ledger.
//
//   ByteLedger ledger({.pools = {{BytePool::kCalls, {.limit_bytes = int64_t{1} << 30}}}});
//   const ByteAccountPtr account = ledger.AccountOf(principal, "ipv4:10.0.0.7:41236");
//   GDN_ASSIGN_OR_RETURN(ByteCharge charge, ledger.TryCharge(BytePool::kCalls, account, bytes));
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/task/deadline.h"
#include "base/task/executor.h"
#include "base/task/wait_list.h"
#include "base/task/waiter.h"
#include "base/threads/turn_queue.h"
#include "server/admission/quotas.h"

namespace gdn {

// Kinds of memory, and numbers of things, that accounts are charged for. Each has a pool of its own; units are bytes if
// not said otherwise.
enum class BytePool : uint8_t {
  kCalls,    // messages of calls that wait or run, and their replies
  kCopies,   // temporary copies of states: exports, imports, checkpoints, moves to and from the device
  kReplies,  // outputs of replies that are stored so that a retry gets them
  kStates,   // sessions and named checkpoints, by the size of their states, whichever tier holds these
  // Bytes of states (and named checkpoints) in each tier. The account furthest over its share is evicted first.
  kDevice,
  kHost,
  kDisk,
  kRedis,
  kSnapshots,  // snapshots, by the size of their states, whichever tier holds these; not in kStates
  // Counts instead of bytes:
  kSessions,
  kCheckpoints,  // named checkpoints; a session's newest checkpoint does not count
};
inline constexpr size_t kBytePools = 11;

inline constexpr int64_t kNoByteLimit = std::numeric_limits<int64_t>::max();

struct BytePoolOptions {
  int64_t limit_bytes = kNoByteLimit;
  double headroom = 0.125;  // fraction of the limit that an account over its share must leave free, 0 .. 0.5
  std::string flag = {};    // the flag that sets the limit, for error messages: "--call-bytes"
};

struct ByteLedgerOptions {
  std::map<BytePool, BytePoolOptions> pools = {};  // missing pools have no limit
};

class ByteLedger;

// One payer: a listed principal, or one address that other callers call from. Equal pointers mean the same account.
class ByteAccount {
 public:
  // Name of the account in other parts that share by account: a listed principal, or "peer ADDRESS".
  const std::string& name() const { return name_; }
  bool listed() const { return listed_; }
  // The account's turn in a queue that takes turns by account. Accounts that are not listed form one group.
  Turn turn() const {
    return {.group = listed_ ? this : nullptr, .of = this, .weight = weight_.load(std::memory_order_relaxed)};
  }
  // Returns the account's limit for a quota, in the unit that the quota's enumerator says; kNoQuota: no limit.
  int64_t quota(Quota quota) const { return quotas_.limit(quota); }

 private:
  friend class ByteLedger;
  std::string name_;
  std::string peer_;      // address of an account that is not listed; "" if it is listed
  bool metered_ = false;  // the ledger's metered_ has the account; guarded by the ledger's mutex
  bool listed_ = false;
  std::atomic<double> weight_{1};  // weight of a listed principal, else 1; changed under the ledger's mutex
  QuotaLine quotas_;
  std::array<int64_t, kBytePools> used_ = {};  // held in each pool, by BytePool; guarded by the ledger's mutex
};
using ByteAccountPtr = std::shared_ptr<ByteAccount>;

// Bytes charged to an account in a pool. The destructor gives them back, so it must run before the ledger's. It keeps
// the account alive. A default or moved-from charge is not valid and holds nothing.
class ByteCharge {
 public:
  ByteCharge() = default;
  ByteCharge(ByteCharge&& other) noexcept { *this = std::move(other); }
  ByteCharge& operator=(ByteCharge&& other) noexcept;
  ~ByteCharge() { Release(); }

  int64_t bytes() const { return bytes_; }
  bool valid() const { return account_ != nullptr; }
  const ByteAccountPtr& account() const { return account_; }
  // Adds to the charge, which must be valid. RESOURCE_EXHAUSTED as TryCharge; the charge is then unchanged.
  absl::Status TryGrow(int64_t bytes);
  // Reduces the charge to `bytes`. Does nothing if it has no more than that.
  void ShrinkTo(int64_t bytes);
  // Moves `bytes` of this charge, or all if it has fewer, to a new charge of the same account and pool, and returns
  // that. If this charge is not valid, neither is the result.
  ByteCharge Split(int64_t bytes);
  // Gives the bytes back now. The charge is not valid any more. Does nothing if it was not.
  void Release();

 private:
  friend class ByteLedger;
  ByteCharge(ByteLedger* ledger, BytePool pool, ByteAccountPtr account, int64_t bytes)
      : ledger_(ledger), pool_(pool), account_(std::move(account)), bytes_(bytes) {}

  ByteLedger* ledger_ = nullptr;
  BytePool pool_ = BytePool::kCalls;
  ByteAccountPtr account_;
  int64_t bytes_ = 0;
};

class ByteLedger {
 public:
  explicit ByteLedger(const ByteLedgerOptions& options);
  ByteLedger(const ByteLedger&) = delete;
  ByteLedger& operator=(const ByteLedger&) = delete;

  // Gives the listed principal an account of its own with this weight (above 0), or gives its account this weight.
  // Earlier charges stay with the account that they were made to.
  void List(const std::string& principal, double weight);
  // Replaces all quotas. An account that is over a new quota keeps what it has and gets no more. The keys of
  // `principals` are the names given to List; a name that is listed later gets its quotas then. `now_ns`: the clock of
  // TakeTokens.
  void SetQuotas(const QuotaSettings& quotas, int64_t now_ns);

  // Returns the account of a caller, never null: the principal's if it is listed, else that of its address. `peer`: the
  // address as gRPC gives it; "" if unknown. The port does not count, nor the lower half of an IPv6 address, because a
  // host may choose them.
  ByteAccountPtr AccountOf(std::string_view principal, std::string_view peer);

  // Charges the bytes if they fit the pool's limit, without waiting. An account that is then over its share must leave
  // the pool's headroom free. A charge to an empty pool is allowed whatever its size. RESOURCE_EXHAUSTED
  // (BYTES_EXHAUSTED: pool, needed, held, limit), or (QUOTA_EXCEEDED) if a quota of the account or of all forbids it.
  absl::StatusOr<ByteCharge> TryCharge(BytePool pool, const ByteAccountPtr& account, int64_t bytes);
  // Charges the bytes whatever the pool's limit, unless a quota forbids it: RESOURCE_EXHAUSTED (QUOTA_EXCEEDED). The
  // refusal is not counted in refusals(), because the caller may still make room; see CountRefusal.
  absl::StatusOr<ByteCharge> ChargeWithinQuota(BytePool pool, const ByteAccountPtr& account, int64_t bytes);
  // Charges the bytes whatever limits and quotas say: for memory that exists already or must not be refused.
  ByteCharge Charge(BytePool pool, const ByteAccountPtr& account, int64_t bytes);
  class ChargeAwaiter;
  // Makes the flow wait until the charge fits the pool as in TryCharge. Next is the oldest waiter of the account that
  // holds least for its share; the others wait behind it. Waiters that a quota blocks are passed over. If the account
  // holds nothing in the pool, quotas do not count. DEADLINE_EXCEEDED, CANCELLED.
  //
  //   GDN_CO_ASSIGN_OR_RETURN(ByteCharge charge, co_await ledger.WaitForCharge(pool, account, bytes, deadline));
  ChargeAwaiter WaitForCharge(BytePool pool, ByteAccountPtr account, int64_t bytes, Deadline deadline = {});

  // Takes tokens of steps from the account's rate and from the rate of all together. If either has too few now, takes
  // none and returns RESOURCE_EXHAUSTED (QUOTA_EXCEEDED), without waiting. `now_ns`: one steady clock for all calls.
  absl::Status TakeTokens(const ByteAccountPtr& account, int64_t tokens, int64_t now_ns);
  // True if TakeTokens can refuse this account's steps: the account, or all together, have a limited rate.
  bool MetersTokens(ByteAccount& account) { return account.quotas_.tokens().limited() || all_.tokens().limited(); }
  // Gives back the tokens of steps that did not happen, to both rates, at most up to their bursts.
  void GiveTokensBack(const ByteAccountPtr& account, int64_t tokens);
  // Returns the error for a quota and counts it in refusals(). Callers use it for quotas that the ledger does not
  // track.
  absl::Status RefuseQuota(const QuotaRefusal& refusal);
  // Counts a call that ended with the refusal of ChargeWithinQuota for this quota.
  void CountRefusal(Quota quota) { refusals_[static_cast<size_t>(quota)].fetch_add(1, std::memory_order_relaxed); }
  // Returns how many calls were refused because of the quota.
  int64_t refusals(Quota quota) const { return refusals_[static_cast<size_t>(quota)].load(std::memory_order_relaxed); }
  // One quota of an account that has a limit, and how much the account uses of it. kTokenBurst uses the tokens that are
  // taken and not refilled. `used` is 0 for kTokensPerSecond, kIdleTtl and kMaxLifetime.
  struct QuotaUse {
    Quota quota = Quota::kSessions;
    int64_t limit = 0;
    int64_t used = 0;
  };
  // Returns the account's own quotas that have a limit, by Quota, each with its use. `now_ns`: the clock of TakeTokens.
  std::vector<QuotaUse> QuotasOf(const ByteAccountPtr& account, int64_t now_ns) const;

  // The account's bytes divided by its share of the pool; above 1, it is over its share. The share is a part of the
  // limit, or without a limit of all bytes that are held.
  double SharesHeld(BytePool pool, const ByteAccount& account) const;

  int64_t held(BytePool pool) const;
  int64_t held(BytePool pool, const ByteAccount& account) const;
  int64_t limit(BytePool pool) const { return options_[Index(pool)].limit_bytes; }
  // Number of accounts: the listed ones, and the others that are in use.
  size_t accounts() const;
  // Usage of one account; usage() returns one for each account, in no particular order.
  struct Usage {
    std::string name;
    bool listed = false;
    double weight = 1;
    std::array<int64_t, kBytePools> held = {};   // by BytePool
    std::array<double, kBytePools> shares = {};  // SharesHeld, by BytePool
  };
  std::vector<Usage> usage() const;

 private:
  friend class ByteCharge;
  using Bytes = std::array<int64_t, kBytePools>;
  struct Pool {
    int64_t used = 0;
    int64_t peers = 0;  // number of accounts that are not listed and hold something
    WaitList waiters;   // ChargeAwaiters, the oldest first
  };
  static size_t Index(BytePool pool) { return static_cast<size_t>(pool); }

  // The account's share of the pool (0 .. 1), counted as if it held something there.
  double PartLocked(size_t pool, const ByteAccount& account) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double SharesHeldLocked(size_t pool, const ByteAccount& account) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllowsLocked(size_t pool, const ByteAccount& account, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the quota that forbids the charge, or nullopt.
  std::optional<QuotaRefusal> OverQuotaLocked(size_t pool, const ByteAccount& account, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayWaitOnLocked(size_t pool, const ChargeAwaiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<ByteAccountPtr> AccountsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void KeepMetered(const ByteAccountPtr& account, int64_t now_ns);
  void SetQuotasOf(ByteAccount& account, int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddLocked(size_t pool, ByteAccount& account, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TryAdd(BytePool pool, ByteAccount& account, int64_t bytes);
  void GiveBack(BytePool pool, ByteAccount& account, int64_t bytes);
  // Makes the change under the mutex, then resumes the pool's waiters that it admits.
  void Change(BytePool pool, absl::FunctionRef<void()> change);
  // Returns the waiter whose turn it is, if its charge is allowed now; else null, even if a later one would be allowed.
  ChargeAwaiter* NextWaiterLocked(size_t pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Grants the charges of all waiters that are allowed now. Their flows are put into `resumed`, for the caller to post
  // after it has released the mutex.
  void GrantLocked(size_t pool, FlowQueue& resumed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(ByteAccount* account);

  mutable absl::Mutex mu_;
  std::array<BytePoolOptions, kBytePools> options_;  // by BytePool; constant
  std::map<std::string, ByteAccountPtr, std::less<>> listed_ ABSL_GUARDED_BY(mu_);
  double weights_ ABSL_GUARDED_BY(mu_) = 1;  // sum of the listed principals' weights and 1 for all others
  std::array<Pool, kBytePools> pools_ ABSL_GUARDED_BY(mu_);
  Bytes others_ ABSL_GUARDED_BY(mu_) = {};  // held by all accounts that are not listed, by BytePool
  std::map<std::string, std::weak_ptr<ByteAccount>, std::less<>> peers_ ABSL_GUARDED_BY(mu_);
  // Accounts that are not listed, have a limited rate and have taken tokens. They are kept alive, because an account
  // that was dropped and made again would have a full bucket.
  std::vector<ByteAccountPtr> metered_ ABSL_GUARDED_BY(mu_);
  size_t metered_kept_ ABSL_GUARDED_BY(mu_) = 0;  // size of metered_ after it was last cleaned
  QuotaSettings quotas_ ABSL_GUARDED_BY(mu_);
  int64_t quotas_set_ns_ ABSL_GUARDED_BY(mu_) = 0;
  QuotaLine all_;  // quotas of all accounts together
  std::array<std::atomic<int64_t>, kQuotas> refusals_ = {};
};

// The awaiter of ByteLedger::WaitForCharge: co_await gives the charge, or the error of the wait. Must not outlive the
// ledger.
class ByteLedger::ChargeAwaiter final : public Waiter {
 public:
  absl::StatusOr<ByteCharge> await_resume();

 private:
  friend class ByteLedger;
  ChargeAwaiter(ByteLedger& ledger, BytePool pool, ByteAccountPtr account, int64_t bytes, Deadline deadline)
      : Waiter(std::move(deadline)), ledger_(ledger), pool_(pool), account_(std::move(account)), bytes_(bytes) {}
  bool Enlist() override;
  void Delist() override;

  ByteLedger& ledger_;
  const BytePool pool_;
  const ByteAccountPtr account_;
  const int64_t bytes_;
};

}  // namespace gdn
