#include "state_store/tiers/tier_ledger.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr absl::Duration kLongestTrimPause = absl::Minutes(1);

}  // namespace

std::string TierNameIn(const absl::Status& error) {
  const ErrorMetadataMap metadata = ErrorMetadata(error);
  const auto tier = metadata.find("tier");
  return tier == metadata.end() ? "lower" : tier->second;
}

void TierLedger::Acquire(const StateKey& key) {
  absl::MutexLock lock(&mu_);
  while (!TryAcquire(key)) relinquished_.Wait(&mu_);
}

bool TierLedger::TryAcquire(const StateKey& key) { return owned_.emplace(key.principal, key.id).second; }

void TierLedger::Relinquish(const StateKey& key) {
  absl::MutexLock lock(&mu_);
  owned_.erase({key.principal, key.id});
  if (const auto it = entries_.find(key); it != entries_.end() && it->second.copies == 0) {
    SetPlace(it->second, kNowhere, 0);
    entries_.erase(it);
  }
  relinquished_.SignalAll();
}

TierLedger::Entry& TierLedger::EntryOf(const StateKey& key) {
  const auto [it, added] = entries_.try_emplace(key);
  it->second.key = &it->first;
  if (added && options_.holders != nullptr) it->second.holder = options_.holders->HolderOf(key);
  return it->second;
}

void TierLedger::SetCopy(size_t tier, const StateKey& key, Entry& entry, int64_t bytes,
                         std::shared_ptr<void> reserved) {
  entry.copies |= TierSet{1} << tier;
  if (options_.holders == nullptr) return;
  // The mutex is held, so nobody else can use the quota between the release and the charge.
  reserved.reset();
  entry.charges.erase(tier);
  entry.charges[tier] = {.held = options_.holders->Charge(names_[tier], key, entry.holder, bytes), .bytes = bytes};
}

absl::StatusOr<std::shared_ptr<void>> TierLedger::TakeQuota(size_t tier, const StateKey& key, int64_t bytes) {
  if (options_.holders == nullptr) return std::shared_ptr<void>();
  absl::MutexLock lock(&mu_);
  const Entry& entry = EntryOf(key);
  const auto there = entry.charges.find(tier);
  const int64_t more = std::max<int64_t>(0, bytes - (there == entry.charges.end() ? 0 : there->second.bytes));
  return options_.holders->TryCharge(names_[tier], entry.holder, more);
}

bool TierLedger::GiveWay(size_t tier, const StateKey& key) {
  if (options_.holders == nullptr) return false;
  TierHolders::Holder holder;
  {
    absl::MutexLock lock(&mu_);
    holder = EntryOf(key).holder;
  }
  return options_.holders->GiveWay(names_[tier], holder);
}

void TierLedger::AddCopy(size_t tier, const StateKey& key, const TierCopy& copy) {
  absl::MutexLock lock(&mu_);
  Entry& entry = EntryOf(key);
  if ((entry.copies >> tier & 1) == 0) SetCopy(tier, key, entry, copy.bytes);
  if (entry.versions.has_value() && copy.version.has_value()) {
    entry.versions->newest = std::max(entry.versions->newest, *copy.version);
  }
}

void TierLedger::AddNewest(size_t tier, const StateKey& key, const TierCopy& copy, std::shared_ptr<void> reserved) {
  absl::MutexLock lock(&mu_);
  Entry& entry = EntryOf(key);
  SetCopy(tier, key, entry, copy.bytes, std::move(reserved));
  if (!IsDurable(tier)) return;
  entry.checkpoint = tier;
  entry.versions.reset();
  if (copy.version.has_value()) entry.versions = Versions{.oldest = *copy.version, .newest = *copy.version};
}

std::optional<TierLedger::Versions> TierLedger::VersionsOf(const StateKey& key) const {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(key);
  return it == entries_.end() ? std::nullopt : it->second.versions;
}

bool TierLedger::HasCopy(size_t tier, const StateKey& key) const {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(key);
  return it != entries_.end() && (it->second.copies >> tier & 1) != 0;
}

std::vector<std::pair<StateKey, size_t>> TierLedger::NamedCheckpoints(const StateKey& session) const {
  absl::MutexLock lock(&mu_);
  std::vector<std::pair<StateKey, size_t>> named;
  const auto [begin, end] = SessionRange(entries_, session);
  for (auto it = begin; it != end; ++it) {
    const auto& [key, entry] = *it;
    if (key.checkpoint.empty() || entry.copies == 0) continue;
    const auto first = static_cast<size_t>(std::countr_zero(entry.copies));
    named.emplace_back(key, entry.checkpoint == kNowhere ? first : entry.checkpoint);
  }
  return named;
}

void TierLedger::DropCopy(size_t tier, const StateKey& key) {
  absl::MutexLock lock(&mu_);
  if (const auto it = entries_.find(key); it != entries_.end()) {
    Entry& entry = it->second;
    entry.copies &= ~(TierSet{1} << tier);
    entry.charges.erase(tier);
    if (entry.checkpoint == tier) entry.checkpoint = kNowhere;
  }
  Owe(tier, key, /*all=*/false);
}

