// The folder that a DiskTier keeps its files in: who has it, the names in it, and what a server does there when it
// starts and when it ends.
//
//   DIR/lock                                       held by the server that uses the folder
//   DIR/clean                                      the last server ended in order (clean_marker.h)
//   DIR/incarnation                                how many servers have begun here
//   DIR/owed/PRINCIPAL/s-ID                        what is still to be erased (erasure_notes.h)
//   DIR/principal-key                              what principals' names are made with; for the owner's eyes alone
//   DIR/sessions/PRINCIPAL/s-ID/                   PRINCIPAL: hexadecimal digits, or "anonymous"
//     state.safetensors                            the session
//     state.delta.safetensors                      what changed since, where most of it did not
//     checkpoint-CHECKPOINT.safetensors            each named checkpoint
//     NAME.damaged                                 any of these, found damaged and set aside; never read as a state
//   DIR/sessions/PRINCIPAL/gone-ID/                a session that has ended; its files are about to be removed
// Errors: as of durable_file.h.
// Thread safety: safe from any thread; calls of one key are made one at a time. Ownership: has the lock until it ends.
//
//   GDN_ASSIGN_OR_RETURN(std::unique_ptr<DiskFolder> folder, DiskFolder::Open("/var/lib/gdn"));
//   GDN_RETURN_IF_ERROR(folder->MakeSessionFolder(key));
//   GDN_RETURN_IF_ERROR(ReplaceFile(folder->SessionFolder(key), folder->FullName(key), pieces).status);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "state_store/tiers/clean_marker.h"
#include "state_store/tiers/principal_folders.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class DiskFolder {
 public:
  // Makes the folder where it is not there, and takes its lock. UNAVAILABLE (TIER_UNAVAILABLE: path) where it cannot be
  // used, or another process uses it.
  static absl::StatusOr<std::unique_ptr<DiskFolder>> Open(const std::string& directory);
  DiskFolder(const DiskFolder&) = delete;
  DiskFolder& operator=(const DiskFolder&) = delete;
  ~DiskFolder();

  // INVALID_ARGUMENT (INVALID_NAME) where the key's parts are no names of folders and files. All below takes valid
  // ones.
  static absl::Status ValidateKey(const StateKey& key);
  std::string SessionFolder(const StateKey& key) const;
  static std::string FullName(const StateKey& key);
  static std::string DeltaName();
  std::string OwedFolder() const { return directory_ + "/owed"; }
  std::string FullPath(const StateKey& key) const;
  std::string DeltaPath(const StateKey& key) const;
  // Where SetAside moves a file.
  static std::string AsidePath(const std::string& path);

  // The files of a key, as they lie there; 0 bytes: none.
  struct Files {
    int64_t full_bytes = 0;
    int64_t delta_bytes = 0;
    int64_t aside_bytes = 0;  // of those that were set aside
  };
  // All state files; what has another name or is no folder is passed over. `remove_leftovers`: what was never finished
  // goes.
  absl::StatusOr<std::map<StateKey, Files>> Scan(bool remove_leftovers) const;

  // Durable on return.
  absl::Status MakeSessionFolder(const StateKey& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the key's files, those set aside too. Not durable before SyncRemoval.
  absl::Status RemoveFiles(const StateKey& key) const;
  absl::Status SyncRemoval(const StateKey& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the session's files and those of all its checkpoints, durably. A crash at any moment leaves all of them or
  // none. After an error they may be gone; call it again.
  absl::Status RemoveSession(const StateKey& key) ABSL_LOCKS_EXCLUDED(mu_);

  // Moves the key's files to their AsidePath, over what lay there.
  absl::Status SetAside(const StateKey& key) const;

  // Says how the server ended.
  absl::Status WriteCleanMarker(const CleanMarker& marker) const;
  // Returns what WriteCleanMarker wrote, if the last server came to that and it is readable. The marker is gone for
  // good on return.
  absl::StatusOr<std::optional<CleanMarker>> TakeCleanMarker() const;
  // As StateTier's. DATA_LOSS (INVALID_STATE_FILE: tier, path) where the number in the folder is none.
  absl::StatusOr<int64_t> NextIncarnation() const;
  // As StateTier's. The file can be read by its owner alone.
  absl::StatusOr<std::string> KeepSecret(std::string_view proposed) const;

 private:
  DiskFolder(std::string directory, int lock_fd)
      : directory_(std::move(directory)), lock_fd_(lock_fd), principals_(directory_ + "/sessions") {}

  absl::Status ScanSession(const StateKey& key, bool remove_leftovers, std::map<StateKey, Files>& found) const;

  // Constant after construction.
  const std::string directory_;
  const int lock_fd_;
  PrincipalFolders principals_;

  absl::Mutex mu_;
  std::set<std::string> synced_folders_ ABSL_GUARDED_BY(mu_);  // known to outlive a crash of the machine
};

}  // namespace gdn
