#include "state_store/tiers/tier_stack.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/disk/disk_space.h"

namespace gdn {
namespace {

constexpr std::array<std::string_view, 3> kNamesBySpeed = {"host", "disk", "redis"};

std::ptrdiff_t SpeedOf(std::string_view name) {
  return std::find(kNamesBySpeed.begin(), kNamesBySpeed.end(), name) - kNamesBySpeed.begin();
}

// Returns true if the next tier is to be asked after this error.
bool IsRefusal(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         ErrorReason(status) == reason::kStatesTakenOver;
}

// Most owed erasures that one call makes, so that debts of earlier calls do not make it slow.
constexpr size_t kOwedPerCall = 8;

absl::Status CannotEnd(const StateKey& session, std::string_view tier) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kTierUnavailable,
                   StrCat(session.ToString(), " cannot be ended now: the ", tier,
                          " tier, which has a copy of it, cannot be reached, and there is no other durable place for a "
                          "note that it is to go. The session goes on; send the call again later"),
                   {{"tier", std::string(tier)}});
}

// Trimming begins above kTrimAbove and ends at kTrimTo, in percent of the first tier's limit.
constexpr int64_t kTrimAbove = 90;
constexpr int64_t kTrimTo = 80;
// If so many states cannot be moved although the tiers below take states, a call gives up making space.
constexpr size_t kMostStuck = 4;

// Makes the error for a caller if another session's state could not be moved. It does not say whose state that was.
absl::Status CannotMove(const absl::Status& why) {
  const std::string name = TierNameIn(why);
  return MakeError(absl::StatusCode::kUnavailable, reason::kTierUnavailable,
                   StrCat("no room could be made in host memory or on disk, for the ", name, " tier took no states"),
                   {{"tier", name}});
}

int64_t Hundredths(int64_t limit, int64_t hundredths) { return limit / 100 * hundredths; }

std::vector<size_t> TiersIn(TierLedger::TierSet set) {
  std::vector<size_t> tiers;
  for (size_t t = 0; set >> t != 0; ++t) {
    if ((set >> t & 1) != 0) tiers.push_back(t);
  }
  return tiers;
}

TierLedger::TierSet SetOfDurable(const std::vector<StateTier*>& tiers) {
  TierLedger::TierSet durable = 0;
  for (size_t t = 0; t < tiers.size(); ++t) durable |= static_cast<TierLedger::TierSet>(tiers[t]->durable()) << t;
  return durable;
}

std::vector<std::string> NamesOf(const std::vector<StateTier*>& tiers) {
  std::vector<std::string> names;
  for (const StateTier* tier : tiers) names.emplace_back(tier->name());
  return names;
}

size_t FirstDurable(const std::vector<StateTier*>& tiers) {
  const auto it = std::find_if(tiers.begin(), tiers.end(), [](const StateTier* tier) { return tier->durable(); });
  return it == tiers.end() ? TierLedger::kNowhere : static_cast<size_t>(it - tiers.begin());
}

absl::Status RolledBack(std::string_view tier, const StateKey& key, const TierLedger::Versions& known,
                        const std::optional<StateVersion>& found) {
  const std::string what = found.has_value() ? found->ToString() : "nothing";
  return MakeError(
      absl::StatusCode::kDataLoss, reason::kStateRolledBack,
      StrCat("the ", tier, " tier was set back: of ", key.ToString(), " it had ", known.oldest.ToString(),
             ", and now has ", what,
             found.has_value() ? "; RestoreCheckpoint goes on from that under a new epoch, and its token "
                                 "counts say which inputs to send again"
                               : "; if the session has a named checkpoint, restore it with RestoreCheckpoint; "
                                 "otherwise delete the session and create it again"),
      {{"tier", std::string(tier)}, {"known", known.oldest.ToString()}, {"found", what}});
}

// Makes the error for a state that is later than any that this server has stored there.
absl::Status WrittenByOthers(std::string_view tier, const StateKey& key, const TierLedger::Versions& known,
                             const StateVersion& found) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, reason::kStatesTakenOver,
      StrCat("another server has written the state of ", key.ToString(), " in the ", tier, " tier: ", found.ToString(),
             ", where this one stored ", known.newest.ToString(), "; call the server that has it now"),
      {{"tier", std::string(tier)}, {"known", known.newest.ToString()}, {"found", found.ToString()}});
}

}  // namespace

