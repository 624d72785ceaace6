// Makes sessions that continue from the state of another one: forks, snapshots, and sessions that start from one.
//
// Thread safety: free functions; a task belongs to its call's flow. Ownership: parts, caller and children must outlive
// the task.
//
//   Task<absl::Status> made = MakeChildren(parts, caller, parent, {.epoch = epoch}, children);
//   GDN_CO_RETURN_IF_ERROR(co_await std::move(made));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/task/task.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/session_calls.h"
#include "server/session/session_manager.h"

namespace gdn {

// The children of one call: all of them are sessions, or all are snapshots.
struct Children {
  std::vector<SessionInit> inits;          // with the ids of the creations
  std::vector<SessionCreation> creations;  // parallel to inits

  // Returns the number of children that do not exist yet (SessionCreation::pending).
  int32_t pending() const;
};

// Properties that the parent must have; nullopt: any. They are checked once nobody can step it.
struct ExpectedParent {
  std::optional<int64_t> epoch = std::nullopt;
  std::optional<int64_t> token_count = std::nullopt;  // the same in every layer
};

// OK if the parent has the expected properties. Else ABORTED (EPOCH_MISMATCH), or ABORTED (TOKEN_COUNT_MISMATCH:
// token_count, expected) for the first layer that differs.
absl::Status CheckParent(const Session& parent, const ExpectedParent& expected);

// Locks the parent, brings it to the device, makes the pending children from its state, and publishes all. Their room
// on the device is charged to the first child's account. Snapshots take slots only for the parent's next writes. If the
// device's budget has room but the parent's pool has not, the children are copies, which share nothing. Errors of
// Residency::LockResident, Reserve, CopyBeginning and Place, and of CheckParent; no pending child is made then. If the
// parent is a snapshot that was evicted, or whose state is lost: NOT_FOUND (SNAPSHOT_NOT_FOUND). A lost one is ended
// and noted as lost.
Task<absl::Status> MakeChildren(const SessionParts& parts, const Caller& caller, std::shared_ptr<Session> parent,
                                ExpectedParent expected, Children& children);

}  // namespace gdn
