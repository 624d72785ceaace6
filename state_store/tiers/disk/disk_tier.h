// Sessions' states in a folder of the local disk. disk_folder.h lists the folder's files.
//
// docs/reference/state-files.md describes the files. Each is written under a temporary name, synced and renamed, so a
// crash at any time leaves the old or the new file. A delta is used only with the full file that it is a delta to, and
// ignored otherwise.
//
// Thread safety: as StateTier; call List before the first Store. Ownership: the HostBlockPool must outlive it.
//
//   GDN_ASSIGN_OR_RETURN(auto tier, DiskTier::Open({.directory = "/var/lib/gdn"}, blocks));
//   GDN_RETURN_IF_ERROR(tier->Store(key, image).status());
//   GDN_ASSIGN_OR_RETURN(SessionImagePtr again, tier->Load(key));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/threads/thread_pool.h"
#include "state_store/host_block_pool.h"
#include "state_store/tiers/disk/disk_folder.h"
#include "state_store/tiers/disk/disk_space.h"
#include "state_store/tiers/disk/durable_file.h"
#include "state_store/tiers/disk/erasure_notes.h"
#include "state_store/tiers/disk/file_check.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

struct DiskTierOptions {
  std::string directory = {};
  int64_t limit_bytes = 0;           // most bytes of all files; 0: no limit
  int32_t max_draft = 1;             // StateLayout::max_draft of the images that Load returns
  DType base_dtype = DType::kF32;    // dtype of bases; Load refuses states of another dtype, which stay on the disk
  SharedThreadPool* pool = nullptr;  // threads that read and verify files; nullptr: the calling thread does
  DiskWatermarkOptions watermarks = {};
};

class DiskTier final : public StateTier {
 public:
  // Makes the folder if it is missing, takes its lock, counts the bytes in it and removes unfinished files. `blocks`:
  // for loaded files; must outlive the tier and its images. Errors of DiskFolder::Open: UNAVAILABLE (TIER_UNAVAILABLE:
  // path) if the folder cannot be used, or another process uses it.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(const DiskTierOptions& options, HostBlockPool& blocks);
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  std::string_view name() const override { return "disk"; }
  bool durable() const override { return true; }
  // Stores a delta if it is much smaller than the full file; named checkpoints are always full files. Errors of
  // StateTier::Store; INVALID_ARGUMENT (STATE_MISMATCH) if the image leaves out a base that is not in KnownBases,
  // (INVALID_NAME) for an invalid key.
  absl::StatusOr<StoreResult> Store(const StateKey& key, const SessionImagePtr& image) override;
  // Sets base_version of the layers to that of the Store that wrote the base; 0 if another process wrote it.
  absl::StatusOr<SessionImagePtr> Load(const StateKey& key) override;
  absl::Status Erase(const StateKey& key, bool all) override;
  BaseVersions KnownBases(const StateKey& key) const override;
  absl::StatusOr<std::vector<StoredSession>> List() override;
  absl::StatusOr<StoredSession> Describe(const StateKey& key) override;
  absl::StatusOr<int64_t> NextIncarnation() override { return folder_->NextIncarnation(); }
  absl::StatusOr<std::string> KeepSecret(std::string_view proposed) override { return folder_->KeepSecret(proposed); }
  absl::Status SetErasureNote(const StateKey& session, const std::set<std::string>& tiers) override {
    return Counted(notes_.Set(session, tiers));
  }
  absl::StatusOr<std::map<StateKey, std::set<std::string>>> ErasureNotes() override { return notes_.All(); }
  TierUsage usage() const override;