TierStack::TierStack(std::vector<StateTier*> tiers, const TierLedgerOptions& options)
    : tiers_(std::move(tiers)),
      durable_(FirstDurable(tiers_)),
      ledger_(NamesOf(tiers_), SetOfDurable(tiers_), options) {}

absl::Status TierStack::Park(const StateKey& key, const SessionImagePtr& image, size_t fastest) {
  EraseSomeOwed();
  Owner owner(ledger_, key);
  return StoreFrom(fastest, key, image);
}

size_t TierStack::IndexOf(const StateTier& tier) const {
  // Compares names, because a guard (tier_guard.h) stands for the tier behind it.
  const auto it = std::ranges::find(tiers_, tier.name(), [](const StateTier* one) { return one->name(); });
  return it == tiers_.end() ? kNowhere : static_cast<size_t>(it - tiers_.begin());
}

bool TierStack::HasCopy(const StateTier& tier, const StateKey& key) const {
  const size_t t = IndexOf(tier);
  return t != kNowhere && ledger_.HasCopy(t, key);
}

bool TierStack::IsErased(const StateTier& tier, const StateKey& key) const {
  const size_t t = IndexOf(tier);
  return t != kNowhere && !ledger_.Owed(t, key).empty();
}

void TierStack::Adopt(const StateKey& key, const StateTier& tier, int64_t bytes, std::optional<StateVersion> version) {
  const size_t t = IndexOf(tier);
  if (t == kNowhere) return;
  Owner owner(ledger_, key);
  ledger_.AddNewest(t, key, {.bytes = bytes, .version = version});
  if (key.checkpoint.empty()) ledger_.Park(t, key, bytes);
}

void TierStack::AddOtherCopy(const StateKey& key, const StateTier& tier, int64_t bytes) {
  const size_t t = IndexOf(tier);
  if (t == kNowhere) return;
  Owner owner(ledger_, key);
  ledger_.AddCopy(t, key, {.bytes = bytes});
}

absl::StatusOr<SessionImagePtr> TierStack::FetchFrom(const StateKey& key, bool parked) {
  Owner owner(ledger_, key);
  const size_t from = ledger_.Find(key, parked);
  if (from != kNowhere) return parked ? LoadKnown(from, key) : LoadFrom(from, key);

  // Nobody has reported this state: another server wrote it, or List could not reach the tier.
  absl::Status error = MakeError(absl::StatusCode::kNotFound,
                                 key.checkpoint.empty() ? reason::kSessionNotFound : reason::kCheckpointNotFound,
                                 StrCat("no tier has a state of ", key.ToString()));
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (!tiers_[t]->durable()) continue;
    absl::Status status = EraseOwed(t, key);
    if (status.ok()) {
      absl::StatusOr<SessionImagePtr> image = LoadFrom(t, key);
      if (image.ok()) {
        ledger_.AddNewest(t, key, {.bytes = (*image)->bytes(), .version = (*image)->header.version()});
        return image;
      }
      status = image.status();
    }
    if (absl::IsNotFound(error)) error = std::move(status);
  }
  return error;
}

void TierStack::Release(const StateKey& key) {
  Owner owner(ledger_, key);
  const TierLedger::TierSet copies = ledger_.Unpark(key);
  if (copies == 0) return;
  EraseCopies(key, copies);
  ledger_.Left(0, /*wake=*/false);
}

void TierStack::Trim() {
  EraseSomeOwed();
  if (tiers_.empty() || tiers_[0]->durable()) return;
  const TierUsage host = tiers_[0]->usage();
  const int64_t keep = Hundredths(host.limit_bytes, kTrimTo);
  // States that cannot be moved stay. The next Park that finds no space returns the reason.
  if (host.limit_bytes > 0 && host.used_bytes > keep) ledger_.NoteTrim(MoveOut(0, host.used_bytes - keep).ok());
}

bool TierStack::WantsTrim() {
  if (tiers_.empty() || tiers_[0]->durable() || !ledger_.MayTrim()) return false;
  const TierUsage host = tiers_[0]->usage();
  if (host.limit_bytes == 0 || host.used_bytes <= Hundredths(host.limit_bytes, kTrimAbove)) return false;
  const std::optional<int64_t> bytes = ledger_.NextBytes(0);
  return bytes.has_value() && HasRoomFrom(1, *bytes);
}

