// Reading a whole session's states out, and putting them in: what export, import and initial states have in common.
//
// Thread safety: for the engine's thread, which alone may issue backend operators. Ownership: results are copies.
//
//   GDN_ASSIGN_OR_RETURN(std::string file, ExportSession(backend, lease, /*include_recurrent_state=*/true));
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/session/session.h"
#include "state_store/snapshot.h"

namespace gdn {

// A safetensors file (state_store/snapshot.h) of the locked session.
absl::StatusOr<std::string> ExportSession(Backend& backend, SessionLease& lease, bool include_recurrent_state);

// FAILED_PRECONDITION (STATE_MISMATCH: field, found, expected) where the snapshot is of another model, other dims or
// other layers than `spec`. A snapshot of another numerics_id is welcome where its logs are empty or of the same length
// L; it continues within 1e-5.
absl::Status CheckSnapshotFits(const Snapshot& snapshot, const SessionSpec& spec);

// Puts the snapshot's layers into a session that has seen nothing.
absl::Status RestoreSession(Backend& backend, const Snapshot& snapshot, SessionLease& lease);

}  // namespace gdn