TierLedger::TierSet TierLedger::Park(size_t tier, const StateKey& key, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  Entry& entry = EntryOf(key);
  SetPlace(entry, tier, bytes);
  const TierSet others = entry.copies & ~(TierSet{1} << tier);
  return IsDurable(tier) ? others : others & ~durable_tiers_;
}

TierLedger::TierSet TierLedger::MoveCheckpoint(size_t tier, const StateKey& key, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  Entry& entry = EntryOf(key);
  if (entry.place != kNowhere && IsDurable(entry.place)) SetPlace(entry, tier, bytes);
  return entry.copies & durable_tiers_ & ~(TierSet{1} << tier);
}

TierLedger::TierSet TierLedger::Unpark(const StateKey& key) {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return 0;
  SetPlace(it->second, kNowhere, 0);
  const TierSet copies = it->second.copies & ~durable_tiers_;
  if (copies != 0) ++levels_[0].leaving;
  return copies;
}

void TierLedger::DropEntries(const StateKey& session) {
  const auto [begin, end] = SessionRange(entries_, session);
  for (auto it = begin; it != end; ++it) SetPlace(it->second, kNowhere, 0);
  entries_.erase(begin, end);
}

void TierLedger::End(const StateKey& session, TierSet noted) {
  absl::MutexLock lock(&mu_);
  DropEntries(session);
  for (size_t t = 0; t < levels_.size(); ++t) {
    if ((noted >> t & 1) != 0) levels_[t].noted.insert(session);
    Owe(t, session, /*all=*/true);
    ++levels_[t].leaving;
  }
}

void TierLedger::Forget(const StateKey& session) {
  absl::MutexLock lock(&mu_);
  DropEntries(session);
  for (Level& level : levels_) {
    const auto [first, last] = SessionRange(level.owed, session);
    level.owed.erase(first, last);
    level.noted.erase(session);
  }
}

size_t TierLedger::Find(const StateKey& key, bool parked) {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return kNowhere;
  Entry& entry = it->second;
  if (!parked || entry.place == kNowhere) return entry.checkpoint;
  NoteUse(entry);
  return entry.place;
}

void TierLedger::NoteUse(Entry& entry) { levels_[entry.place].parked.Use(entry, ++uses_); }

size_t TierLedger::PlaceOf(const StateKey& key) const {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(key);
  return it == entries_.end() ? kNowhere : it->second.place;
}

void TierLedger::SetPlace(Entry& entry, size_t place, int64_t bytes) {
  if (entry.place != kNowhere) {
    levels_[entry.place].parked.Remove(entry);
    levels_[entry.place].bytes -= entry.bytes;
  }
  entry.place = place;
  entry.bytes = bytes;
  if (place == kNowhere) return;
  entry.used = ++uses_;
  levels_[place].parked.Add(entry);
  levels_[place].bytes += bytes;
}

const TierLedger::Entry* TierLedger::FirstToLeave(size_t tier, absl::FunctionRef<bool(const StateKey&)> take,
                                                  absl::FunctionRef<bool(const void*)> may_leave) {
  return levels_[tier].parked.First(
      [&](const Entry& any) -> std::optional<double> {
        if (!may_leave(any.holder.get())) return std::nullopt;
        return any.holder == nullptr ? 1 : options_.holders->SharesHeld(names_[tier], any.holder);
      },
      [&](const Entry& entry) { return take(*entry.key); });
}

TierLedger::Next TierLedger::AcquireNext(size_t tier, const std::set<StateKey>& tried, bool may_wait,
                                         const Whose& whose) {
  absl::MutexLock lock(&mu_);
  Level& level = levels_[tier];
  const void* const only = whose.like == nullptr ? nullptr : EntryOf(*whose.like).holder.get();
  const Entry* const next = FirstToLeave(
      tier,
      [&](const StateKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !tried.contains(key) && TryAcquire(key); },
      [&](const void* holder) { return (only == nullptr || holder == only) && !whose.except.contains(holder); });
  if (next != nullptr) {
    ++level.leaving;
    return {.key = *next->key, .bytes = next->bytes, .holder = next->holder.get()};
  }
  if (!may_wait || level.leaving == 0) return {};
  relinquished_.Wait(&mu_);
  return {.key = std::nullopt, .waited = true};
}

void TierLedger::Moved(size_t tier, const StateKey& key, bool moved) {
  absl::MutexLock lock(&mu_);
  --levels_[tier].leaving;
  if (!moved) NoteUse(entries_.at(key));
}

void TierLedger::Left(size_t tier, bool wake) {
  absl::MutexLock lock(&mu_);
  --levels_[tier].leaving;
  if (wake) relinquished_.SignalAll();
}

