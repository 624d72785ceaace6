#include "server/session/durable/recovery.h"

#include <algorithm>
#include <memory>

#include <spdlog/spdlog.h>

#include "base/count_limits.h"
#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

// The lowest bits of a start's epochs, which RestoreCheckpoint counts up.
constexpr int kEpochBits = 12;
// Random bits in a start's epochs. A store that was set back counts a number of starts twice, and an epoch that clients
// know must not return with other states.
constexpr int kDrawnBits = 16;

// The bits of a term's epochs: kTermDrawnBits of them are random, and RestoreCheckpoint counts up the others.
constexpr int kTermBits = 12;
constexpr int kTermDrawnBits = 8;

// Returns the spec that the stored session fits, or an error if there is none.
absl::StatusOr<SessionSpec> SpecOf(const StoredSession& stored, const SpecOfModelFn& spec_of) {
  const SessionHeader& header = stored.header;
  SessionSpec spec{.model = "", .dims = header.dims, .layers = header.layers, .fingerprint = "", .family = ""};
  if (!header.model.empty()) {
    std::optional<SessionSpec> served = spec_of(header.model);
    if (!served.has_value()) {
      return MakeError(
          absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
          StrCat("sessions/", stored.key.id, " needs models/", header.model,
                 ", which this server does not serve; start the server with --model ", header.model, "=PATH"),
          {{"field", "model"}, {"found", header.model}, {"expected", "a model of this server"}});
    }
    spec = *std::move(served);
  }
  std::vector<int32_t> layers;
  for (const auto& [layer, extent] : stored.layers) layers.push_back(layer);
  GDN_RETURN_IF_ERROR(CheckStateFits(header, layers, spec));
  if (!header.layers.empty()) spec.layers = header.layers;  // it may have some of the model's
  return spec;
}

// Returns the epoch in which the session comes back.
absl::StatusOr<int64_t> EpochOf(const StoredSession& stored, std::optional<int64_t> first_epoch) {
  if (!first_epoch.has_value()) return stored.header.epoch;
  if (stored.header.epoch >= kMaxEpoch) return EpochLimit(stored.key.id, stored.header.epoch);
  return std::max(*first_epoch, stored.header.epoch + 1);
}

// Compares the versions in the headers. If they are equal, compares the times.
bool IsLater(const StoredSession& a, const StoredSession& b) {
  if (a.header.version() != b.header.version()) return a.header.version() > b.header.version();
  return a.stored_at > b.stored_at;
}

// Adds the states in the tiers, except those that are to be erased.
absl::Status FindStored(const RecoveryParts& parts, const std::vector<StateTier*>& durable, HeldBack& found) {
  for (StateTier* tier : durable) {
    GDN_ASSIGN_OR_RETURN(std::vector<StoredSession> stored, tier->List());
    for (StoredSession& session : stored) {
      if (parts.tiers.IsErased(*tier, session.key)) continue;  // erased while the tier did not answer
      StoredCopies& copies = found[session.key];
      copies.emplace_back(std::move(session), tier);
    }
  }
  return absl::OkStatus();
}

// Adds the sessions in the marker, if their tier is in `listed` or `absent`.
void AddNamed(const CleanMarker& marker, const std::vector<StateTier*>& listed, const std::set<std::string>& absent,
              HeldBack& found) {
  for (const auto& [key, named] : marker.sessions) {
    const auto& tier = named.tier;
    const bool here = std::ranges::any_of(listed, [&tier](const StateTier* one) { return one->name() == tier; });
    if (here || absent.contains(tier)) found.try_emplace(key);
  }
}

bool IsOf(const StateKey& key, const StateKey& session) {
  return key.principal == session.principal && key.id == session.id;
}

