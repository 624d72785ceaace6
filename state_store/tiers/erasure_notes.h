// What is still to be erased, in a folder of the local disk: for each session that has ended, the tiers that may have
// copies of it yet. A server that starts later passes those copies over, and erases them.
//
//   DIR/PRINCIPAL/s-ID    the names of the tiers, a line each; PRINCIPAL as in disk_folder.h
// Errors: as of durable_file.h.
// Thread safety: safe from any thread; calls for one session are made one at a time. Ownership: none.
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
#include "state_store/tiers/principal_folders.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class ErasureNotes {
 public:
  explicit ErasureNotes(std::string directory) : principals_(std::move(directory)) {}

  // Durable on return: the note of the session is of these tiers, or gone where there are none.
  absl::Status Set(const StateKey& session, const std::set<std::string>& tiers);
  absl::StatusOr<std::map<StateKey, std::set<std::string>>> All() const;

 private:
  PrincipalFolders principals_;
};

}  // namespace gdn
