#include "server/admission/byte_ledger.h"

#include <algorithm>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/admission/peer_address.h"

namespace gdn {
namespace {

// Names of the pools in errors.
constexpr std::array<std::string_view, kBytePools> kPoolNames = {
    "call", "copy", "reply", "session", "device", "host", "disk", "redis", "snapshot", "sessions", "checkpoints"};
std::string Place(BytePool pool) {
  if (pool == BytePool::kStates) return "room for sessions and named checkpoints";
  if (pool == BytePool::kDisk) return "disk";
  if (pool == BytePool::kSnapshots) return "room for snapshots";
  return StrCat(kPoolNames[static_cast<size_t>(pool)], " memory");
}

// Advice in the error for a refused caller.
std::string_view Remedy(BytePool pool) {
  if (pool == BytePool::kSnapshots) return "Delete snapshots that are of no use";
  return pool < BytePool::kStates ? "Try again once earlier calls have ended, or send less at a time"
                                  : "Delete sessions or named checkpoints that are of no use, or try again later";
}

// The share of callers that are not listed is split into at least so many parts, so that a second address finds room
// beside the first.
constexpr int64_t kFewestPeers = 2;

}  // namespace

ByteCharge& ByteCharge::operator=(ByteCharge&& other) noexcept {
  if (this != &other) {
    Release();
    ledger_ = std::exchange(other.ledger_, nullptr);
    pool_ = other.pool_;
    account_ = std::move(other.account_);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

absl::Status ByteCharge::TryGrow(int64_t bytes) {
  GDN_RETURN_IF_ERROR(ledger_->TryAdd(pool_, *account_, bytes));
  bytes_ += bytes;
  return absl::OkStatus();
}

void ByteCharge::ShrinkTo(int64_t bytes) {
  if (bytes >= bytes_) return;
  ledger_->GiveBack(pool_, *account_, bytes_ - bytes);
  bytes_ = bytes;
}

ByteCharge ByteCharge::Split(int64_t bytes) {
  if (account_ == nullptr) return ByteCharge();
  bytes = std::min(bytes, bytes_);
  bytes_ -= bytes;
  return ByteCharge(ledger_, pool_, account_, bytes);
}

void ByteCharge::Release() {
  if (account_ == nullptr) return;
  const ByteAccountPtr account = std::move(account_);  // keeps the account alive until its bytes are given back
  ledger_->GiveBack(pool_, *account, std::exchange(bytes_, 0));
}

ByteLedger::ByteLedger(const ByteLedgerOptions& options) {
  for (const auto& [pool, pool_options] : options.pools) options_[Index(pool)] = pool_options;
}

void ByteLedger::List(const std::string& principal, double weight) {
  auto account = std::make_shared<ByteAccount>();
  account->name_ = principal;
  account->listed_ = true;
  account->weight_ = weight;
  absl::MutexLock lock(&mu_);
  const auto [line, is_new] = listed_.emplace(principal, account);
  weights_ += weight - (is_new ? 0 : line->second->weight_.load());
  line->second->weight_ = weight;
  if (is_new) SetQuotasOf(*account, quotas_set_ns_);
}

ByteAccountPtr ByteLedger::AccountOf(std::string_view principal, std::string_view peer) {
  const std::string address = PeerAddress(peer);
  ByteAccountPtr account;
  absl::MutexLock lock(&mu_);
  if (const auto it = listed_.find(principal); it != listed_.end()) return it->second;
  std::weak_ptr<ByteAccount>& line = peers_[address];
  account = line.lock();
  if (account == nullptr) {
    auto made = std::make_unique<ByteAccount>();
    made->peer_ = address;
    made->name_ = StrCat("peer ", address);
    SetQuotasOf(*made, quotas_set_ns_);
    account = ByteAccountPtr(made.release(), [this](ByteAccount* ended) { Forget(ended); });
    line = account;
  }
  return account;
}

void ByteLedger::Forget(ByteAccount* account) {
  {
    absl::MutexLock lock(&mu_);
    const auto it = peers_.find(account->peer_);
    if (it != peers_.end() && it->second.expired()) peers_.erase(it);
  }
  delete account;
}

std::vector<ByteLedger::Usage> ByteLedger::usage() const {
  std::vector<ByteAccountPtr> accounts;  // destroyed after the lock, because the last owner of an account takes it
  std::vector<Usage> usage;
  absl::MutexLock lock(&mu_);
  accounts = AccountsLocked();
  for (const ByteAccountPtr& account : accounts) {
    Usage& line = usage.emplace_back(Usage{
        .name = account->name_, .listed = account->listed_, .weight = account->weight_.load(), .held = account->used_});
    for (size_t pool = 0; pool < kBytePools; ++pool) line.shares[pool] = SharesHeldLocked(pool, *account);
  }
  return usage;
}

std::vector<ByteAccountPtr> ByteLedger::AccountsLocked() const {
  std::vector<ByteAccountPtr> accounts;
  for (const auto& [name, account] : listed_) accounts.push_back(account);
  for (const auto& [address, line] : peers_) {
    if (ByteAccountPtr account = line.lock(); account != nullptr) accounts.push_back(std::move(account));
  }
  return accounts;
}

double ByteLedger::PartLocked(size_t pool, const ByteAccount& account) const {
  if (account.listed_) return account.weight_ / weights_;
  const int64_t peers = pools_[pool].peers + (account.used_[pool] == 0 ? 1 : 0);
  return 1 / weights_ / static_cast<double>(std::max(peers, kFewestPeers));
}

double ByteLedger::SharesHeldLocked(size_t pool, const ByteAccount& account) const {
  const int64_t limit = options_[pool].limit_bytes;
  const double whole = static_cast<double>(limit == kNoByteLimit ? std::max<int64_t>(pools_[pool].used, 1) : limit);
  return static_cast<double>(account.used_[pool]) / (whole * PartLocked(pool, account));
}

bool ByteLedger::AllowsLocked(size_t pool, const ByteAccount& account, int64_t bytes) const {
  const BytePoolOptions& options = options_[pool];
  const int64_t used = pools_[pool].used;
  if (options.limit_bytes == kNoByteLimit || used == 0) return true;
  if (bytes > options.limit_bytes - used) return false;
  const auto limit = static_cast<double>(options.limit_bytes);
  const bool others_within = account.listed_ || static_cast<double>(others_[pool] + bytes) <= limit / weights_;
  if (others_within && static_cast<double>(account.used_[pool] + bytes) <= limit * PartLocked(pool, account)) {
    return true;
  }
  return static_cast<double>(used + bytes) <= limit * (1 - options.headroom);
}

void ByteLedger::AddLocked(size_t pool, ByteAccount& account, int64_t bytes) {
  const bool before = account.used_[pool] > 0;
  account.used_[pool] += bytes;
  pools_[pool].used += bytes;
  if (account.listed_) return;
  others_[pool] += bytes;
  pools_[pool].peers += static_cast<int64_t>(account.used_[pool] > 0) - static_cast<int64_t>(before);
}

absl::Status ByteLedger::TryAdd(BytePool pool, ByteAccount& account, int64_t bytes) {
  const size_t p = Index(pool);
  absl::MutexLock lock(&mu_);
  if (const auto over = OverQuotaLocked(p, account, bytes); over.has_value()) return RefuseQuota(*over);
  if (AllowsLocked(p, account, bytes)) {
    AddLocked(p, account, bytes);
    return absl::OkStatus();
  }
  const BytePoolOptions& options = options_[p];
  return MakeError(
      absl::StatusCode::kResourceExhausted, reason::kBytesExhausted,
      StrCat("this needs ", bytes, " bytes of the ", Place(pool), ", of which the caller holds ", account.used_[p],
             "; the server has ", options.limit_bytes, " (", options.flag, ") for all callers. ", Remedy(pool)),
      {{"pool", std::string(kPoolNames[p])},
       {"needed", StrCat(bytes)},
       {"held", StrCat(account.used_[p])},
       {"limit", StrCat(options.limit_bytes)}});
}

absl::StatusOr<ByteCharge> ByteLedger::TryCharge(BytePool pool, const ByteAccountPtr& account, int64_t bytes) {
  GDN_RETURN_IF_ERROR(TryAdd(pool, *account, bytes));
  return ByteCharge(this, pool, account, bytes);
}

ByteCharge ByteLedger::Charge(BytePool pool, const ByteAccountPtr& account, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  AddLocked(Index(pool), *account, bytes);
  return ByteCharge(this, pool, account, bytes);
}

ByteLedger::ChargeAwaiter ByteLedger::WaitForCharge(BytePool pool, ByteAccountPtr account, int64_t bytes,
                                                    Deadline deadline) {
  return ChargeAwaiter(*this, pool, std::move(account), bytes, std::move(deadline));
}

bool ByteLedger::ChargeAwaiter::Enlist() {
  // The grant may be this waiter's, which its own thread then sees.
  ledger_.Change(pool_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_.mu_) {
    ledger_.pools_[Index(pool_)].waiters.PushBack(node_);
  });
  return true;
}

void ByteLedger::ChargeAwaiter::Delist() {
  ledger_.Change(pool_, [this] { node_.Unlink(); });  // this waiter may have held up smaller ones
}

absl::StatusOr<ByteCharge> ByteLedger::ChargeAwaiter::await_resume() {
  const WaitEnd end = Finish();
  if (end != WaitEnd::kDone) return StatusOf(end);
  return ByteCharge(&ledger_, pool_, account_, bytes_);
}

void ByteLedger::GiveBack(BytePool pool, ByteAccount& account, int64_t bytes) {
  Change(pool, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { AddLocked(Index(pool), account, -bytes); });
}

void ByteLedger::Change(BytePool pool, absl::FunctionRef<void()> change) {
  FlowQueue resumed;
  {
    absl::MutexLock lock(&mu_);
    change();
    GrantLocked(Index(pool), resumed);
  }
  resumed.PostAll();
}

ByteLedger::ChargeAwaiter* ByteLedger::NextWaiterLocked(size_t pool) {
  // The next waiter holds up the others even if its charge is not allowed yet, because otherwise large charges would
  // starve. A waiter that only its own account's quota blocks is skipped.
  ChargeAwaiter* next = nullptr;
  WaitList& waiters = pools_[pool].waiters;
  for (WaitNode* node = waiters.front(); node != nullptr; node = waiters.After(*node)) {
    auto* const waiter = static_cast<ChargeAwaiter*>(node->waiter);
    if (!MayWaitOnLocked(pool, *waiter)) continue;
    if (next == nullptr || SharesHeldLocked(pool, *waiter->account_) < SharesHeldLocked(pool, *next->account_)) {
      next = waiter;
    }
  }
  return next != nullptr && AllowsLocked(pool, *next->account_, next->bytes_) ? next : nullptr;
}

void ByteLedger::GrantLocked(size_t pool, FlowQueue& resumed) {
  while (ChargeAwaiter* const waiter = NextWaiterLocked(pool)) {
    ByteAccount& account = *waiter->account_;
    const int64_t bytes = waiter->bytes_;
    AddLocked(pool, account, bytes);
    waiter->node_.Unlink();
    const Waiter::Ending ending = waiter->End(WaitEnd::kDone);
    if (!ending.won) AddLocked(pool, account, -bytes);  // its deadline or cancellation was faster
    resumed.Push(ending.resume);
  }
}

double ByteLedger::SharesHeld(BytePool pool, const ByteAccount& account) const {
  absl::MutexLock lock(&mu_);
  return SharesHeldLocked(Index(pool), account);
}

int64_t ByteLedger::held(BytePool pool) const {
  absl::MutexLock lock(&mu_);
  return pools_[Index(pool)].used;
}

int64_t ByteLedger::held(BytePool pool, const ByteAccount& account) const {
  absl::MutexLock lock(&mu_);
  return account.used_[Index(pool)];
}

size_t ByteLedger::accounts() const {
  absl::MutexLock lock(&mu_);
  return listed_.size() + peers_.size();
}

}  // namespace gdn
