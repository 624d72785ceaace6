// Interface of a tier: a place for sessions' states that are not on a device. Host memory, disk or a shared store.
//
// Thread safety: all methods are safe from any thread; calls for one key must be made one at a time. They may block on
// the disk or the network. Ownership: images are shared and never changed.
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
  std::string id;          // a session id: 1 .. 128 of [A-Za-z0-9._~-]; a snapshot's: "+" and its key
  std::string checkpoint;  // "": the session itself; else a checkpoint id of the same characters

  friend bool operator==(const StateKey&, const StateKey&) = default;
  // NOLINTNEXTLINE(modernize-use-nullptr): the literal 0 is no pointer here
  friend auto operator<=>(const StateKey&, const StateKey&) = default;
  // Returns a text for messages, without the principal.
  std::string ToString() const {
    return StrCat("sessions/", id, checkpoint.empty() ? "" : StrCat(" (checkpoint '", checkpoint, "')"));
  }
};

// Returns the range [first, second) of a std::map by StateKey that has the session's state and checkpoints.
// `key.checkpoint` does not matter.
template <typename Map>
auto SessionRange(Map& map, const StateKey& key) {
  return std::pair(map.lower_bound({.principal = key.principal, .id = key.id, .checkpoint = ""}),
                   map.lower_bound({.principal = key.principal, .id = key.id + '\0', .checkpoint = ""}));
}

struct StoreResult {
  int64_t written_bytes = 0;
  bool incremental = false;  // only changes since an earlier Store were written
  int64_t held_bytes = 0;    // bytes that the key takes in the tier now
};

// A stored state in a durable tier, as described by its header.
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
  int64_t limit_bytes = 0;  // 0: no limit
  int64_t used_bytes = 0;
  int64_t sessions = 0;
  int64_t stores = 0;    // successful Stores
  int64_t loads = 0;     // successful Loads
  int64_t failures = 0;  // calls of any kind that failed (IsTierFailure)
  int64_t stored_bytes = 0;
  int64_t loaded_bytes = 0;
  std::string problem = {};  // why the tier's states are unavailable now; "": they are available
};

class StateTier {
 public:
  virtual ~StateTier() = default;
  virtual std::string_view name() const = 0;  // "host", "disk", "redis"
  virtual bool durable() const = 0;           // true if states outlive the process

  // Replaces the key's state atomically: a reader finds the old or the new state, also after a crash at any time.
  // RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if there is no room; the old state is then still there. UNAVAILABLE
  // (TIER_UNAVAILABLE) if the tier cannot be reached or written; it may then have the old or the new state.
  // FAILED_PRECONDITION (STATES_TAKEN_OVER) if another server owns the state there.
  virtual absl::StatusOr<StoreResult> Store(const StateKey& key, const SessionImagePtr& image) = 0;
  // Returns the key's state, which stays in the tier. NOT_FOUND if there is none; UNAVAILABLE (TIER_UNAVAILABLE);
  // DATA_LOSS (INVALID_STATE_FILE: tensor) if it is damaged; FAILED_PRECONDITION (STATE_MISMATCH) if it does not fit
  // this server's layout, or (STATES_TAKEN_OVER) as Store.
  virtual absl::StatusOr<SessionImagePtr> Load(const StateKey& key) = 0;
  // Erases the key's state; with `all`, the session and all its checkpoints. Durable on return. OK if there is nothing
  // to erase. UNAVAILABLE (TIER_UNAVAILABLE): the state may be erased or not. FAILED_PRECONDITION (STATES_TAKEN_OVER)
  // as Store.
  virtual absl::Status Erase(const StateKey& key, bool all) = 0;

  // Returns the versions of the bases that the tier has of the key. The image of the next Store may leave these bases
  // out (LayerImage::has_base).
  virtual BaseVersions KnownBases(const StateKey& /*key*/) const { return {}; }
  // Lists all states, including named checkpoints, when a server starts; none if the tier is not durable. Damaged
  // states are logged, counted and left out. UNAVAILABLE (TIER_UNAVAILABLE).
  virtual absl::StatusOr<std::vector<StoredSession>> List() = 0;

  // Reads only the header of the key's state. Errors of Load. UNIMPLEMENTED if the tier is not durable.
  virtual absl::StatusOr<StoredSession> Describe(const StateKey& /*key*/) { return NotDurable(); }

  // Counts the starts of servers, durably: returns a higher number than before. UNIMPLEMENTED if the tier is not
  // durable; UNAVAILABLE (TIER_UNAVAILABLE); DATA_LOSS (INVALID_STATE_FILE) if the stored number is damaged.
  virtual absl::StatusOr<int64_t> NextIncarnation() { return NotDurable(); }

  // Returns the secret that is stored beside the states. If there is none yet, stores `proposed` and returns it.
  // UNIMPLEMENTED if the tier is not durable; UNAVAILABLE (TIER_UNAVAILABLE); DATA_LOSS (INVALID_STATE_FILE) if the
  // stored secret is empty.
  virtual absl::StatusOr<std::string> KeepSecret(std::string_view /*proposed*/) { return NotDurable(); }

  // Asks the store whether this server still owns it. UNAVAILABLE if it does not answer. FAILED_PRECONDITION
  // (STATES_TAKEN_OVER), permanently, once another server has taken it.
  virtual absl::Status CheckClaim() { return absl::OkStatus(); }

  // Stores a note that these tiers may still have copies of a deleted session, so that a later server erases them. An
  // empty set removes the note. Durable on return. UNIMPLEMENTED if the tier keeps no notes. ErasureNotes returns all.
  virtual absl::Status SetErasureNote(const StateKey& /*session*/, const std::set<std::string>& /*tiers*/) {
    return KeepsNoNotes();
  }
  virtual absl::StatusOr<std::map<StateKey, std::set<std::string>>> ErasureNotes() { return KeepsNoNotes(); }

  // OK unless the tier hangs. While it does, all calls are refused with this error: UNAVAILABLE (TIER_UNAVAILABLE:
  // tier). Does not ask the store.
  virtual absl::Status Answers() const { return absl::OkStatus(); }
  // Asks the store for any answer, and changes nothing. UNAVAILABLE (TIER_UNAVAILABLE) if there is none.
  virtual absl::Status Probe() { return absl::OkStatus(); }

  virtual TierUsage usage() const = 0;

 private:
  absl::Status NotDurable() const {
    return absl::UnimplementedError(StrCat("the ", name(), " tier does not outlive the process"));
  }
  absl::Status KeepsNoNotes() const { return absl::UnimplementedError(StrCat("the ", name(), " tier keeps no notes")); }
};

}  // namespace gdn
