#include "state_store/tiers/disk/disk_tier.h"

#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "spdlog/spdlog.h"
#include "state_store/state_file/encode.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "state_store/tiers/disk/stored_file.h"

namespace gdn {
namespace {

constexpr int64_t kDeltaShare = 2;

// Returns true if a delta to the full file, which has `bases` and `full_bytes` bytes, is worthwhile: the delta leaves
// out more than half of the session's bases, and takes less than 1 / kDeltaShare of the full file. The delta's size is
// estimated; no delta is made.
bool IsDeltaWorthwhile(const SessionImage& image, const BaseVersions& bases, int64_t full_bytes) {
  const LayerDims& dims = image.layout.dims();
  int64_t floats = 0;
  int64_t bytes = 0;
  size_t left_out_layers = 0;
  for (const LayerImage& layer : image.layers) {
    const bool left_out = !layer.has_base || IsKnownBase(layer, bases);
    const int64_t entries = int64_t{layer.extent.log_length} + layer.extent.draft_length;
    left_out_layers += left_out;
    if (!left_out) bytes += image.layout.base_bytes();
    floats += entries * (dims.key_features() + dims.value_features() + dims.decay_features());
    if (dims.conv_width > 0) floats += dims.conv_channels() * (dims.conv_width - 1 + layer.extent.draft_length);
    if (layer.reply != nullptr) bytes += static_cast<int64_t>(layer.reply->output.size());
  }
  bytes += floats * static_cast<int64_t>(sizeof(float));
  return 2 * left_out_layers > image.layers.size() && bytes < full_bytes / kDeltaShare;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(const DiskTierOptions& options, HostBlockPool& blocks) {
  GDN_ASSIGN_OR_RETURN(std::unique_ptr<DiskFolder> folder, DiskFolder::Open(options.directory));
  GDN_ASSIGN_OR_RETURN(const auto found, folder->Scan(/*remove_leftovers=*/true));
  std::unique_ptr<DiskTier> tier(new DiskTier(options, std::move(folder), blocks));
  for (const auto& [key, files] : found) {
    const bool damaged = files.full_bytes == 0 && files.aside_bytes > 0;
    tier->Put(key, {.full_bytes = files.full_bytes,
                    .delta_bytes = files.delta_bytes,
                    .damage = damaged ? tier->SetAsideBefore(key) : absl::OkStatus()});
    tier->AddUsed(files.full_bytes + files.delta_bytes);
    if (files.aside_bytes > 0) tier->NoteSetAside(key, files.aside_bytes);
  }
  return tier;
}

DiskTier::DiskTier(const DiskTierOptions& options, std::unique_ptr<DiskFolder> folder, HostBlockPool& blocks)
    : options_(options),
      folder_(std::move(folder)),
      notes_(folder_->OwedFolder()),
      blocks_(blocks),
      watermarks_(options.directory, options.watermarks) {
  usage_.name = name();
  usage_.limit_bytes = options.limit_bytes;
}

absl::StatusOr<StoreResult> DiskTier::Store(const StateKey& key, const SessionImagePtr& image) {
  auto result = StoreFiles(key, image);
  if (!result.ok()) return Counted(result.status());
  absl::MutexLock lock(&mu_);
  ++usage_.stores;
  usage_.stored_bytes += result->written_bytes;
  return result;
}

absl::StatusOr<StoreResult> DiskTier::StoreFiles(const StateKey& key, const SessionImagePtr& image) {
  GDN_RETURN_IF_ERROR(DiskFolder::ValidateKey(key));
  const Entry entry = Find(key);
  for (const LayerImage& layer : image->layers) {
    if (layer.has_base || IsKnownBase(layer, entry.bases)) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kStateMismatch,
                     StrCat("the image of ", key.ToString(), " has no base of layer ", layer.layer,
                            ", and the disk has another; take the image anew, with all that KnownBases does not name"),
                     {{"field", "has_base"}});
  }
  const bool incremental =
      !entry.snapshot_id.empty() && !entry.rewrite && IsDeltaWorthwhile(*image, entry.bases, entry.full_bytes);
  return incremental ? StoreDelta(key, image, entry) : StoreFull(key, image, entry);
}

absl::StatusOr<StoreResult> DiskTier::StoreDelta(const StateKey& key, const SessionImagePtr& image, Entry entry) {
  GDN_ASSIGN_OR_RETURN(const EncodedStateFile delta, EncodeStateFile(image, {.include_owner = true,
                                                                             .base_snapshot_id = entry.snapshot_id,
                                                                             .known_bases = entry.bases}));
  const ReplaceResult written =
      Write(key, DiskFolder::DeltaName(), delta.pieces(), delta.bytes(), /*replaced_bytes=*/entry.delta_bytes);
  const int64_t held = entry.full_bytes + delta.bytes();
  if (written.replaced) {
    entry.delta_bytes = delta.bytes();
    entry.rewrite = !written.status.ok();
    Put(key, std::move(entry));
  }
  GDN_RETURN_IF_ERROR(written.status);
  return StoreResult{.written_bytes = delta.bytes(), .incremental = true, .held_bytes = held};
}

absl::StatusOr<StoreResult> DiskTier::StoreFull(const StateKey& key, const SessionImagePtr& image, const Entry& entry) {
  EncodedStateFile encoded;
  std::string merged;
  Entry next;
  std::vector<std::string_view> pieces;
  if (!image->has_all_bases()) {
    // The bases that the image lacks are in the file that is being replaced.
    GDN_ASSIGN_OR_RETURN(encoded,
                         EncodeStateFile(image, {.include_owner = true, .base_snapshot_id = entry.snapshot_id}));
    std::string delta;
    for (const std::string_view piece : encoded.pieces()) delta += piece;
    GDN_ASSIGN_OR_RETURN(const FileInMemory full, Read(folder_->FullPath(key)));
    auto whole = MergeDelta(full.bytes, delta);
    if (!whole.ok()) return WithPrefix(whole.status(), folder_->FullPath(key));
    merged = *std::move(whole);
    GDN_ASSIGN_OR_RETURN(const StateFile header, ParseStateFileHeader(merged, static_cast<int64_t>(merged.size())));
    next.snapshot_id = header.snapshot_id;
    next.full_bytes = static_cast<int64_t>(merged.size());
    pieces = {merged};
  } else {
    GDN_ASSIGN_OR_RETURN(encoded, EncodeStateFile(image, {.include_owner = true}));
    next.snapshot_id = encoded.snapshot_id();
    next.full_bytes = encoded.bytes();
    pieces = encoded.pieces();
  }
  for (const LayerImage& layer : image->layers) {
    if (layer.base_version != 0) next.bases[layer.layer] = layer.base_version;
  }
  const ReplaceResult written = Write(key, DiskFolder::FullName(key), pieces, next.full_bytes,
                                      /*replaced_bytes=*/entry.full_bytes + entry.delta_bytes);
  if (!written.replaced) return written.status;
  if (!key.checkpoint.empty()) {
    next.snapshot_id.clear();  // deltas never refer to a named checkpoint
    next.bases.clear();
  }
  // Until the folder is known to be synced, a crash may bring back the old full file, which then needs its delta. With
  // the new full file the old delta is not used. So it does no harm if it cannot be removed.
  const bool kept = entry.delta_bytes > 0 && (!written.status.ok() || !RemoveFile(folder_->DeltaPath(key)).ok());
  if (kept) {
    next.delta_bytes = entry.delta_bytes;
    AddUsed(entry.delta_bytes);
  }
  next.rewrite = !written.status.ok();
  const StoreResult result{
      .written_bytes = next.full_bytes, .incremental = false, .held_bytes = next.full_bytes + next.delta_bytes};
  Put(key, std::move(next));
  GDN_RETURN_IF_ERROR(written.status);
  return result;
}

ReplaceResult DiskTier::Write(const StateKey& key, const std::string& name, const std::vector<std::string_view>& pieces,
                              int64_t bytes, int64_t replaced_bytes) {
  if (Find(key).full_bytes == 0) {
    if (absl::Status status = watermarks_.Admit(bytes); !status.ok()) return {.status = std::move(status)};
  }
  if (absl::Status status = Reserve(bytes, replaced_bytes); !status.ok()) return {.status = std::move(status)};
  ReplaceResult result{.status = folder_->MakeSessionFolder(key)};
  if (result.status.ok()) result = ReplaceFile(folder_->SessionFolder(key), name, pieces);
  if (!result.replaced) AddUsed(replaced_bytes - bytes);
  return result;
}

absl::StatusOr<SessionImagePtr> DiskTier::Load(const StateKey& key) {
  int64_t bytes = 0;
  auto image = LoadFiles(key, bytes);
  if (!image.ok()) return Counted(image.status());
  absl::MutexLock lock(&mu_);
  ++usage_.loads;
  usage_.loaded_bytes += bytes;
  return image;
}

absl::StatusOr<DiskTier::FileInMemory> DiskTier::Read(const std::string& path) {
  FileInMemory file;
  const auto room = [this, &file](size_t bytes) -> absl::StatusOr<char*> {
    GDN_ASSIGN_OR_RETURN(file.block, blocks_.TakeForFile(bytes));
    return file.block.chars();
  };
  GDN_ASSIGN_OR_RETURN(file.bytes, ReadFile(path, room, options_.pool));
  return file;
}

absl::StatusOr<SessionImagePtr> DiskTier::LoadFiles(const StateKey& key, int64_t& bytes) {
  GDN_RETURN_IF_ERROR(DiskFolder::ValidateKey(key));
  const Entry entry = Find(key);
  GDN_RETURN_IF_ERROR(entry.damage);
  struct Files {
    FileInMemory full, delta;
  };
  const auto files = std::make_shared<Files>();
  GDN_ASSIGN_OR_RETURN(files->full, Read(folder_->FullPath(key)));
  auto full = ParseStateFile(files->full.bytes, options_.pool);
  if (!full.ok()) return WithPrefix(full.status(), folder_->FullPath(key));
  StateFile* state = &*full;
  BaseVersions bases = full->snapshot_id == entry.snapshot_id ? entry.bases : BaseVersions();

  absl::StatusOr<StateFile> delta = StateFile();
  if (key.checkpoint.empty()) {
    auto read = Read(folder_->DeltaPath(key));
    if (!read.ok() && !absl::IsNotFound(read.status())) return read.status();
    if (read.ok()) {
      files->delta = *std::move(read);
      delta = ParseStateFile(files->delta.bytes);
      if (!delta.ok()) return WithPrefix(delta.status(), folder_->DeltaPath(key));
    }
  }
  // A delta to an earlier full file is ignored: it was about to be removed when the process ended.
  if (!delta->base_snapshot_id.empty() && delta->base_snapshot_id == full->snapshot_id) {
    for (const StateFileLayer& layer : delta->layers) {
      if (layer.has_base) bases.erase(layer.layer);
    }
    GDN_RETURN_IF_ERROR(WithPrefix(CompleteDelta(*full, *delta), folder_->DeltaPath(key)));
    state = &*delta;
  }
  GDN_RETURN_IF_ERROR(WithPrefix(CheckOwner(key, *state), folder_->FullPath(key)));
  GDN_ASSIGN_OR_RETURN(const StateLayout layout,
                       StateLayout::Make(state->header.dims, options_.max_draft, options_.base_dtype));
  GDN_ASSIGN_OR_RETURN(SessionImage image, ReadImage(*state, layout, files));
  for (LayerImage& layer : image.layers) {
    if (const auto known = bases.find(layer.layer); known != bases.end()) layer.base_version = known->second;
  }
  bytes = static_cast<int64_t>(files->full.bytes.size() + files->delta.bytes.size());
  return std::make_shared<const SessionImage>(std::move(image));
}

absl::Status DiskTier::Erase(const StateKey& key, bool all) { return Counted(EraseFiles(key, all)); }

absl::Status DiskTier::EraseFiles(const StateKey& key, bool all) {
  GDN_RETURN_IF_ERROR(DiskFolder::ValidateKey(key));
  if (absl::Status removed = all ? folder_->RemoveSession(key) : folder_->RemoveFiles(key); !removed.ok()) {
    Distrust(key, all);
    return removed;
  }
  Forget(key, all);
  return all ? absl::OkStatus() : folder_->SyncRemoval(key);
}

absl::StatusOr<std::vector<StoredSession>> DiskTier::List() {
  GDN_ASSIGN_OR_RETURN(const auto found, folder_->Scan(/*remove_leftovers=*/false));
  std::vector<StoredSession> sessions;
  sessions.reserve(found.size());
  for (const auto& [key, files] : found) {
    auto stored = ReadEntry(key, files);
    if (stored.ok()) {
      sessions.push_back(*std::move(stored));
      continue;
    }
    Counted(stored.status()).IgnoreError();
    spdlog::warn("disk tier: {} is passed over: {}", key.ToString(), stored.status().ToString());
  }
  return sessions;
}

absl::StatusOr<StoredSession> DiskTier::Describe(const StateKey& key) {
  GDN_RETURN_IF_ERROR(DiskFolder::ValidateKey(key));
  const Entry entry = Find(key);
  GDN_RETURN_IF_ERROR(entry.damage);
  absl::StatusOr<StoredSession> stored =
      ReadEntry(key, {.full_bytes = entry.full_bytes, .delta_bytes = entry.delta_bytes});
  Counted(stored.status()).IgnoreError();
  return stored;
}

absl::StatusOr<StoredSession> DiskTier::ReadEntry(const StateKey& key, const DiskFolder::Files& files) {
  const auto read = [&key](const std::string& path) -> absl::StatusOr<StateFile> {
    GDN_ASSIGN_OR_RETURN(const FileStart head, ReadHead([&path](int64_t bytes) -> absl::StatusOr<FileStart> {
                           FileStart start;
                           GDN_ASSIGN_OR_RETURN(start.bytes, ReadFileStart(path, bytes, start.file_bytes));
                           return start;
                         }));
    auto file = ParseStateFileHeader(head.bytes, head.file_bytes);
    if (!file.ok()) return WithPrefix(file.status(), path);
    GDN_RETURN_IF_ERROR(WithPrefix(CheckOwner(key, *file), path));
    return file;
  };
  if (files.full_bytes == 0 && files.aside_bytes > 0) {
    // The state is not available, but the header says what the session was. So the session is listed.
    GDN_ASSIGN_OR_RETURN(StateFile file, read(DiskFolder::AsidePath(folder_->FullPath(key))));
    if (auto delta = read(DiskFolder::AsidePath(folder_->DeltaPath(key)));
        key.checkpoint.empty() && delta.ok() && delta->base_snapshot_id == file.snapshot_id) {
      file = *std::move(delta);
    }
    return DescribeStored(key, std::move(file), files.aside_bytes);
  }
  GDN_ASSIGN_OR_RETURN(StateFile file, read(folder_->FullPath(key)));
  int64_t bytes = files.full_bytes;
  if (files.delta_bytes > 0) {
    GDN_ASSIGN_OR_RETURN(StateFile delta, read(folder_->DeltaPath(key)));
    if (delta.base_snapshot_id == file.snapshot_id) {
      file = std::move(delta);
      bytes += files.delta_bytes;
    } else {
      GDN_RETURN_IF_ERROR(RemoveFile(folder_->DeltaPath(key)));
      Entry entry = Find(key);
      entry.delta_bytes = 0;
      Put(key, std::move(entry));
      AddUsed(-files.delta_bytes);
    }
  }
  return DescribeStored(key, std::move(file), bytes);
}

BaseVersions DiskTier::KnownBases(const StateKey& key) const { return Find(key).bases; }

TierUsage DiskTier::usage() const {
  absl::MutexLock lock(&mu_);
  return usage_;
}

DiskTier::Entry DiskTier::Find(const StateKey& key) const {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(key);
  return it == entries_.end() ? Entry() : it->second;
}

void DiskTier::Put(const StateKey& key, Entry entry) {
  absl::MutexLock lock(&mu_);
  if (entries_.insert_or_assign(key, std::move(entry)).second && key.checkpoint.empty()) ++usage_.sessions;
}

void DiskTier::Forget(const StateKey& key, bool all) {
  absl::MutexLock lock(&mu_);
  const auto [begin, end] = all ? SessionRange(entries_, key) : entries_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    usage_.used_bytes -= it->second.full_bytes + it->second.delta_bytes;
    usage_.used_bytes -= ForgetSetAside(it->first);
    if (it->first.checkpoint.empty()) --usage_.sessions;
  }
  entries_.erase(begin, end);
}

void DiskTier::Distrust(const StateKey& key, bool all) {
  absl::MutexLock lock(&mu_);
  const auto [begin, end] = all ? SessionRange(entries_, key) : entries_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    it->second.snapshot_id.clear();
    it->second.bases.clear();
  }
}

absl::Status DiskTier::Reserve(int64_t bytes, int64_t replaced_bytes) {
  absl::MutexLock lock(&mu_);
  const int64_t used = usage_.used_bytes + bytes - replaced_bytes;
  if (options_.limit_bytes > 0 && used > options_.limit_bytes) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     StrCat("no room on disk for ", bytes, " more bytes: ", usage_.used_bytes, " of ",
                            options_.limit_bytes, " are in use. End sessions, or raise --disk-state-bytes"),
                     {{"tier", "disk"}, {"limit_bytes", StrCat(options_.limit_bytes)}});
  }
  usage_.used_bytes = used;
  return absl::OkStatus();
}

void DiskTier::AddUsed(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  usage_.used_bytes += bytes;
}

absl::Status DiskTier::Counted(absl::Status status) {
  if (!IsTierFailure(status)) return status;
  absl::MutexLock lock(&mu_);
  ++usage_.failures;
  return status;
}

}  // namespace gdn