std::string TierStack::PlaceOf(const StateKey& key) const {
  const size_t place = ledger_.PlaceOf(key);
  return place == kNowhere ? "" : std::string(tiers_[place]->name());
}

std::vector<TierUsage> TierStack::usage() const {
  std::vector<TierUsage> usage;
  for (const StateTier* tier : tiers_) usage.push_back(tier->usage());
  return usage;
}

absl::StatusOr<StoreResult> TierStack::StoreAt(size_t tier, const StateKey& key, const SessionImagePtr& image,
                                               std::shared_ptr<void> reserved) {
  GDN_RETURN_IF_ERROR(Takes(tier));
  GDN_RETURN_IF_ERROR(EraseOwed(tier, key));
  const int64_t bytes = image->bytes();
  bool again = false;
  while (true) {
    absl::StatusOr<StoreResult> result = tiers_[tier]->Store(key, image);
    ledger_.Note(tier, key, result.status());
    if (result.ok()) {
      ledger_.AddNewest(tier, key, {.bytes = result->held_bytes, .version = image->header.version()},
                        std::move(reserved));
      return result;
    }
    if (absl::IsUnavailable(result.status()) && tiers_[tier]->durable()) {
      // The tier may or may not have stored the state before it stopped answering.
      ledger_.AddCopy(tier, key, {.bytes = bytes, .version = image->header.version()});
    }
    if (!absl::IsResourceExhausted(result.status())) return result;
    if (ErrorMetadata(result.status()).contains(kWatermark)) return result;  // others use space there too
    const absl::Status room = MakeRoom(tier, bytes);
    if (room.ok()) continue;
    const TierUsage usage = tiers_[tier]->usage();
    if (usage.limit_bytes == 0 || usage.used_bytes + bytes <= usage.limit_bytes) {
      // The budget has space. Either other states have left meanwhile, or the device below is full, which only a write
      // shows.
      if (!std::exchange(again, true) && usage.limit_bytes > 0) continue;
      ledger_.BackOff(tier, result.status());
    }
    return absl::IsUnavailable(room) ? room : result.status();
  }
}

absl::Status TierStack::StoreFrom(size_t first, const StateKey& key, const SessionImagePtr& image) {
  const bool whole = image->has_all_bases();
  absl::Status unavailable, taken_over, over_quota;
  std::string full;
  for (size_t t = first; t < tiers_.size(); ++t) {
    if (!whole && t != durable_) continue;
    auto quota = TakeQuota(t, key, image->bytes());
    if (!quota.ok()) {
      over_quota.Update(quota.status());
      continue;
    }
    absl::Status status = StoreAt(t, key, image, *std::move(quota)).status();
    if (status.ok()) {
      EraseCopies(key, ledger_.Park(t, key, image->bytes()));
      return absl::OkStatus();
    }
    if (absl::IsUnavailable(status)) {
      unavailable.Update(status);
    } else if (ErrorReason(status) == reason::kStatesTakenOver) {
      taken_over.Update(status);
    } else if (absl::IsResourceExhausted(status)) {
      StrAppend(&full, "; ", tiers_[t]->name(), ": ", status.message());
    } else {
      return status;
    }
  }
  if (!unavailable.ok()) return unavailable;
  if (!taken_over.ok() && full.empty()) return taken_over;
  if (!over_quota.ok()) return over_quota;
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                   StrCat("no tier has room for the ", image->bytes(), " bytes of ", key.ToString(),
                          full.empty() ? "; the server has no further tier" : full));
}

absl::StatusOr<std::shared_ptr<void>> TierStack::TakeQuota(size_t tier, const StateKey& key, int64_t bytes) {
  std::set<StateKey> tried;
  while (true) {
    auto taken = ledger_.TakeQuota(tier, key, bytes);
    if (!taken.ok() && ledger_.GiveWay(tier, key)) continue;
    if (taken.ok() || tier + 1 == tiers_.size() || tried.size() == kMostStuck) return taken;
    const TierLedger::Next next = ledger_.AcquireNext(tier, tried, /*may_wait=*/false, {.like = &key, .except = {}});
    if (!next.key.has_value()) return taken;
    if (!MoveDown(tier, *next.key).ok()) tried.insert(*next.key);
  }
}

