// Sessions' states in a folder of the local disk (disk_folder.h says which files it has).
//
// docs/reference/state-files.md describes the files. Each is written under a temporary name, synced and renamed, so
// that a crash at any moment leaves the old or the new one. A delta counts only beside the very file that it is a
// delta to.
//
// Thread safety: as StateTier; List before the first Store. Ownership: the HostBlockPool must outlive it.
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
#include "base/thread_pool.h"
#include "state_store/host_block_pool.h"
#include "state_store/tiers/disk_folder.h"
#include "state_store/tiers/disk_space.h"
#include "state_store/tiers/durable_file.h"
#include "state_store/tiers/erasure_notes.h"
#include "state_store/tiers/file_check.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

struct DiskTierOptions {
  std::string directory;
  int64_t limit_bytes = 0;           // of all files; 0: none
  int32_t max_draft = 1;             // of the slots that Load makes
  DType base_dtype = DType::kF32;    // of those; states of another are refused, and stay
  SharedThreadPool* pool = nullptr;  // to read and verify on
  DiskWatermarkOptions watermarks = {};
};

class DiskTier final : public StateTier {
 public:
  // Makes the folder where it is not there, takes its lock, accounts for what it holds and removes what was never
  // finished.
  // UNAVAILABLE (TIER_UNAVAILABLE: path) where it cannot be used, or another process uses it.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(const DiskTierOptions& options, HostBlockPool& blocks);
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  std::string_view name() const override { return "disk"; }
  bool durable() const override { return true; }
  // Named checkpoints are always whole files. INVALID_ARGUMENT (STATE_MISMATCH) where the image has no base that the
  // tier does not know either.
  absl::StatusOr<StoreResult> Store(const StateKey& key, const SessionImagePtr& image) override;
  // base_version is that of the Store which wrote the base, where this process did.
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

  // --- For whoever looks for damage (disk_scrubber.h).
  // The first key after that one; nullopt: there is none.
  std::optional<StateKey> NextKey(const std::optional<StateKey>& after) const ABSL_LOCKS_EXCLUDED(mu_);
  // Where the files of the key are: the whole file, and a delta where there is one.
  std::vector<std::string> PathsOf(const StateKey& key) const;
  // Why what was there of the key has been set aside; OK: it has not.
  absl::Status damage(const StateKey& key) const { return Find(key).damage; }
  // As a call of the key. Moves its files to names under which nothing reads them as a state (*.damaged), until the
  // key is stored again: Load then says `damage`, DATA_LOSS, and so does a later process, which still lists the key by
  // its header. False where `check` read another file than the key's. Of all keys the last kMostSetAside are kept.
  static constexpr size_t kMostSetAside = 8;
  absl::StatusOr<bool> SetAside(const StateKey& key, const FileCheck& check, const absl::Status& damage);
  struct SetAsideFiles {
    int64_t states = 0;
    int64_t bytes = 0;
  };
  SetAsideFiles set_aside() const ABSL_LOCKS_EXCLUDED(mu_);
  // As a failed Load is.
  void CountFailure(const absl::Status& status) { Counted(status).IgnoreError(); }

  // Above the high one a key that has nothing here gets RESOURCE_EXHAUSTED from Store; others are replaced as before.
  DiskWatermarks& watermarks() { return watermarks_; }
  const DiskWatermarks& watermarks() const { return watermarks_; }

  // As of DiskFolder.
  absl::Status WriteCleanMarker(const CleanMarker& marker) { return folder_->WriteCleanMarker(marker); }
  absl::StatusOr<std::optional<CleanMarker>> TakeCleanMarker() { return folder_->TakeCleanMarker(); }

 private:
  // What is there of a key, and of its whole file what this process knows.
  struct Entry {
    int64_t full_bytes = 0;
    int64_t delta_bytes = 0;
    absl::Status damage = {};      // its files have been set aside, for this
    std::string snapshot_id = {};  // of the whole file, where this process wrote it; ""
    BaseVersions bases = {};       // in the whole file
    bool rewrite = false;          // the next Store writes a whole file: the last was not known to be durable
  };
  struct FileInMemory {
    HostBlock block;
    std::string_view bytes;
  };

  DiskTier(const DiskTierOptions& options, std::unique_ptr<DiskFolder> folder, HostBlockPool& blocks);

  // What the files of a key hold; its delta goes where it is one to an earlier file.
  absl::StatusOr<StoredSession> ReadEntry(const StateKey& key, const DiskFolder::Files& files);

  Entry Find(const StateKey& key) const ABSL_LOCKS_EXCLUDED(mu_);
  void Put(const StateKey& key, Entry entry) ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(const StateKey& key, bool all) ABSL_LOCKS_EXCLUDED(mu_);
  // The next Store of the key writes a whole file: what is there is not known.
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
    uint64_t number = 0;  // the least was set aside first
    int64_t bytes = 0;    // among usage_.used_bytes
  };
  std::map<StateKey, Aside> aside_ ABSL_GUARDED_BY(mu_);
  uint64_t next_aside_ ABSL_GUARDED_BY(mu_) = 0;
  TierUsage usage_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
