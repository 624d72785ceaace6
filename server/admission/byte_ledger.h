// Who holds how many of the server's bytes, and whether they may hold more.
//
// What calls, copies of states and stored replies take of memory, and sessions of the device and of each tier, is
// charged here, to the *account* of their caller, in the *pool* that it comes from. A pool may have a limit, which
// its accounts share by weight. The rule: what keeps an account within its share may fill it, what does not must leave
// `headroom` of it free. So an idle server gives one caller nearly all, a caller that comes later finds room at once,
// and where callers compete, those over their share wait until they are not.
// Listed principals have an account each. All others share one allowance, of weight 1, which is split evenly between
// the addresses that they call from: inventing principals gains nothing.
// An account may have quotas (quota_limits.h), which it never goes over, whatever is free; all together may too.
// Sessions and named checkpoints are counted as bytes are. Tokens of steps are taken by rate.
// Thread safety: safe from any thread; callbacks come from the thread that gave bytes back, outside any lock.
// Ownership: accounts and charges may outlive calls and sessions, not the ledger.
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
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/task/deadline.h"
#include "base/task/executor.h"
#include "base/task/wait_list.h"
#include "base/task/waiter.h"
#include "base/turn_queue.h"
#include "server/admission/quotas.h"

namespace gdn {

// What bytes are of.
enum class BytePool : uint8_t {
  kCalls,    // messages of calls that wait or run, and their replies
  kCopies,   // copies of states that are on their way: exports, imports, checkpoints, to the device and from it
  kReplies,  // outputs of stored replies
  kStates,   // sessions, each with the size of its states wherever they are, and named checkpoints
  // Where states are, named checkpoints too; whoever holds most for its share there gives way first.
  kDevice,
  kHost,
  kDisk,
  kRedis,
  // Not bytes, but how many.
  kSessions,
  kCheckpoints,  // named ones
};
inline constexpr size_t kBytePools = 10;

inline constexpr int64_t kNoByteLimit = std::numeric_limits<int64_t>::max();

struct BytePoolOptions {
  int64_t limit_bytes = kNoByteLimit;
  double headroom = 0.125;  // of the limit, 0 .. 0.5
  std::string flag = {};    // that sets the limit, for errors: "--call-bytes"
};

struct ByteLedgerOptions {
  std::map<BytePool, BytePoolOptions> pools = {};  // those that are missing have no limit
};

class ByteLedger;

// One line of the ledger. Its identity is the pointer.
class ByteAccount {
 public:
  // Who it is to others that share by account: a listed principal, or "peer ADDRESS".
  const std::string& name() const { return name_; }
  bool listed() const { return listed_; }
  // In queues whose owners take turns: those that are not listed are one group.
  Turn turn() const {
    return {.group = listed_ ? this : nullptr, .of = this, .weight = weight_.load(std::memory_order_relaxed)};
  }
  // What it may have of a quota at the most; kNoQuota where there is no limit.
  int64_t quota(Quota quota) const { return quotas_.limit(quota); }

 private:
  friend class ByteLedger;
  std::string name_;
  std::string peer_;      // of those that are not listed
  bool metered_ = false;  // in metered_ of the ledger; guarded by its mutex
  bool listed_ = false;
  std::atomic<double> weight_{1};  // of a listed principal; changed with the ledger's mutex
  QuotaLine quotas_;
  std::array<int64_t, kBytePools> used_ = {};  // guarded by the ledger's mutex
};
using ByteAccountPtr = std::shared_ptr<ByteAccount>;

// Bytes of an account in a pool; given back on destruction.
class ByteCharge {
 public:
  ByteCharge() = default;
  ByteCharge(ByteCharge&& other) noexcept { *this = std::move(other); }
  ByteCharge& operator=(ByteCharge&& other) noexcept;
  ~ByteCharge() { Release(); }

  int64_t bytes() const { return bytes_; }
  bool valid() const { return account_ != nullptr; }
  const ByteAccountPtr& account() const { return account_; }
  // RESOURCE_EXHAUSTED as of TryCharge; nothing has changed then.
  absl::Status TryGrow(int64_t bytes);
  // To `bytes`, at most what it has.
  void ShrinkTo(int64_t bytes);
  // A part of it, at most what it has, as a charge of its own.
  ByteCharge Split(int64_t bytes);
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

  // The principal has an account of its own from now on, of a weight above 0, or its account another weight. What it
  // has before stays with the account that it is of.
  void List(const std::string& principal, double weight);
  // From now on; what is over a quota stays, and no more is let in. `principals` by the names that List knows.
  void SetQuotas(const QuotaSettings& quotas, int64_t now_ns);

  // The account of a caller. `peer`: where it calls from, as gRPC says it: ports do not matter, nor the lower half of
  // an IPv6 address, which a host may choose; "" where it is not known.
  ByteAccountPtr AccountOf(std::string_view principal, std::string_view peer);

  // RESOURCE_EXHAUSTED (BYTES_EXHAUSTED: pool, needed, held, limit) where the rule above does not allow it. Where
  // nothing at all is charged it is allowed whatever its size. (QUOTA_EXCEEDED) where a quota does not.
  absl::StatusOr<ByteCharge> TryCharge(BytePool pool, const ByteAccountPtr& account, int64_t bytes);
  // What only a quota refuses (QUOTA_EXCEEDED), and whoever asks has other ways: it counts as no refusal.
  absl::StatusOr<ByteCharge> ChargeWithinQuota(BytePool pool, const ByteAccountPtr& account, int64_t bytes);
  // Whatever the limit: what is there already, or must not be refused.
  ByteCharge Charge(BytePool pool, const ByteAccountPtr& account, int64_t bytes);
  class ChargeAwaiter;
  // Waits until TryCharge would give the charge. Of those that wait, the account that holds least for its share is
  // next, and its oldest first. Those whose own quota is in the way keep nobody else waiting; a charge that is larger
  // than the quota goes alone. DEADLINE_EXCEEDED, CANCELLED.
  //
  //   GDN_CO_ASSIGN_OR_RETURN(ByteCharge charge, co_await ledger.WaitForCharge(pool, account, bytes, deadline));
  ChargeAwaiter WaitForCharge(BytePool pool, ByteAccountPtr account, int64_t bytes, Deadline deadline = {});

