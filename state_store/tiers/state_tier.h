// A place where sessions' states rest when they are not on the device: host memory, disk, a shared store.
//
// Thread safety: all methods from any thread; calls of one key are made one at a time. They may block on the disk or
// the network. Ownership: images are shared and never changed.
//
//   GDN_RETURN_IF_ERROR(tier.Store({.principal = "", .id = "chat-1"}, image).status());
//   GDN_ASSIGN_OR_RETURN(SessionImagePtr again, tier.Load({.principal = "", .id = "chat-1"}));
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/string_cat.h"
#include "state_store/session_image.h"

namespace gdn {

struct StateKey {
  std::string principal;   // hexadecimal digits, or "" for anonymous callers
  std::string id;          // a session id: 1 .. 128 of [A-Za-z0-9._~-]
  std::string checkpoint;  // "": the session itself; else a checkpoint id of the same characters

  friend bool operator==(const StateKey&, const StateKey&) = default;
  // NOLINTNEXTLINE(modernize-use-nullptr): there is none
  friend auto operator<=>(const StateKey&, const StateKey&) = default;
  // For messages.
  std::string ToString() const {
    return StrCat("sessions/", id, checkpoint.empty() ? "" : StrCat(" (checkpoint '", checkpoint, "')"));
  }
};

// The part of a std::map by StateKey that is the session's: its state and its checkpoints, as [first, second).
template <typename Map>
auto SessionRange(Map& map, const StateKey& key) {
  return std::pair(map.lower_bound({.principal = key.principal, .id = key.id, .checkpoint = ""}),
                   map.lower_bound({.principal = key.principal, .id = key.id + '\0', .checkpoint = ""}));
}

struct StoreResult {
  int64_t written_bytes = 0;
  bool incremental = false;  // only what changed since the Store before was written
  int64_t held_bytes = 0;    // that the tier has of the key now
};

// What a durable tier has of a session, as found by List.
struct StoredSession {
  StateKey key;
  SessionHeader header;
  std::vector<std::pair<int32_t, SlotExtent>> layers;
  std::vector<InputKind> kinds;  // parallel to layers
  absl::Time stored_at;
  int64_t bytes = 0;
};

struct TierUsage {
  std::string name;
  int64_t limit_bytes = 0;  // 0: none
  int64_t used_bytes = 0;
  int64_t sessions = 0;
  int64_t stores = 0;
  int64_t loads = 0;
  int64_t failures = 0;  // of both
  int64_t stored_bytes = 0;
  int64_t loaded_bytes = 0;
  std::string problem = {};  // why none of its states can be had for now; "": they can
};

class StateTier {
 public:
  virtual ~StateTier() = default;
  virtual std::string_view name() const = 0;  // "host", "disk", "redis"
  virtual bool durable() const = 0;           // outlives the process

  // Replaces what the key had, once the new state is whole: a reader finds the old or the new, also after a crash at
  // any moment. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where there is no room, UNAVAILABLE (TIER_UNAVAILABLE)
  // where it cannot be reached or written; the old state is still there then.
  virtual absl::StatusOr<StoreResult> Store(const StateKey& key, const SessionImagePtr& image) = 0;
  // NOT_FOUND; UNAVAILABLE (TIER_UNAVAILABLE); DATA_LOSS (INVALID_STATE_FILE: tensor) where what is there is damaged.
  virtual absl::StatusOr<SessionImagePtr> Load(const StateKey& key) = 0;
  // The key's state alone, or with `all` the session and all its checkpoints. OK where there is nothing.
  virtual absl::Status Erase(const StateKey& key, bool all) = 0;

  // Bases that the next Store of the key need not hold (LayerImage::has_base), for they are in what is there.
  virtual BaseVersions KnownBases(const StateKey& /*key*/) const { return {}; }
  // Everything that is there, named checkpoints included; what is damaged is logged, counted and passed over. For
  // durable tiers, when a server starts.
  virtual absl::StatusOr<std::vector<StoredSession>> List() = 0;

  // What is there of a key, by its header alone. Errors of Load; UNIMPLEMENTED where the tier is not durable.
  virtual absl::StatusOr<StoredSession> Describe(const StateKey& /*key*/) {
    return absl::UnimplementedError(StrCat("the ", name(), " tier does not outlive the process"));
  }

  // Counts the starts of servers on a durable store: higher than any before, and durable. UNIMPLEMENTED elsewhere.
  virtual absl::StatusOr<int64_t> NextIncarnation() {
    return absl::UnimplementedError(StrCat("the ", name(), " tier does not outlive the process"));
  }

  // The secret that is kept beside the states: the one kept before, or `proposed`, which is then. UNIMPLEMENTED
  // elsewhere.
  virtual absl::StatusOr<std::string> KeepSecret(std::string_view /*proposed*/) {
    return absl::UnimplementedError(StrCat("the ", name(), " tier does not outlive the process"));
  }

  // Whether the store is still this server's alone, as it asks there: OK; UNAVAILABLE where nobody answers;
  // FAILED_PRECONDITION (STATES_TAKEN_OVER) once another server has taken it, for good.
  virtual absl::Status CheckClaim() { return absl::OkStatus(); }

  // For each session that has ended, the tiers, this one among them, that may have copies of it yet: kept here, so that
  // a server that starts later erases them. None: there is nothing left. Durable on return; UNIMPLEMENTED where the
  // tier keeps no notes.
  virtual absl::Status SetErasureNote(const StateKey& /*session*/, const std::set<std::string>& /*tiers*/) {
    return absl::UnimplementedError(StrCat("the ", name(), " tier keeps no notes"));
  }
  virtual absl::StatusOr<std::map<StateKey, std::set<std::string>>> ErasureNotes() {
    return absl::UnimplementedError(StrCat("the ", name(), " tier keeps no notes"));
  }

  // UNAVAILABLE (TIER_UNAVAILABLE: tier) while the tier hangs, so that every call is refused at once. Asks nothing.
  virtual absl::Status Answers() const { return absl::OkStatus(); }
  // Asks the store for an answer, and changes nothing. UNAVAILABLE (TIER_UNAVAILABLE).
  virtual absl::Status Probe() { return absl::OkStatus(); }

  virtual TierUsage usage() const = 0;
};

}  // namespace gdn