// Sorts the copy with the named version first, then the latest first. Returns true if there is a copy with the named
// version.
bool SortLatestFirst(StoredCopies& copies, const CleanMarker::Copy* named) {
  const auto is_named = [named](const StoredSession& copy) {
    return named != nullptr && copy.header.version() == named->version;
  };
  std::ranges::stable_sort(copies, [&](const auto& a, const auto& b) {
    if (is_named(a.first) != is_named(b.first)) return is_named(a.first);
    return IsLater(a.first, b.first);
  });
  return !copies.empty() && is_named(copies.front().first);
}

bool IsAfter(const StoredCopies& copies, const StateVersion& version) {
  return std::ranges::any_of(copies, [&](const auto& copy) { return copy.first.header.version() > version; });
}

// Adopts the first copy last, so that it counts as the newest. The others are erased with the session, or when it is
// stored again.
void AdoptCopies(TierStack& tiers, const StateKey& key, const StoredCopies& copies) {
  for (auto last = copies.rbegin(); last != copies.rend(); ++last) {
    const auto& [copy, place] = *last;
    tiers.Adopt(key, *place, copy.bytes, copy.header.version());
  }
}

// Adds copies of a session that is served already, or of a checkpoint of it. Returns false if there is no such session.
bool AddToKnown(const RecoveryParts& parts, const StateKey& key, StoredCopies& copies, bool taken_over) {
  const StateKey of{.principal = key.principal, .id = key.id, .checkpoint = ""};
  const std::shared_ptr<Session> known = parts.sessions.Peek(of);
  if (known == nullptr) return false;
  SortLatestFirst(copies, nullptr);
  if (taken_over) {
    AdoptCopies(parts.tiers, key, copies);
    return true;
  }
  for (const auto& [copy, place] : copies) {
    if (copy.header.version().created != known->version().created) {
      spdlog::warn(
          "stored session id={} was not recovered and stays stored: a session with the same id was created meanwhile",
          key.id);
    } else if (key.checkpoint.empty() || parts.tiers.HasDurableCopy(key)) {
      parts.tiers.AddOtherCopy(key, *place, copy.bytes);
    } else {
      parts.tiers.Adopt(key, *place, copy.bytes, copy.header.version());
    }
  }
  return true;
}

}  // namespace

std::vector<LayerInfo> LayersOf(const StoredSession& stored, const SessionSpec& spec) {
  std::vector<LayerInfo> infos;
  for (const int32_t layer : spec.layers) {
    LayerInfo& info = infos.emplace_back();
    info.layer = layer;
    const auto it = std::find_if(stored.layers.begin(), stored.layers.end(),
                                 [layer](const auto& entry) { return entry.first == layer; });
    if (it == stored.layers.end()) continue;
    info.progress = it->second;
    info.calls = PrefillCalls::Other();  // files do not record them
    info.kind = stored.kinds[static_cast<size_t>(it - stored.layers.begin())];
    info.durable_token_count = info.progress.token_count;
  }
  return infos;
}

absl::StatusOr<int64_t> FirstEpoch(int64_t starts) {
  constexpr int64_t kMostStarts = kMaxEpoch >> (kEpochBits + kDrawnBits);
  if (starts >= kMostStarts) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                     StrCat("this is start ", starts, " of the durable tiers, more than the ", kMostStarts,
                            " there can be; their count of starts is damaged"));
  }
  const int64_t drawn = std::stol(RandomId().substr(0, kDrawnBits / 4), nullptr, /*base=*/16);
  return (starts << kDrawnBits | drawn) << kEpochBits;
}

absl::StatusOr<int64_t> EpochOfTerm(int64_t term) {
  if (term >= kMaxEpoch >> kTermBits) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                     StrCat("the term ", term, " is more than the ", kMaxEpoch >> kTermBits,
                            " there can be; the count of terms is damaged"));
  }
  const int64_t drawn = std::stol(RandomId().substr(0, kTermDrawnBits / 4), nullptr, /*base=*/16);
  return term << kTermBits | drawn << (kTermBits - kTermDrawnBits);
}