  // OK, or RESOURCE_EXHAUSTED (QUOTA_EXCEEDED) where the account, or all together, may not take so many tokens of steps
  // now: none is taken then. The time is of any clock that goes on.
  absl::Status TakeTokens(const ByteAccountPtr& account, int64_t tokens, int64_t now_ns);
  bool MetersTokens(ByteAccount& account) { return account.quotas_.tokens().limited() || all_.tokens().limited(); }
  // Of steps that did not happen.
  void GiveTokensBack(const ByteAccountPtr& account, int64_t tokens);
  // The error of a quota that the ledger does not count, which is counted among the refusals.
  absl::Status RefuseQuota(const QuotaRefusal& refusal);
  // A call ends with the refusal of ChargeWithinQuota for it.
  void CountRefusal(Quota quota) { refusals_[static_cast<size_t>(quota)].fetch_add(1, std::memory_order_relaxed); }
  // Calls that were refused for it.
  int64_t refusals(Quota quota) const { return refusals_[static_cast<size_t>(quota)].load(std::memory_order_relaxed); }
  // The account's quotas that have a limit, and what it has of each.
  struct QuotaUse {
    Quota quota = Quota::kSessions;
    int64_t limit = 0;
    int64_t used = 0;
  };
  std::vector<QuotaUse> QuotasOf(const ByteAccountPtr& account, int64_t now_ns) const;

  // How many shares the account holds in the pool: over 1 it holds more than its own. Its holdings are compared with
  // the limit, or where there is none with all that is held.
  double SharesHeld(BytePool pool, const ByteAccount& account) const;

  int64_t held(BytePool pool) const;
  int64_t held(BytePool pool, const ByteAccount& account) const;
  int64_t limit(BytePool pool) const { return options_[Index(pool)].limit_bytes; }
  // Accounts that somebody has, the listed ones included.
  size_t accounts() const;
  // What each of them holds, in no order.
  struct Usage {
    std::string name;
    bool listed = false;
    double weight = 1;
    std::array<int64_t, kBytePools> held = {};   // by BytePool
    std::array<double, kBytePools> shares = {};  // SharesHeld
  };
  std::vector<Usage> usage() const;

 private:
  friend class ByteCharge;
  using Bytes = std::array<int64_t, kBytePools>;
  struct Pool {
    int64_t used = 0;
    int64_t peers = 0;  // accounts that are not listed and hold something
    WaitList waiters;   // ChargeAwaiters'
  };
  static size_t Index(BytePool pool) { return static_cast<size_t>(pool); }

  // The part of the pool that is the account's, once it holds something there.
  double PartLocked(size_t pool, const ByteAccount& account) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double SharesHeldLocked(size_t pool, const ByteAccount& account) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllowsLocked(size_t pool, const ByteAccount& account, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The quota that does not allow it; nullopt.
  std::optional<QuotaRefusal> OverQuotaLocked(size_t pool, const ByteAccount& account, int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayWaitOnLocked(size_t pool, const ChargeAwaiter& waiter) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void KeepMetered(const ByteAccountPtr& account, int64_t now_ns);
  void SetQuotasOf(ByteAccount& account, int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddLocked(size_t pool, ByteAccount& account, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TryAdd(BytePool pool, ByteAccount& account, int64_t bytes);
  void GiveBack(BytePool pool, ByteAccount& account, int64_t bytes);
  // The waiter whose charge is next, if it may have it now; else null.
  ChargeAwaiter* NextWaiterLocked(size_t pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Charges all waiters that may have it; those in `resumed` go on.
  void GrantLocked(size_t pool, FlowQueue& resumed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(ByteAccount* account);

  mutable absl::Mutex mu_;
  std::array<BytePoolOptions, kBytePools> options_;  // constant
  std::map<std::string, ByteAccountPtr, std::less<>> listed_ ABSL_GUARDED_BY(mu_);
  double weights_ ABSL_GUARDED_BY(mu_) = 1;  // of the listed principals and of the others
  std::array<Pool, kBytePools> pools_ ABSL_GUARDED_BY(mu_);
  Bytes others_ ABSL_GUARDED_BY(mu_) = {};  // held by all that are not listed
  std::map<std::string, std::weak_ptr<ByteAccount>, std::less<>> peers_ ABSL_GUARDED_BY(mu_);
  // Not listed, and with tokens taken: an account that came and went would have a full bucket each time.
  std::vector<ByteAccountPtr> metered_ ABSL_GUARDED_BY(mu_);
  size_t metered_kept_ ABSL_GUARDED_BY(mu_) = 0;  // when it was last looked through
  QuotaSettings quotas_ ABSL_GUARDED_BY(mu_);
  int64_t quotas_set_ns_ ABSL_GUARDED_BY(mu_) = 0;
  QuotaLine all_;  // of all together
  std::array<std::atomic<int64_t>, kQuotas> refusals_ = {};
};

// Of ByteLedger::WaitForCharge.
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