absl::Status TierStack::MoveDown(size_t tier, const StateKey& key) {
  Owner owner(ledger_, key, Owner::kAcquired);
  const absl::StatusOr<SessionImagePtr> image = LoadKnown(tier, key);
  absl::Status status = image.ok() ? StoreFrom(tier + 1, key, *image) : image.status();
  ledger_.Moved(tier, key, status.ok());
  return status;
}

absl::StatusOr<SessionImagePtr> TierStack::LoadFrom(size_t tier, const StateKey& key) {
  absl::StatusOr<SessionImagePtr> image = tiers_[tier]->Load(key);
  ledger_.Note(tier, key, image.status());
  return image;
}

absl::StatusOr<SessionImagePtr> TierStack::LoadKnown(size_t tier, const StateKey& key) {
  absl::StatusOr<SessionImagePtr> image = LoadFrom(tier, key);
  const std::optional<TierLedger::Versions> known = ledger_.VersionsOf(key);
  if (!tiers_[tier]->durable() || !known.has_value()) return image;
  if (absl::IsNotFound(image.status())) return RolledBack(tiers_[tier]->name(), key, *known, std::nullopt);
  if (!image.ok()) return image;
  const StateVersion found = (*image)->header.version();
  if (found < known->oldest) return RolledBack(tiers_[tier]->name(), key, *known, found);
  if (known->newest < found) return WrittenByOthers(tiers_[tier]->name(), key, *known, found);
  return image;
}

absl::Status TierStack::MakeRoom(size_t tier, int64_t bytes) {
  absl::Status none = absl::ResourceExhaustedError("no room can be made");
  const TierUsage usage = tiers_[tier]->usage();
  int64_t missing = bytes;
  if (usage.limit_bytes > 0) {
    if (bytes > usage.limit_bytes) return none;
    if (usage.used_bytes + bytes > usage.limit_bytes) missing = usage.used_bytes + bytes - usage.limit_bytes;
  }
  // If not enough space can be made, the states stay where they are.
  if (!ledger_.CanFree(tier, missing)) return none;
  return MoveOut(tier, missing);
}

absl::Status TierStack::MoveOut(size_t tier, int64_t bytes) {
  absl::Status error = absl::ResourceExhaustedError("no room can be made");
  if (tier + 1 == tiers_.size()) return error;
  int64_t moved = 0;
  std::set<StateKey> tried;
  TierLedger::Whose whose{};
  while (moved < bytes) {
    const TierLedger::Next next = ledger_.AcquireNext(tier, tried, /*may_wait=*/moved == 0, whose);
    // Others are making space here. They wait only for tiers below this one, so this ends.
    if (next.waited) return absl::OkStatus();
    if (!next.key.has_value()) break;
    const absl::Status status = MoveDown(tier, *next.key);
    if (status.ok()) {
      moved += next.bytes;
      continue;
    }
    if (ErrorReason(status) == reason::kQuotaExceeded) {  // no state of this holder can move, but those of others may
      whose.except.insert(next.holder);
      continue;
    }
    tried.insert(*next.key);
    if (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) error = status;
    if (tried.size() == kMostStuck || !TakesStatesFrom(tier + 1).ok()) break;
  }
  if (moved > 0) return absl::OkStatus();
  return absl::IsUnavailable(error) ? CannotMove(error) : error;
}

absl::Status TierStack::Takes(size_t tier) const {
  absl::Status takes = ledger_.TakesStates(tier);
  takes.Update(tiers_[tier]->Answers());
  return takes;
}

absl::Status TierStack::CanFetch(const StateKey& key) const {
  const size_t place = ledger_.PlaceOf(key);
  return place == kNowhere ? absl::OkStatus() : tiers_[place]->Answers();
}

bool TierStack::RestsInMemory(const StateKey& key) const {
  const size_t place = ledger_.PlaceOf(key);
  return place != kNowhere && !tiers_[place]->durable();
}

absl::Status TierStack::TakesStatesFrom(size_t first) const {
  absl::Status why = absl::ResourceExhaustedError("there is no further tier");
  for (size_t t = first; t < tiers_.size(); ++t) {
    const absl::Status takes = Takes(t);
    if (takes.ok()) return takes;
    if (!absl::IsUnavailable(why)) why = takes;
  }
  return why;
}

