// Notes on the local disk about copies that must still be erased: for each deleted session, the tiers that may still
// have copies of it. A later server ignores those copies and erases them.
//
//   DIR/PRINCIPAL/s-ID    the names of the tiers, one a line; PRINCIPAL as in disk_folder.h
// Errors: those of durable_file.h.
// Thread safety: safe from any thread; calls for one session must be made one at a time. Ownership: none.
//
//   ErasureNotes notes("/var/lib/gdn/owed");
//   GDN_RETURN_IF_ERROR(notes.Set(session, {"redis"}));
//   GDN_RETURN_IF_ERROR(notes.Set(session, {}));  // there is nothing left
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "state_store/tiers/disk/principal_folders.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class ErasureNotes {
 public:
  explicit ErasureNotes(std::string directory) : principals_(std::move(directory)) {}

  // Replaces the session's note by these tiers' names; an empty set removes it. Durable on return. INVALID_ARGUMENT
  // (INVALID_NAME) for an invalid key.
  absl::Status Set(const StateKey& session, const std::set<std::string>& tiers);
  // Returns all notes: the tiers that may still have copies, by session.
  absl::StatusOr<std::map<StateKey, std::set<std::string>>> All() const;

 private:
  PrincipalFolders principals_;
};

}  // namespace gdn
