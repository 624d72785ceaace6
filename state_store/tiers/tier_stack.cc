#include "state_store/tiers/tier_stack.h"

#include <bit>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/tier_stack_owner.h"

namespace gdn {

namespace {

// Trimming begins above the first and ends at the second, in hundredths of the first tier's limit.
constexpr int64_t kTrimAbove = 90;
constexpr int64_t kTrimTo = 80;

int64_t Hundredths(int64_t limit, int64_t hundredths) { return limit / 100 * hundredths; }

}  // namespace

TierStack::TierStack(std::vector<StateTier*> tiers, TierStackOptions options)
    : tiers_(std::move(tiers)), options_(options), levels_(tiers_.size()) {
  for (size_t t = tiers_.size(); t-- > 0;) {
    if (tiers_[t]->durable()) durable_ = t;
  }
}

absl::Status TierStack::Park(const StateKey& key, const SessionImagePtr& image) {
  EraseSomeOwed();
  Owner owner(*this, key);
  return StoreFrom(0, key, image);
}

void TierStack::Adopt(const StateKey& key, const StateTier& tier, int64_t bytes) {
  const size_t t = IndexOf(tier);
  if (t == kNowhere) return;
  Owner owner(*this, key);
  absl::MutexLock lock(&mu_);
  Entry& entry = entries_[key];
  entry.copies |= uint32_t{1} << t;
  entry.checkpoint = t;
  if (key.checkpoint.empty()) SetPlace(key, entry, t, bytes);
}

absl::StatusOr<SessionImagePtr> TierStack::Fetch(const StateKey& key) { return FetchFrom(key, /*parked=*/true); }

absl::StatusOr<SessionImagePtr> TierStack::FetchCheckpoint(const StateKey& key) {
  return FetchFrom(key, /*parked=*/false);
}

absl::StatusOr<SessionImagePtr> TierStack::FetchFrom(const StateKey& key, bool parked) {
  Owner owner(*this, key);
  size_t from = kNowhere;
  {
    absl::MutexLock lock(&mu_);
    if (const auto it = entries_.find(key); it != entries_.end()) {
      Entry& entry = it->second;
      parked = parked && entry.place != kNowhere;
      from = parked ? entry.place : entry.checkpoint;
      if (parked) {
        std::list<StateKey>& used = levels_[entry.place].used;
        used.splice(used.end(), used, entry.used);
      }
    }
  }
  if (from != kNowhere) return LoadFrom(from, key);

  // A state that nobody told of: another server's, or one that List could not reach.
  absl::Status error = MakeError(absl::StatusCode::kNotFound,
                                 key.checkpoint.empty() ? reason::kSessionNotFound : reason::kCheckpointNotFound,
                                 StrCat("no tier has a state of ", key.ToString()));
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (!tiers_[t]->durable()) continue;
    absl::Status status = EraseOwed(t, key);
    if (status.ok()) {
      absl::StatusOr<SessionImagePtr> image = LoadFrom(t, key);
      if (image.ok()) {
        absl::MutexLock lock(&mu_);
        Entry& entry = entries_[key];
        entry.copies |= uint32_t{1} << t;
        entry.checkpoint = t;
        return image;
      }
      status = image.status();
    }
    if (absl::IsNotFound(error)) error = std::move(status);
  }
  return error;
}

void TierStack::Release(const StateKey& key) {
  Owner owner(*this, key);
  uint32_t erase = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto it = entries_.find(key);
    if (it == entries_.end()) return;
    SetPlace(key, it->second, kNowhere, 0);
    erase = it->second.copies & ~DurableTiers();
    if (erase == 0) return;
    ++levels_[0].leaving;
  }
  EraseCopies(key, erase);
  absl::MutexLock lock(&mu_);
  --levels_[0].leaving;
}

absl::StatusOr<StoreResult> TierStack::Checkpoint(const StateKey& key, const SessionImagePtr& image) {
  if (durable_ == kNowhere) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDurableTier,
                     StrCat("no checkpoint of ", key.ToString(),
                            " can be made: the server has no durable tier; start it with --disk-dir or --redis"));
  }
  EraseSomeOwed();
  Owner owner(*this, key);
  GDN_ASSIGN_OR_RETURN(const StoreResult result, StoreAt(durable_, key, image));
  uint32_t older = 0;
  {
    absl::MutexLock lock(&mu_);
    Entry& entry = entries_[key];
    older = entry.copies & DurableTiers() & ~(uint32_t{1} << durable_);
    if (entry.place != kNowhere && tiers_[entry.place]->durable()) SetPlace(key, entry, durable_, image->bytes());
  }
  EraseCopies(key, older);
  return result;
}

absl::Status TierStack::Erase(const StateKey& key) {
  EraseSomeOwed();
  Owner owner(*this, key);
  const StateKey session{.principal = key.principal, .id = key.id, .checkpoint = ""};
  {
    absl::MutexLock lock(&mu_);
    auto it = entries_.lower_bound(session);
    while (it != entries_.end() && it->first.principal == key.principal && it->first.id == key.id) {
      SetPlace(it->first, it->second, kNowhere, 0);
      it = entries_.erase(it);
    }
    for (size_t t = 0; t < tiers_.size(); ++t) {
      Owe(t, session, /*all=*/true);
      ++levels_[t].leaving;
    }
  }
  absl::Status error;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    absl::Status status = TakesStates(t);
    if (!absl::IsUnavailable(status)) status = EraseOwed(t, session);
    error.Update(status);
    absl::MutexLock lock(&mu_);
    --levels_[t].leaving;
    relinquished_.SignalAll();
  }
  return error;
}

void TierStack::Trim() {
  EraseSomeOwed();
  if (tiers_.empty() || tiers_[0]->durable()) return;
  const TierUsage host = tiers_[0]->usage();
  const int64_t keep = Hundredths(host.limit_bytes, kTrimTo);
  // What cannot be moved stays; the next Park that finds no room says why.
  if (host.limit_bytes > 0 && host.used_bytes > keep) MoveOut(0, host.used_bytes - keep).IgnoreError();
}

bool TierStack::WantsTrim() const {
  if (tiers_.empty() || tiers_[0]->durable()) return false;
  const TierUsage host = tiers_[0]->usage();
  if (host.limit_bytes == 0 || host.used_bytes <= Hundredths(host.limit_bytes, kTrimAbove)) return false;
  int64_t bytes = 0;
  {
    absl::MutexLock lock(&mu_);
    if (levels_[0].used.empty()) return false;
    bytes = entries_.at(levels_[0].used.front()).bytes;
  }
  return HasRoomFrom(1, bytes);
}

std::string TierStack::PlaceOf(const StateKey& key) const {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(key);
  if (it == entries_.end() || it->second.place == kNowhere) return "";
  return std::string(tiers_[it->second.place]->name());
}

std::vector<TierUsage> TierStack::usage() const {
  std::vector<TierUsage> usage;
  for (const StateTier* tier : tiers_) usage.push_back(tier->usage());
  return usage;
}

}  // namespace gdn
