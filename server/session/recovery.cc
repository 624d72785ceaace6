#include "server/session/recovery.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/count_limits.h"
#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

// Epochs of one start, which RestoreCheckpoint counts through.
constexpr int kEpochBits = 12;
// A start's own bits of its epochs, drawn: a store that was set back gives a count again, and an epoch that clients
// know must not come again with other states.
constexpr int kDrawnBits = 16;

// Of a term's: epochs that RestoreCheckpoint counts through, and bits that are drawn.
constexpr int kTermBits = 12;
constexpr int kTermDrawnBits = 8;

// The spec that the stored session fits, or why there is none.
absl::StatusOr<SessionSpec> SpecOf(const StoredSession& stored, const SpecOfModelFn& spec_of) {
  const SessionHeader& header = stored.header;
  SessionSpec spec{.model = "", .dims = header.dims, .layers = header.layers, .fingerprint = "", .family = ""};
  if (!header.model.empty()) {
    std::optional<SessionSpec> served = spec_of(header.model);
    if (!served.has_value()) {
      return MakeError(
          absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
          StrCat("models/", header.model, ", which sessions/", stored.key.id, " is of, is not served here"),
          {{"field", "model"}, {"found", header.model}, {"expected", "a model of this server"}});
    }
    spec = *std::move(served);
  }
  std::vector<int32_t> layers;
  for (const auto& [layer, extent] : stored.layers) layers.push_back(layer);
  GDN_RETURN_IF_ERROR(CheckStateFits(header, layers, spec));
  return spec;
}

// The epoch that the session comes back in.
absl::StatusOr<int64_t> EpochOf(const StoredSession& stored, std::optional<int64_t> first_epoch) {
  if (!first_epoch.has_value()) return stored.header.epoch;
  if (stored.header.epoch >= kMaxEpoch) return EpochLimit(stored.key.id, stored.header.epoch);
  return std::max(*first_epoch, stored.header.epoch + 1);
}

// By what they say; clocks only where that is equal, as in files of before changes were counted.
bool IsLater(const StoredSession& a, const StoredSession& b) {
  if (a.header.version() != b.header.version()) return a.header.version() > b.header.version();
  return a.stored_at > b.stored_at;
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
    info.calls = PrefillCalls::Other();  // files do not tell
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
                      .prefix_tokens = header.prefix_tokens},
                     std::move(layers), stored.stored_at, /*epoch_is_stored=*/!first_epoch.has_value());
  if (!adopted.valid()) {
    return MakeError(absl::StatusCode::kAborted, reason::kSessionBusy,
                     StrCat("sessions/", stored.key.id, ": another of its name was made meanwhile"),
                     {{"session", StrCat("sessions/", stored.key.id)}});
  }
  tell_tiers();
  return absl::OkStatus();
}

absl::StatusOr<Recovered> RecoverSessions(TierStack& tiers, const std::vector<StateTier*>& durable,
                                          SessionManager& sessions, LegacyPrincipals& legacy,
                                          const SpecOfModelFn& spec_of, std::optional<int64_t> first_epoch) {
  using Copy = std::pair<StoredSession, StateTier*>;
  std::map<StateKey, std::vector<Copy>> found;
  for (StateTier* tier : durable) {
    GDN_ASSIGN_OR_RETURN(std::vector<StoredSession> stored, tier->List());
    for (StoredSession& session : stored) {
      legacy.Note(session.key);
      if (tiers.IsErased(*tier, session.key)) continue;  // while the tier did not answer
      std::vector<Copy>& copies = found[session.key];
      copies.emplace_back(std::move(session), tier);
    }
  }
  Recovered recovered;
  // The newest last; the others go with the session, or once it is stored again.
  const auto adopt = [&tiers](const StateKey& key, const std::vector<Copy>& copies) {
    for (const auto& [copy, place] : std::views::reverse(copies)) {
      tiers.Adopt(key, *place, copy.bytes, copy.header.version());
    }
  };
  StateKey session;  // the last that was taken over; its named checkpoints come next
  for (auto& [key, copies] : found) {
    std::ranges::stable_sort(copies, [](const Copy& a, const Copy& b) { return IsLater(a.first, b.first); });
    if (!key.checkpoint.empty()) {
      if (key.principal == session.principal && key.id == session.id) adopt(key, copies);
      continue;
    }
    const absl::Status adopted = AdoptSession(copies.front().first, sessions, spec_of, first_epoch,
                                              [&adopt, &name = key, &all = copies] { adopt(name, all); });
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
