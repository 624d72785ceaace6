// The folder of a DiskTier: its lock, its file names, and the notes that a server leaves there when it starts and ends.
//
//   DIR/lock                                       held by the server that uses the folder
//   DIR/clean                                      the last server ended in order (clean_marker.h)
//   DIR/incarnation                                how many servers have begun here
//   DIR/owed/PRINCIPAL/s-ID                        tiers that still have to erase the session (erasure_notes.h)
//   DIR/principal-key                              secret key that principals' names are hashed with; mode 0600
//   DIR/sessions/PRINCIPAL/s-ID/                   PRINCIPAL: hexadecimal digits, or "anonymous"; a snapshot's ID: +KEY
//     state.safetensors                            the session
//     state.delta.safetensors                      changes since then, if most of the session has not changed
//     checkpoint-CHECKPOINT.safetensors            each named checkpoint
//     NAME.damaged                                 any of these, found damaged and set aside; never read as a state
//   DIR/sessions/PRINCIPAL/gone-ID/                a session that has ended; its files are about to be removed
// Errors: those of durable_file.h.
// Thread safety: safe from any thread; calls for one key must be made one at a time. Ownership: the object holds the
// lock.
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
#include "base/owned_fd.h"
#include "state_store/tiers/disk/clean_marker.h"
#include "state_store/tiers/disk/principal_folders.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class DiskFolder {
 public:
  // Makes the folder and those above it if they are missing, and takes its lock until this object is destroyed.
  // NOT_FOUND if it is a link that leads nowhere. UNAVAILABLE (TIER_UNAVAILABLE: path) if the folder cannot be used, or
  // another process has the lock.
  static absl::StatusOr<std::unique_ptr<DiskFolder>> Open(const std::string& directory);
  DiskFolder(const DiskFolder&) = delete;
  DiskFolder& operator=(const DiskFolder&) = delete;

  // INVALID_ARGUMENT (INVALID_NAME) if the key's parts cannot be names of folders and files. The methods below need
  // valid keys.
  static absl::Status ValidateKey(const StateKey& key);
  std::string SessionFolder(const StateKey& key) const;
  static std::string FullName(const StateKey& key);
  static std::string DeltaName();
  std::string OwedFolder() const { return directory_ + "/owed"; }
  std::string FullPath(const StateKey& key) const;
  std::string DeltaPath(const StateKey& key) const;
  // Returns the path that SetAside moves the file `path` to.
  static std::string AsidePath(const std::string& path);

  // Sizes of a key's files in bytes; 0: there is no such file.
  struct Files {
    int64_t full_bytes = 0;
    int64_t delta_bytes = 0;
    int64_t aside_bytes = 0;  // size of the files that were set aside
  };
  // Finds all state files, by key; ignores other files and folders. `remove_leftovers`: also removes unfinished files,
  // sessions whose removal was not finished, and empty folders, and logs what it ignores.
  absl::StatusOr<std::map<StateKey, Files>> Scan(bool remove_leftovers) const;

  // Makes the session's folder, and its principal's, unless they exist. Durable on return.
  absl::Status MakeSessionFolder(const StateKey& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the key's files, also those that were set aside; OK if there are none. With checkpoint "" other checkpoints
  // stay. The removal is durable only after SyncRemoval, which also removes folders that are empty now.
  absl::Status RemoveFiles(const StateKey& key) const;
  absl::Status SyncRemoval(const StateKey& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the files of the session and of all its checkpoints, durably. A crash at any time leaves all of them or
  // none. After an error they may be removed or not; call it again.
  absl::Status RemoveSession(const StateKey& key) ABSL_LOCKS_EXCLUDED(mu_);

  // Moves the key's files to their AsidePath, durably, and replaces earlier files there.
  absl::Status SetAside(const StateKey& key) const;

  // Writes the marker of an orderly end, durably; replaces an earlier one.
  absl::Status WriteCleanMarker(const CleanMarker& marker) const;
  // Removes the marker durably and returns it; nullopt if the last server did not write one, or it cannot be parsed.
  absl::StatusOr<std::optional<CleanMarker>> TakeCleanMarker() const;
  // See StateTier::NextIncarnation. DATA_LOSS (INVALID_STATE_FILE: tier, path) if the file does not have a number.
  absl::StatusOr<int64_t> NextIncarnation() const;
  // See StateTier::KeepSecret. Only the file's owner can read it. DATA_LOSS (INVALID_STATE_FILE) if it is empty.
  absl::StatusOr<std::string> KeepSecret(std::string_view proposed) const;

 private:
  DiskFolder(std::string directory, OwnedFd lock)
      : directory_(std::move(directory)), lock_(std::move(lock)), principals_(directory_ + "/sessions") {}

  absl::Status ScanSession(const StateKey& key, bool remove_leftovers, std::map<StateKey, Files>& found) const;

  // Constant after construction.
  const std::string directory_;
  const OwnedFd lock_;
  PrincipalFolders principals_;

  absl::Mutex mu_;
  std::set<std::string> synced_folders_ ABSL_GUARDED_BY(mu_);  // session folders that are durable
};

}  // namespace gdn
