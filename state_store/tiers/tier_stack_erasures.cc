// What a TierStack erases: sessions that end, copies that are of no use any more, and what tiers still owe of both,
// with the notes of it that outlive the process.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/tier_stack.h"

namespace gdn {
namespace {

// Erasures that one call makes up for, so that no call becomes slow for those before it.
constexpr size_t kOwedPerCall = 8;

absl::Status CannotEnd(const StateKey& session, std::string_view tier) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kTierUnavailable,
                   StrCat(session.ToString(), " cannot be ended now: the ", tier,
                          " tier, which has a copy of it, cannot be reached, and there is no other durable place for a "
                          "note that it is to go. The session goes on; send the call again later"),
                   {{"tier", std::string(tier)}});
}

}  // namespace

absl::Status TierStack::Erase(const StateKey& key, bool even_unnoted) {
  EraseSomeOwed();
  Owner owner(ledger_, key);
  const StateKey session{.principal = key.principal, .id = key.id, .checkpoint = ""};
  TierLedger::TierSet erased = 0;
  TierLedger::TierSet noted = 0;
  const TierLedger::TierSet held = ledger_.TiersWith(session) | unlisted_;
  const absl::Status durable = MakeEndDurable(session, held, erased, noted);
  if (!durable.ok() && !even_unnoted) {
    for (size_t t = 0; t < tiers_.size(); ++t) {  // what these have is given up all the same
      if (((erased | noted) >> t & 1) == 0) continue;
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
      EraseOwed(t, session).IgnoreError();  // it is still owed then
    }
    ledger_.Left(t, /*wake=*/true);
  }
  return absl::OkStatus();
}

absl::Status TierStack::MakeEndDurable(const StateKey& session, TierLedger::TierSet held, TierLedger::TierSet& erased,
                                       TierLedger::TierSet& noted) {
  // Its newest states last: where the end is refused, they are still there.
  const size_t place = ledger_.PlaceOf(session);
  const size_t checkpoint = ledger_.Find(session, /*parked=*/false);
  std::vector<size_t> order;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if ((held >> t & 1) != 0 && tiers_[t]->durable()) order.push_back(t);
  }
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
    if (ErrorReason(status) == reason::kStatesTakenOver) continue;  // what is there is the other server's
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
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if ((tiers >> t & 1) != 0) note.tiers.insert(std::string(tiers_[t]->name()));
  }
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
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if ((held >> t & 1) == 0) continue;
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
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if ((tiers >> t & 1) == 0) continue;
    ledger_.DropCopy(t, key);
    if (absl::IsUnavailable(Takes(t))) continue;
    EraseOwed(t, key).IgnoreError();  // it is still owed then
  }
}

absl::Status TierStack::EraseOwed(size_t tier, const StateKey& key) {
  for (const TierLedger::Debt& debt : ledger_.Owed(tier, key)) {
    const absl::Status status = tiers_[tier]->Erase(debt.first, /*all=*/debt.second);
    ledger_.Note(tier, key, status);
    GDN_RETURN_IF_ERROR(status);
    // Gone before the tier takes a new session of the name, which a note would have erased.
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