bool TierStack::HasRoomFrom(size_t first, int64_t bytes) const {
  for (size_t t = first; t < tiers_.size(); ++t) {
    const TierUsage usage = tiers_[t]->usage();
    if (usage.limit_bytes > 0 && usage.limit_bytes - usage.used_bytes < bytes) continue;
    if (Takes(t).ok()) return true;
  }
  return false;
}

// ---- Evictions by call: a caller chooses the tier.

std::optional<size_t> TierStack::NumberFrom(std::string_view name) const {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (SpeedOf(tiers_[t]->name()) >= SpeedOf(name)) return t;
  }
  return std::nullopt;
}

absl::Status TierStack::Lower(size_t fastest, const StateKey& key) {
  Owner owner(ledger_, key);
  const size_t place = ledger_.PlaceOf(key);
  if (place == kNowhere || place >= fastest) return absl::OkStatus();
  GDN_ASSIGN_OR_RETURN(const SessionImagePtr image, LoadKnown(place, key));
  return StoreFrom(fastest, key, image);
}

// ---- Durable copies: who stores a session's newest one, where it is, and its version.

absl::StatusOr<StoreResult> TierStack::Checkpoint(const StateKey& key, const SessionImagePtr& image,
                                                  const CheckpointPlaces& places) {
  if (durable_ == kNowhere) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDurableTier,
                     StrCat("no checkpoint of ", key.ToString(),
                            " can be made: the server has no durable tier; start it with --disk-dir or --redis"));
  }
  EraseSomeOwed();
  Owner owner(ledger_, key);
  const bool whole = image->has_all_bases();
  const size_t first = places.first == nullptr || !whole ? durable_ : IndexOf(*places.first);
  const size_t end = whole ? tiers_.size() : durable_ + 1;
  absl::Status refused, unavailable;
  for (size_t t = first; t < end; ++t) {
    absl::StatusOr<std::shared_ptr<void>> quota = std::shared_ptr<void>();
    if (t != first && places.within_quota) quota = TakeQuota(t, key, image->bytes());
    absl::Status status = quota.status();
    if (status.ok()) {
      absl::StatusOr<StoreResult> stored = StoreAt(t, key, image, *std::move(quota));
      if (stored.ok()) EraseCopies(key, ledger_.MoveCheckpoint(t, key, image->bytes()));
      if (!IsRefusal(stored.status())) return stored;
      status = stored.status();
    }
    if (absl::IsUnavailable(status)) unavailable.Update(status);
    refused.Update(status);
  }
  return unavailable.ok() ? refused : unavailable;
}

std::vector<StateTier*> TierStack::DurableTiers() const {
  std::vector<StateTier*> durable;
  for (StateTier* tier : tiers_) {
    if (tier->durable()) durable.push_back(tier);
  }
  return durable;
}

bool TierStack::HasDurableCopy(const StateKey& key) const {
  return std::ranges::any_of(DurableTiers(), [&](const StateTier* tier) { return HasCopy(*tier, key); });
}

BaseVersions TierStack::KnownBases(const StateKey& key) const {
  // An image without bases can go to no other tier. Owed erasures are made before it is stored.
  if (durable_ == kNowhere || !ledger_.HasCopy(durable_, key) || !Takes(durable_).ok()) return {};
  return tiers_[durable_]->KnownBases(key);
}

void TierStack::RestAtCheckpoint(const StateKey& key, int64_t bytes) {
  Owner owner(ledger_, key);
  const size_t tier = ledger_.Find(key, /*parked=*/false);
  if (tier != kNowhere) ledger_.Park(tier, key, bytes);
}

std::optional<CleanMarker::Copy> TierStack::NewestCopy(const StateKey& key) {
  Owner owner(ledger_, key);
  const size_t tier = ledger_.Find(key, /*parked=*/false);
  const std::optional<TierLedger::Versions> versions = ledger_.VersionsOf(key);
  if (tier == kNowhere || !versions.has_value() || versions->oldest != versions->newest) return std::nullopt;
  return CleanMarker::Copy{.tier = std::string(tiers_[tier]->name()), .version = versions->newest};
}

// ---- Damage: what happens to a state with a damaged copy in a durable tier.