  // --- For the scrubber (disk_scrubber.h).
  // Returns the first key after `after` (nullopt: the first key of all); nullopt if there is none.
  std::optional<StateKey> NextKey(const std::optional<StateKey>& after) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the paths of the key's files: the full file, also if it does not exist, and the delta if there is one.
  std::vector<std::string> PathsOf(const StateKey& key) const;
  // Returns the damage for which the key's files were set aside; OK if they were not.
  absl::Status damage(const StateKey& key) const { return Find(key).damage; }
  // Sets the key's files aside as *.damaged, which is never loaded. Until the key is stored again, Load returns
  // `damage`. A later process returns DATA_LOSS too, but still lists the key from its header. False, with nothing done,
  // if the file that `check` read has been replaced. The files of the last kMostSetAside keys are kept, older ones are
  // removed. Calls for one key must be made one at a time.
  static constexpr size_t kMostSetAside = 8;
  absl::StatusOr<bool> SetAside(const StateKey& key, const FileCheck& check, const absl::Status& damage);
  struct SetAsideFiles {
    int64_t states = 0;
    int64_t bytes = 0;
  };
  SetAsideFiles set_aside() const ABSL_LOCKS_EXCLUDED(mu_);
  // Counts `status`, an error of a caller that read the files by itself, in usage().failures.
  void CountFailure(const absl::Status& status) { Counted(status).IgnoreError(); }

  // Above the high watermark, Store returns RESOURCE_EXHAUSTED for new keys; states that exist are still replaced.
  DiskWatermarks& watermarks() { return watermarks_; }
  const DiskWatermarks& watermarks() const { return watermarks_; }

  // Calls the method of the same name of DiskFolder.
  absl::Status WriteCleanMarker(const CleanMarker& marker) { return folder_->WriteCleanMarker(marker); }
  absl::StatusOr<std::optional<CleanMarker>> TakeCleanMarker() { return folder_->TakeCleanMarker(); }

 private:
  // The files of a key. snapshot_id and bases are known only if this process wrote the full file.
  struct Entry {
    int64_t full_bytes = 0;
    int64_t delta_bytes = 0;
    absl::Status damage = {};      // why the files have been set aside; OK: they have not
    std::string snapshot_id = {};  // snapshot id of the full file; "" if another process wrote it
    BaseVersions bases = {};       // versions of the bases in the full file
    bool rewrite = false;          // the next Store writes a full file, because the last may not be durable
  };
  struct FileInMemory {
    HostBlock block;
    std::string_view bytes;
  };

  DiskTier(const DiskTierOptions& options, std::unique_ptr<DiskFolder> folder, HostBlockPool& blocks);

  // Reads the headers of a key's files. Removes a delta that belongs to an earlier full file.
  absl::StatusOr<StoredSession> ReadEntry(const StateKey& key, const DiskFolder::Files& files);

  Entry Find(const StateKey& key) const ABSL_LOCKS_EXCLUDED(mu_);
  void Put(const StateKey& key, Entry entry) ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(const StateKey& key, bool all) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets the snapshot id and bases of the key's full file; with `all`, of all files of the session. The next Store
  // then writes a full file, because a delta could belong to another one.
  void Distrust(const StateKey& key, bool all) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Reserve(int64_t bytes, int64_t replaced_bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void AddUsed(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Counted(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<StoreResult> StoreFiles(const StateKey& key, const SessionImagePtr& image);
  absl::StatusOr<StoreResult> StoreDelta(const StateKey& key, const SessionImagePtr& image, Entry entry);
  absl::StatusOr<StoreResult> StoreFull(const StateKey& key, const SessionImagePtr& image, const Entry& entry);
  ReplaceResult Write(const StateKey& key, const std::string& name, const std::vector<std::string_view>& pieces,
                      int64_t bytes, int64_t replaced_bytes);
  absl::StatusOr<SessionImagePtr> LoadFiles(const StateKey& key, int64_t& bytes);
  absl::Status EraseFiles(const StateKey& key, bool all);

  absl::StatusOr<FileInMemory> Read(const std::string& path);

  void NoteSetAside(const StateKey& key, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  int64_t ForgetSetAside(const StateKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SetAsideBefore(const StateKey& key) const;

  // Constant after construction.
  const DiskTierOptions options_;
  const std::unique_ptr<DiskFolder> folder_;
  class ErasureNotes notes_;
  HostBlockPool& blocks_;
  DiskWatermarks watermarks_;

  mutable absl::Mutex mu_;
  std::map<StateKey, Entry> entries_ ABSL_GUARDED_BY(mu_);
  struct Aside {
    uint64_t number = 0;  // ascending in the order of setting aside
    int64_t bytes = 0;    // included in usage_.used_bytes
  };
  std::map<StateKey, Aside> aside_ ABSL_GUARDED_BY(mu_);
  uint64_t next_aside_ ABSL_GUARDED_BY(mu_) = 0;
  TierUsage usage_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
