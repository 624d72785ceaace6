#include "server/rpc/steps/call_rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/rpc/transport/rpc_status.h"
#include "server/session/session_errors.h"

namespace gdn {

absl::Status CallRows::Find(const Caller& caller, std::vector<CallRow> rows) {
  rows_ = std::move(rows);
  absl::flat_hash_set<absl::string_view> names;
  names.reserve(rows_.size());
  for (size_t i = 0; i < rows_.size(); ++i) {
    CallRow& row = rows_[i];
    if (!names.insert({row.name.data(), row.name.size()}).second) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kDuplicateSession,
                       StrCat("row ", i, " names ", row.name, " a second time; steps of one session are serial"),
                       {{"session", std::string(row.name)}});
    }
    auto session = FindSession(parts_.common.lookup, caller, row.name);
    if (!session.ok()) GDN_RETURN_IF_ERROR(Refuse(i, session.status()));
    if (session.ok()) row.session = *std::move(session);
  }
  NoteGood();
  return absl::OkStatus();
}

void CallRows::NoteGood() {
  good_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].status.ok()) good_.push_back(i);
  }
}

std::vector<SessionAhead> CallRows::Sessions() const {
  std::vector<SessionAhead> sessions;
  sessions.reserve(good_.size());
  for (const size_t i : good_) sessions.push_back({.session = rows_[i].session, .tokens = rows_[i].ahead});
  return sessions;
}

absl::Status CallRows::TakePins(Residency::PinResults pins) {
  absl::Status refusal;
  for (size_t i = 0; i < pins.size(); ++i) {
    CallRow& row = rows_[good_[i]];
    if (pins[i].ok()) {
      row.pin = *std::move(pins[i]);
      continue;
    }
    // Another server has taken the session over meanwhile. A retry of the call goes there.
    const bool moved =
        parts_.common.lookup.fleet != nullptr && ErrorReason(pins[i].status()) == reason::kStatesTakenOver;
    refusal.Update(Refuse(good_[i], moved ? SessionMoved(row.session->id()) : pins[i].status()));
  }
  return refusal;
}

absl::Status CallRows::RowError(size_t index) const {
  const CallRow& row = rows_[index];
  if (row.status.ok()) return row.status;
  return numbered_ ? OfRow(row.status, index, row.name) : WithMetadata(row.status, "session", row.name);
}

absl::Status CallRows::Refuse(size_t index, absl::Status why) {
  rows_[index].status = std::move(why);
  return partial_ok_ ? absl::OkStatus() : RowError(index);
}

void CallRows::CheckStillOurs() {
  if (!parts_.environment.shares_sessions()) return;
  // Check the lease first: after a lapse, lost sessions are marked before the lease is valid again.
  const absl::Status ours = parts_.environment.CheckOurs();
  for (CallRow& row : rows_) {
    if (!row.status.ok() || row.session == nullptr) continue;
    row.status = ours.ok() ? row.session->CheckNotLost() : ours;
  }
}

absl::Status CallRows::Outcome() const {
  const auto bad = std::ranges::find_if(rows_, [](const CallRow& row) { return !row.status.ok(); });
  if (bad == rows_.end() || partial_ok_) return absl::OkStatus();
  std::vector<size_t> applied;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].status.ok()) applied.push_back(i);
  }
  return WithAppliedRows(RowError(static_cast<size_t>(bad - rows_.begin())), applied);
}

}  // namespace gdn
