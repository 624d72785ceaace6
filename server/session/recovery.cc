#include "server/session/recovery.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/count_limits.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

// The spec that the stored session fits, or why there is none.
absl::StatusOr<SessionSpec> SpecOf(const StoredSession& stored, const SpecOfModelFn& spec_of) {
  const SessionHeader& header = stored.header;
  SessionSpec spec{.model = "", .dims = header.dims, .layers = header.layers, .fingerprint = "", .family = ""};
  if (!header.model.empty()) {
    std::optional<SessionSpec> served = spec_of(header.model);
    if (!served.has_value()) return absl::NotFoundError(StrCat("models/", header.model, " is not served"));
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
    info.kind = stored.kinds[static_cast<size_t>(it - stored.layers.begin())];
    info.durable_token_count = info.progress.token_count;
  }
  return infos;
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
    const auto& [stored, tier] = copies.front();
    absl::StatusOr<SessionSpec> spec = SpecOf(stored, spec_of);
    const absl::StatusOr<int64_t> epoch = spec.ok() ? EpochOf(stored, first_epoch) : spec.status();
    if (!epoch.ok()) {
      ++recovered.passed_over;
      spdlog::warn("the stored session id={} stays where it is: {}", key.id, std::string(epoch.status().message()));
      continue;
    }
    std::vector<LayerInfo> layers = LayersOf(stored, *spec);
    const SessionHeader& header = stored.header;
    const SessionLease adopted =
        sessions.Adopt({.principal = key.principal,
                        .id = key.id,
                        .spec = *std::move(spec),
                        .affinity = header.affinity,
                        .request = header.request,
                        .idle_ttl = header.idle_ttl,
                        .max_lifetime = header.max_lifetime,
                        .epoch = *epoch,
                        .changes = std::max<int64_t>(header.changes, 1),
                        .create_time = header.create_time,
                        .age = SteadyNow() - header.born},
                       std::move(layers), stored.stored_at, /*epoch_is_stored=*/!first_epoch.has_value());
    if (!adopted.valid()) {
      ++recovered.passed_over;
      spdlog::warn("the stored session id={} stays where it is: another of its name was made meanwhile", key.id);
      continue;
    }
    adopt(key, copies);
    session = key;
    ++recovered.sessions;
  }
  return recovered;
}

}  // namespace gdn