TierStack::DamageOutcome TierStack::HandleDamage(const StateTier& tier, const StateKey& key,
                                                 absl::FunctionRef<bool()> set_aside) {
  Owner owner(ledger_, key);
  const size_t t = IndexOf(tier);
  if (t == kNowhere) return DamageOutcome::kGone;
  // A call for this key may still be running there. The next scrub finds the damage again.
  if (!tiers_[t]->Answers().ok() || !set_aside()) return DamageOutcome::kGone;
  if (!ledger_.HasCopy(t, key)) return DamageOutcome::kLost;  // the session is not here, so recovery passed it over
  if (UseOtherCopy(t, key)) return DamageOutcome::kCopyUsed;
  return key.checkpoint.empty() && ledger_.PlaceOf(key) != t ? DamageOutcome::kNotDurable : DamageOutcome::kLost;
}

bool TierStack::UseOtherCopy(size_t tier, const StateKey& key) {
  const std::optional<TierLedger::Versions> known = ledger_.VersionsOf(key);
  if (!known.has_value()) return false;  // nothing says which copy is recent enough
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (t == tier || !ledger_.HasCopy(t, key)) continue;
    const absl::StatusOr<SessionImagePtr> image = LoadFrom(t, key);
    if (!image.ok()) continue;
    const StateVersion version = (*image)->header.version();
    if (version < known->oldest || (tiers_[t]->durable() && known->newest < version)) continue;
    if (StoreAt(tier, key, *image).ok()) return true;
    if (!tiers_[t]->durable()) continue;
    ledger_.AddNewest(t, key, {.bytes = (*image)->bytes(), .version = version});
    if (ledger_.PlaceOf(key) == tier) ledger_.Park(t, key, (*image)->bytes());
    return true;
  }
  return false;
}

// ---- Erasures of ended sessions and of outdated copies. A tier may owe erasures; notes of them outlive the process.

absl::Status TierStack::Erase(const StateKey& key, bool even_unnoted) {
  EraseSomeOwed();
  Owner owner(ledger_, key);
  const StateKey session{.principal = key.principal, .id = key.id, .checkpoint = ""};
  TierLedger::TierSet erased = 0;
  TierLedger::TierSet noted = 0;
  const TierLedger::TierSet held = ledger_.TiersWith(session) | unlisted_;
  const absl::Status durable = MakeEndDurable(session, held, erased, noted);
  if (!durable.ok() && !even_unnoted) {
    for (const size_t t : TiersIn(erased | noted)) {  // these tiers give up what they have in any case
      ledger_.DropCopy(t, session);
      (noted >> t & 1) != 0 ? ledger_.OweNoted(t, session) : ledger_.Paid(t, {session, false});
    }
    return durable;
  }
  ledger_.End(session, noted);
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if ((erased >> t & 1) != 0 && DropNote(t, session).ok()) ledger_.Paid(t, {session, true});
    const bool tried = tiers_[t]->durable() && (held >> t & 1) != 0;
    if (!tried && !absl::IsUnavailable(Takes(t))) {
      EraseOwed(t, session).IgnoreError();  // if this fails, it is still owed
    }
    ledger_.Left(t, /*wake=*/true);
  }
  return absl::OkStatus();
}

absl::Status TierStack::MakeEndDurable(const StateKey& session, TierLedger::TierSet held, TierLedger::TierSet& erased,
                                       TierLedger::TierSet& noted) {
  // The newest states are erased last. If the end is refused, they are still there.
  const size_t place = ledger_.PlaceOf(session);
  const size_t checkpoint = ledger_.Find(session, /*parked=*/false);
  std::vector<size_t> order = TiersIn(held);
  std::erase_if(order, [this](size_t t) { return !tiers_[t]->durable(); });
  std::ranges::stable_sort(order, {}, [=](size_t t) { return t == place ? 2 : t == checkpoint ? 1 : 0; });
  for (const size_t t : order) {
    absl::Status status = Takes(t);
    if (!absl::IsUnavailable(status)) {
      status = tiers_[t]->Erase(session, /*all=*/true);
      ledger_.Note(t, session, status);
    }
    if (status.ok()) {
      erased |= TierLedger::TierSet{1} << t;
      continue;
    }
    if (ErrorReason(status) == reason::kStatesTakenOver) continue;  // what is there belongs to the other server
    const TierLedger::TierSet owing = noted | TierLedger::TierSet{1} << t;
    if (!Note(session, owing).ok()) return CannotEnd(session, tiers_[t]->name());
    noted = owing;
  }
  return absl::OkStatus();
}

