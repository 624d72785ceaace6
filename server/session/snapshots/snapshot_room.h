// Makes room for a new snapshot in the budget of all snapshots, by ending older ones.
//
// Thread safety: a free function; the task belongs to its call's flow. Ownership: the manager must outlive the task.
//
//   Task<absl::StatusOr<ByteCharge>> room = ChargeSnapshot(sessions, environment, account, bytes, deadline);
//   GDN_CO_ASSIGN_OR_RETURN(ByteCharge charge, co_await std::move(room));
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/task/deadline.h"
#include "base/task/task.h"
#include "server/session/session_manager.h"

namespace gdn {

// Charges a snapshot of `bytes` to the account in the pool kSnapshots. If the budget is full, ends snapshots first
// (SnapshotBook::TakeFirst), and notes them as lost. RESOURCE_EXHAUSTED (BYTES_EXHAUSTED) if the snapshot is larger
// than the budget or nothing can be ended now; UNAVAILABLE (TIER_UNAVAILABLE) if a tier that cannot be reached is why;
// DEADLINE_EXCEEDED, CANCELLED.
Task<absl::StatusOr<ByteCharge>> ChargeSnapshot(SessionManager& sessions, SessionEnvironment& environment,
                                                ByteAccountPtr account, int64_t bytes, Deadline deadline);

}  // namespace gdn