absl::Status AdoptSession(const StoredSession& stored, SessionManager& sessions, const SpecOfModelFn& spec_of,
                          std::optional<int64_t> first_epoch, absl::FunctionRef<void()> tell_tiers) {
  GDN_ASSIGN_OR_RETURN(SessionSpec spec, SpecOf(stored, spec_of));
  GDN_ASSIGN_OR_RETURN(const int64_t epoch, EpochOf(stored, first_epoch));
  std::vector<LayerInfo> layers = LayersOf(stored, spec);
  const SessionHeader& header = stored.header;
  ClientLeasePtr lease;
  if (!header.lease.empty()) {
    lease = sessions.leases().Adopt(stored.key.principal, header.lease, header.lease_grace);
  }
  const SessionLease adopted =
      sessions.Adopt({.principal = stored.key.principal,
                      .id = stored.key.id,
                      .spec = std::move(spec),
                      .affinity = header.affinity,
                      .request = header.request,
                      .idle_ttl = header.idle_ttl,
                      .max_lifetime = header.max_lifetime,
                      .epoch = epoch,
                      .changes = std::max<int64_t>(header.changes, 1),
                      .create_time = header.create_time,
                      .age = SteadyNow() - header.born,
                      .prefix_tokens = header.prefix_tokens,
                      .lease = std::move(lease)},
                     std::move(layers), stored.stored_at, /*epoch_is_stored=*/!first_epoch.has_value());
  if (!adopted.valid()) {
    return MakeError(absl::StatusCode::kAborted, reason::kSessionBusy,
                     StrCat("sessions/", stored.key.id, ": a session with the same id was created meanwhile"),
                     {{"session", StrCat("sessions/", stored.key.id)}});
  }
  tell_tiers();
  return absl::OkStatus();
}

absl::StatusOr<Recovered> RecoverSessions(const RecoveryParts& parts, const std::vector<StateTier*>& durable,
                                          const RecoveryEvidence& evidence, HeldBack& held_back) {
  HeldBack found = held_back;
  GDN_RETURN_IF_ERROR(FindStored(parts, durable, found));
  held_back.clear();
  if (evidence.marker != nullptr) AddNamed(*evidence.marker, durable, evidence.absent, found);
  Recovered recovered;
  StateKey session;  // the session that was taken over last; its named checkpoints come next
  StateKey held;     // or the session that was held back
  for (auto& [key, copies] : found) {
    if (AddToKnown(parts, key, copies, /*taken_over=*/IsOf(key, session))) continue;
    if (!key.checkpoint.empty()) {
      if (IsOf(key, held)) held_back[key] = std::move(copies);
      continue;
    }
    const CleanMarker::Copy* const named = evidence.marker == nullptr ? nullptr : evidence.marker->Find(key);
    const bool vouched_for = SortLatestFirst(copies, named);
    if (named != nullptr && !vouched_for) {
      if (evidence.absent.contains(named->tier) && !IsAfter(copies, named->version)) {
        held = key;
        held_back[key] = std::move(copies);
        continue;
      }
      ++recovered.set_back;
      spdlog::warn(
          "session id={}: the {} tier no longer has the state of {}, which it had when the last server stopped{}",
          key.id, named->tier, named->version.ToString(),
          copies.empty() ? "" : "; the session continues from an older state in a new epoch");
    }
    if (copies.empty()) continue;
    const absl::Status adopted =
        AdoptSession(copies.front().first, parts.sessions, parts.spec_of,
                     vouched_for ? std::nullopt : std::optional(evidence.first_epoch),
                     [&parts, &name = key, &all = copies] { AdoptCopies(parts.tiers, name, all); });
    if (!adopted.ok()) {
      ++recovered.passed_over;
      spdlog::warn("the stored session id={} stays where it is: {}", key.id, std::string(adopted.message()));
      continue;
    }
    session = key;
    ++recovered.sessions;
  }
  return recovered;
}

}  // namespace gdn