absl::Status TierStack::Note(const StateKey& session, TierLedger::TierSet tiers) {
  ErasureNote note;
  {
    absl::MutexLock lock(&notes_mu_);
    if (const auto it = notes_.find(session); it != notes_.end()) note = it->second;
  }
  for (const size_t t : TiersIn(tiers)) note.tiers.insert(std::string(tiers_[t]->name()));
  absl::Status status = absl::UnimplementedError("no tier keeps notes");
  for (size_t t = 0; t < tiers_.size() && !status.ok(); ++t) {
    if (!tiers_[t]->durable() || (note.keeper != kNowhere && note.keeper != t)) continue;
    status = tiers_[t]->SetErasureNote(session, note.tiers);
    if (status.ok()) note.keeper = t;
  }
  GDN_RETURN_IF_ERROR(status);
  absl::MutexLock lock(&notes_mu_);
  notes_[session] = std::move(note);
  return absl::OkStatus();
}

absl::Status TierStack::DropNote(size_t tier, const StateKey& session) {
  ErasureNote note;
  {
    absl::MutexLock lock(&notes_mu_);
    const auto it = notes_.find(session);
    if (it == notes_.end()) return absl::OkStatus();
    note = it->second;
  }
  if (note.tiers.erase(std::string(tiers_[tier]->name())) == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(tiers_[note.keeper]->SetErasureNote(session, note.tiers));
  absl::MutexLock lock(&notes_mu_);
  note.tiers.empty() ? void(notes_.erase(session)) : void(notes_[session] = std::move(note));
  return absl::OkStatus();
}

void TierStack::Forget(const StateKey& session) {
  Owner owner(ledger_, session);
  const TierLedger::TierSet held = ledger_.TiersWith(session);
  ledger_.Forget(session);
  for (const size_t t : TiersIn(held)) {
    if (!tiers_[t]->durable()) tiers_[t]->Erase(session, /*all=*/true).IgnoreError();  // memory, which cannot fail
  }
}

absl::Status TierStack::LoadErasureNotes() {
  for (size_t keeper = 0; keeper < tiers_.size(); ++keeper) {
    if (!tiers_[keeper]->durable()) continue;
    auto found = tiers_[keeper]->ErasureNotes();
    if (absl::IsUnimplemented(found.status())) continue;
    GDN_RETURN_IF_ERROR(found.status());
    for (const auto& [session, tiers] : *found) {
      for (size_t t = 0; t < tiers_.size(); ++t) {
        if (tiers.contains(std::string(tiers_[t]->name()))) ledger_.OweNoted(t, session);
      }
      absl::MutexLock lock(&notes_mu_);
      notes_[session] = {.keeper = keeper, .tiers = tiers};
    }
  }
  return absl::OkStatus();
}

void TierStack::SetUnlisted(const StateTier& tier, bool unlisted) {
  const size_t t = IndexOf(tier);
  if (t == kNowhere) return;
  const TierLedger::TierSet bit = TierLedger::TierSet{1} << t;
  unlisted ? unlisted_ |= bit : unlisted_ &= ~bit;
}

void TierStack::EraseCopies(const StateKey& key, TierLedger::TierSet tiers) {
  for (const size_t t : TiersIn(tiers)) {
    ledger_.DropCopy(t, key);
    if (absl::IsUnavailable(Takes(t))) continue;
    EraseOwed(t, key).IgnoreError();  // if this fails, it is still owed
  }
}

absl::Status TierStack::EraseOwed(size_t tier, const StateKey& key) {
  for (const TierLedger::Debt& debt : ledger_.Owed(tier, key)) {
    const absl::Status status = tiers_[tier]->Erase(debt.first, /*all=*/debt.second);
    ledger_.Note(tier, key, status);
    GDN_RETURN_IF_ERROR(status);
    // The note is dropped before the tier stores a new session with this name, because the note would erase that
    // session.
    if (debt.second) GDN_RETURN_IF_ERROR(DropNote(tier, debt.first));
    ledger_.Paid(tier, debt);
  }
  return absl::OkStatus();
}

void TierStack::EraseSomeOwed() {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (absl::IsUnavailable(Takes(t))) continue;
    bool reached = true;
    for (const StateKey& key : ledger_.AcquireOwing(t, kOwedPerCall)) {
      Owner owner(ledger_, key, Owner::kAcquired);
      if (reached) reached = EraseOwed(t, key).ok();
    }
  }
}

}  // namespace gdn
