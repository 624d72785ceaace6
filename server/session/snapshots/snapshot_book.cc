#include "server/session/snapshots/snapshot_book.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "base/random_id.h"
#include "server/session/session.h"

namespace gdn {
namespace {

// How long a snapshot that could not be ended is passed over.
constexpr absl::Duration kSnapshotStuck = absl::Seconds(1);
// Hexadecimal digits of a mark's random beginning: below 2^48, so that marks stay below 2^53.
constexpr size_t kMarkDigits = 12;

}  // namespace

SteadyTime SnapshotBook::Entry::LastUsed() const {
  const std::shared_ptr<Session> session = snapshot.lock();
  return session == nullptr ? used : session->last_used();
}

SnapshotBook::Record& SnapshotBook::RecordOf(const std::string& principal) {
  const auto [it, is_new] = records_.try_emplace(principal);
  if (is_new) {
    it->second.base = 1 + std::stol(RandomId().substr(0, kMarkDigits), nullptr, /*base=*/16);
    ShowMark(principal);
  }
  it->second.touched = ++changes_;
  return it->second;
}

void SnapshotBook::Add(const std::shared_ptr<Session>& snapshot) {
  absl::MutexLock lock(&mu_);
  const auto [it, added] = entries_.try_emplace(snapshot.get(), Entry{.snapshot = snapshot,
                                                                      .account = snapshot->account(),
                                                                      .principal = snapshot->principal(),
                                                                      .used = snapshot->last_used()});
  if (!added) return;
  order_.Add(it->second);
  ++RecordOf(snapshot->principal()).snapshots;
  TrimLosses();
}

void SnapshotBook::Remove(const Session& snapshot) {
  Entries::node_type removed;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  removed = entries_.extract(&snapshot);
  if (removed.empty()) return;
  Entry& entry = removed.mapped();
  if (entry.taken) {
    taken_.fetch_sub(1, std::memory_order_relaxed);
  } else {
    order_.Remove(entry);
  }
  if (const auto record = records_.find(entry.principal); record != records_.end()) --record->second.snapshots;
}

std::shared_ptr<Session> SnapshotBook::TakeFirst(const ByteAccount& wanted_by, int64_t bytes) {
  const auto held = static_cast<double>(ledger_.held(BytePool::kSnapshots, wanted_by));
  const double shares = ledger_.SharesHeld(BytePool::kSnapshots, wanted_by);
  const bool by_one_over = held > 0 && shares * (held + static_cast<double>(bytes)) / held > 1;
  std::shared_ptr<Session> first;
  const SteadyTime now = clock_.Now();
  absl::MutexLock lock(&mu_);
  Entry* const taken = order_.First(
      [&](const Entry& any) {
        const double its = std::max(1.0, ledger_.SharesHeld(BytePool::kSnapshots, *any.account));
        return by_one_over && any.account.get() != &wanted_by && its <= 1 ? std::nullopt : std::optional(its);
      },
      [&](const Entry& entry) {
        if (now >= entry.stuck_until) first = entry.snapshot.lock();
        return first != nullptr;
      });
  if (taken == nullptr) return nullptr;
  order_.Remove(*taken);
  taken->taken = true;
  taken_.fetch_add(1, std::memory_order_relaxed);
  return first;
}

void SnapshotBook::PutBack(const Session& snapshot) {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(&snapshot);
  if (it == entries_.end() || !it->second.taken) return;
  Entry& entry = it->second;
  entry.taken = false;
  entry.stuck_until = clock_.Now() + kSnapshotStuck;
  order_.Add(entry);
  taken_.fetch_sub(1, std::memory_order_relaxed);
}

void SnapshotBook::NoteLost(const std::string& principal, std::string_view key, SnapshotLoss::Cause cause) {
  (cause == SnapshotLoss::Cause::kEvicted ? evicted_ : damaged_).fetch_add(1, std::memory_order_relaxed);
  absl::MutexLock lock(&mu_);
  Record& record = RecordOf(principal);
  ++record.lost;
  ShowMark(principal);
  record.losses.push_back(
      {.key = std::string(key), .cause = cause, .when = absl::Now(), .mark = record.base + record.lost});
  ++all_losses_;
  if (record.losses.size() > kMostLosses) {
    record.losses.pop_front();
    --all_losses_;
  }
  TrimLosses();
}

void SnapshotBook::TrimLosses() {
  while (all_losses_ > kMostAllLosses) {
    const auto most =
        std::ranges::max_element(records_, {}, [](const auto& record) { return record.second.losses.size(); });
    // Some at once, so that the records are not searched for each loss.
    for (size_t i = 0; i < kMostLosses / 4 && !most->second.losses.empty(); ++i, --all_losses_) {
      most->second.losses.pop_front();
    }
  }
  if (records_.size() <= kMostPrincipals) return;
  // Forget the principal whose record has not changed for longest, of those without a snapshot.
  auto oldest = records_.end();
  for (auto it = records_.begin(); it != records_.end(); ++it) {
    if (it->second.snapshots > 0) continue;
    if (oldest == records_.end() || it->second.touched < oldest->second.touched) oldest = it;
  }
  if (oldest == records_.end()) return;
  all_losses_ -= oldest->second.losses.size();
  const auto forgotten = records_.extract(oldest);
  ShowMark(forgotten.key());
}

int64_t SnapshotBook::MarkLocked(std::string_view principal) const {
  const auto it = records_.find(principal);
  return it == records_.end() ? 0 : it->second.base + it->second.lost;
}

int64_t SnapshotBook::MarkOf(std::string_view principal) const {
  absl::MutexLock lock(&mu_);
  return MarkLocked(principal);
}

SnapshotMarkPtr SnapshotBook::WatchMark(const std::string& principal) {
  absl::MutexLock lock(&mu_);
  if (marks_.size() >= marks_kept_) {
    std::erase_if(marks_, [](const auto& mark) { return mark.second.expired(); });
    marks_kept_ = std::max(kFewMarks, 2 * marks_.size());
  }
  std::weak_ptr<std::atomic<int64_t>>& entry = marks_[principal];
  std::shared_ptr<std::atomic<int64_t>> mark = entry.lock();
  if (mark == nullptr) entry = mark = std::make_shared<std::atomic<int64_t>>(MarkLocked(principal));
  return mark;
}

void SnapshotBook::ShowMark(std::string_view principal) {
  const auto it = marks_.find(principal);
  if (it == marks_.end()) return;
  if (const auto mark = it->second.lock(); mark != nullptr) {
    mark->store(MarkLocked(principal), std::memory_order_relaxed);
  }
}

SnapshotBook::Losses SnapshotBook::LossesAfter(std::string_view principal, int64_t after) const {
  absl::MutexLock lock(&mu_);
  const auto it = records_.find(principal);
  if (it == records_.end()) return {.losses = {}, .incomplete = after != 0, .mark = 0};
  const Record& record = it->second;
  Losses found{.losses = {}, .incomplete = false, .mark = record.base + record.lost};
  const bool is_known = after >= record.base && after <= found.mark;
  for (const SnapshotLoss& loss : record.losses) {
    if (!is_known || loss.mark > after) found.losses.push_back(loss);
  }
  const int64_t expected = is_known ? found.mark - after : record.lost;
  found.incomplete = (after != 0 && !is_known) || static_cast<int64_t>(found.losses.size()) < expected;
  return found;
}

std::optional<SnapshotLoss::Cause> SnapshotBook::CauseOf(std::string_view principal, std::string_view key) const {
  absl::MutexLock lock(&mu_);
  const auto it = records_.find(principal);
  if (it == records_.end()) return std::nullopt;
  const std::deque<SnapshotLoss>& losses = it->second.losses;
  const auto loss = std::find_if(losses.rbegin(), losses.rend(), [key](const auto& each) { return each.key == key; });
  return loss == losses.rend() ? std::nullopt : std::optional(loss->cause);
}

int64_t SnapshotBook::size() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(entries_.size());
}

}  // namespace gdn
