// Helpers for calls that use snapshots: finding one, losing one, and telling the client of losses.
//
// Thread safety: free functions; a task belongs to its call's flow. Ownership: parts must outlive the task.
//
//   GDN_ASSIGN_OR_RETURN(const std::shared_ptr<Session> snapshot, FindSnapshot(parts, caller, request.snapshot()));
//   SetLossMark(parts, caller, response);
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/name_rules.h"
#include "base/string_cat.h"
#include "base/task/task.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/session_calls.h"
#include "server/session/session.h"
#include "server/session/snapshots/snapshot_book.h"

namespace gdn {

inline std::string SnapshotId(std::string_view key) { return StrCat(std::string_view(&kSnapshotMark, 1), key); }
inline std::string_view KeyOf(const Session& snapshot) { return std::string_view(snapshot.id()).substr(1); }

// Returns the caller's snapshot for BringHere, which does not reserve the key. An invalid key is skipped there.
WantedSession WantedSnapshot(const Caller& caller, std::string_view key);
// Finds the caller's snapshot, which counts as a use of it. INVALID_ARGUMENT (INVALID_NAME), NOT_FOUND
// (SNAPSHOT_NOT_FOUND), the error in caller.not_here, and UNAVAILABLE as SessionManager::Find.
absl::StatusOr<std::shared_ptr<Session>> FindSnapshot(const SessionParts& parts, const Caller& caller,
                                                      std::string_view key);
// Makes the error NOT_FOUND (SNAPSHOT_NOT_FOUND: snapshot; lost: "evicted" or "damaged" if the book knows of the loss).
absl::Status SnapshotNotFound(const SessionParts& parts, const std::string& principal, std::string_view key);
// Ends a snapshot whose only state is lost, and notes the loss. Returns SnapshotNotFound, also if another call has
// ended it, or the error that keeps it from ending.
Task<absl::Status> LoseSnapshot(const SessionParts& parts, std::shared_ptr<Session> snapshot);

template <typename Response>
void SetLossMark(const SessionParts& parts, const Caller& caller, Response* response) {
  response->set_snapshot_loss_mark(parts.states.environment().snapshots().MarkOf(caller.principal));
}

}  // namespace gdn