bool TierLedger::CanFree(size_t tier, int64_t bytes) const {
  absl::MutexLock lock(&mu_);
  return levels_[tier].bytes >= bytes || levels_[tier].leaving != 0;
}

std::optional<int64_t> TierLedger::NextBytes(size_t tier) {
  absl::MutexLock lock(&mu_);
  const Entry* const next = FirstToLeave(
      tier, [](const StateKey&) { return true; }, [](const void*) { return true; });
  return next == nullptr ? std::nullopt : std::optional(next->bytes);
}

void TierLedger::Owe(size_t tier, const StateKey& key, bool all) {
  std::map<StateKey, bool>& owed = levels_[tier].owed;
  const auto [begin, end] = SessionRange(owed, key);
  if (all) {
    owed.erase(begin, end);
  } else if (begin != end && begin->second) {
    return;  // an owed erasure of the whole session includes this one
  }
  if (owed.size() >= options_.max_owed_erasures && !owed.contains(key)) {
    // Noted debts are never dropped: a note without its debt would erase a later session with this name.
    const std::set<StateKey>& noted = levels_[tier].noted;
    const auto first = std::ranges::find_if(owed, [&noted](const Debt& debt) { return !noted.contains(debt.first); });
    if (first != owed.end()) owed.erase(first);
  }
  owed[key] = all;
}

void TierLedger::OweNoted(size_t tier, const StateKey& session) {
  absl::MutexLock lock(&mu_);
  levels_[tier].noted.insert(session);
  Owe(tier, session, /*all=*/true);
}

TierLedger::TierSet TierLedger::TiersWith(const StateKey& session) const {
  absl::MutexLock lock(&mu_);
  TierSet tiers = 0;
  const auto [begin, end] = SessionRange(entries_, session);
  for (auto it = begin; it != end; ++it) tiers |= it->second.copies;
  for (size_t t = 0; t < levels_.size(); ++t) {
    const auto [first, last] = SessionRange(levels_[t].owed, session);
    tiers |= static_cast<TierSet>(first != last) << t;
  }
  return tiers;
}

std::vector<TierLedger::Debt> TierLedger::Owed(size_t tier, const StateKey& session) const {
  absl::MutexLock lock(&mu_);
  const auto [begin, end] = SessionRange(levels_[tier].owed, session);
  return {begin, end};
}

bool TierLedger::Owes(size_t tier, const StateKey& key) const {
  absl::MutexLock lock(&mu_);
  return levels_[tier].owed.contains(key);
}

void TierLedger::Paid(size_t tier, const Debt& debt) {
  absl::MutexLock lock(&mu_);
  Level& level = levels_[tier];
  level.owed.erase(debt.first);
  level.noted.erase(debt.first);
  if (absl::IsResourceExhausted(level.error)) level.retry_at = SteadyTime();  // there may be space now
}

std::vector<StateKey> TierLedger::AcquireOwing(size_t tier, size_t most) {
  absl::MutexLock lock(&mu_);
  std::vector<StateKey> keys;
  for (const auto& [key, all] : levels_[tier].owed) {
    if (keys.size() == most) break;
    if (TryAcquire(key)) keys.push_back(key);
  }
  return keys;
}

absl::Status TierLedger::TakesStates(size_t tier) const {
  absl::MutexLock lock(&mu_);
  const Level& level = levels_[tier];
  return options_.clock->Now() < level.retry_at ? level.error : absl::OkStatus();
}

void TierLedger::Note(size_t tier, const StateKey& session, const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    Level& level = levels_[tier];
    if (status.ok()) {
      level.failed_for.reset();
      if (absl::IsUnavailable(level.error)) level.retry_at = SteadyTime();
    }
    if (!absl::IsUnavailable(status)) return;
    const StateKey of{.principal = session.principal, .id = session.id, .checkpoint = ""};
    if (!level.failed_for.has_value()) level.failed_for = of;
    if (*level.failed_for == of) return;
  }
  BackOff(tier, status);
}

bool TierLedger::MayTrim() const {
  absl::MutexLock lock(&mu_);
  return options_.clock->Now() >= trim_again_;
}

void TierLedger::NoteTrim(bool moved) {
  absl::MutexLock lock(&mu_);
  trim_pause_ = moved ? absl::ZeroDuration() : std::clamp(2 * trim_pause_, options_.retry_after, kLongestTrimPause);
  trim_again_ = options_.clock->Now() + trim_pause_;
}

void TierLedger::BackOff(size_t tier, const absl::Status& why) {
  const std::string shown = TierNameIn(why);
  absl::Status error =
      MakeError(why.code(), ErrorReason(why),
                StrCat("the ", shown, " tier took no states a moment ago; it is tried again soon"), {{"tier", shown}});
  absl::MutexLock lock(&mu_);
  levels_[tier].error = std::move(error);
  levels_[tier].retry_at = options_.clock->Now() + options_.retry_after;
}

}  // namespace gdn
