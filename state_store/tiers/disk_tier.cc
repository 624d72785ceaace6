#include "state_store/tiers/disk_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/state_file/encode.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"

namespace gdn {
namespace {

constexpr std::string_view kFullName = "state.safetensors";
constexpr std::string_view kDeltaName = "state.delta.safetensors";
constexpr size_t kMaxId = 128;
constexpr int64_t kDeltaShare = 2;

bool IsId(const std::string& id) {
  return !id.empty() && id.size() <= kMaxId && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '~' || c == '-';
  });
}

bool IsPrincipal(const std::string& principal) {
  return principal.size() <= kMaxId && std::all_of(principal.begin(), principal.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
         });
}

// The key's parts become names of folders and files.
absl::Status ValidateKey(const StateKey& key) {
  if (IsPrincipal(key.principal) && IsId(key.id) && (key.checkpoint.empty() || IsId(key.checkpoint))) {
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidName,
                   StrCat("'", key.ToString(), "' of principal '", key.principal,
                          "' is no name for a state; expected 1 to 128 of [A-Za-z0-9._~-] and hexadecimal digits"));
}

// Whether to write a delta to a file that holds `bases` in `full_bytes`: where it leaves out most of the session's bases, and
// takes, by an estimate that makes none, less than 1 / kDeltaShare of that file.
bool IsDeltaWorthwhile(const SessionImage& image, const BaseVersions& bases, int64_t full_bytes) {
  const LayerDims& dims = image.layout.dims();
  int64_t floats = 0;
  int64_t bytes = 0;
  size_t left_out_layers = 0;
  for (const LayerImage& layer : image.layers) {
    const auto known = bases.find(layer.layer);
    const bool left_out =
        !layer.has_base || (known != bases.end() && layer.base_version != 0 && known->second == layer.base_version);
    const int64_t entries = int64_t{layer.extent.log_length} + layer.extent.draft_length;
    left_out_layers += left_out;
    if (!left_out) floats += dims.state_elements();
    floats += entries * (dims.key_features() + dims.value_features() + dims.value_heads);
    if (dims.conv_width > 0) floats += dims.conv_channels() * (dims.conv_width - 1 + layer.extent.draft_length);
    if (layer.reply != nullptr) bytes += static_cast<int64_t>(layer.reply->output.size());
  }
  bytes += floats * static_cast<int64_t>(sizeof(float));
  return 2 * left_out_layers > image.layers.size() && bytes < full_bytes / kDeltaShare;
}

absl::Status CheckOwner(const StateKey& key, const StateFile& file) {
  if (file.has_owner && file.header.principal == key.principal && file.header.id == key.id) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                   StrCat("the file is of 'sessions/", file.header.id, "' of principal '", file.header.principal,
                          "', and not of ", key.ToString(), " of principal '", key.principal, "'"),
                   {{"tensor", "header"}});
}

}  // namespace

DiskTier::DiskTier(const DiskTierOptions& options, HostBlockPool& memory, int lock_fd)
    : options_(options), memory_(memory), lock_fd_(lock_fd) {
  usage_.name = name();
  usage_.limit_bytes = options.limit_bytes;
}

DiskTier::~DiskTier() { close(lock_fd_); }

std::string DiskTier::SessionsFolder() const { return StrCat(options_.directory, "/sessions"); }

std::string DiskTier::PrincipalFolder(const StateKey& key) const {
  return StrCat(SessionsFolder(), "/", key.principal.empty() ? "anonymous" : key.principal);
}

std::string DiskTier::SessionFolder(const StateKey& key) const { return StrCat(PrincipalFolder(key), "/s-", key.id); }

std::string DiskTier::FullPath(const StateKey& key) const {
  if (key.checkpoint.empty()) return StrCat(SessionFolder(key), "/", kFullName);
  return StrCat(SessionFolder(key), "/checkpoint-", key.checkpoint, ".safetensors");
}

std::string DiskTier::DeltaPath(const StateKey& key) const { return StrCat(SessionFolder(key), "/", kDeltaName); }

absl::StatusOr<StoreResult> DiskTier::Store(const StateKey& key, const SessionImagePtr& image) {
  auto result = StoreFiles(key, image);
  if (!result.ok()) return Counted(result.status());
  absl::MutexLock lock(&mu_);
  ++usage_.stores;
  usage_.stored_bytes += result->written_bytes;
  return result;
}

absl::StatusOr<StoreResult> DiskTier::StoreFiles(const StateKey& key, const SessionImagePtr& image) {
  GDN_RETURN_IF_ERROR(ValidateKey(key));
  const Entry entry = Find(key);
  for (const LayerImage& layer : image->layers) {
    if (layer.has_base) continue;
    const auto known = entry.bases.find(layer.layer);
    if (known == entry.bases.end() || known->second != layer.base_version) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, reason::kStateMismatch,
          StrCat("the image of ", key.ToString(), " has no base of layer ", layer.layer,
                 ", and the disk has another; take the image anew, with all that KnownBases does not name"),
          {{"field", "has_base"}});
    }
  }
  const bool incremental =
      !entry.snapshot_id.empty() && !entry.rewrite && IsDeltaWorthwhile(*image, entry.bases, entry.full_bytes);
  return incremental ? StoreDelta(key, image, entry) : StoreFull(key, image, entry);
}

absl::StatusOr<StoreResult> DiskTier::StoreDelta(const StateKey& key, const SessionImagePtr& image, Entry entry) {
  GDN_ASSIGN_OR_RETURN(const EncodedStateFile delta, EncodeStateFile(image, {.include_owner = true,
                                                                             .base_snapshot_id = entry.snapshot_id,
                                                                             .known_bases = entry.bases}));
  const NewFile file{.name = std::string(kDeltaName), .bytes = delta.bytes(), .replaced_bytes = entry.delta_bytes};
  const ReplaceResult written = Write(key, file, delta.pieces());
  if (written.replaced) {
    entry.delta_bytes = delta.bytes();
    entry.rewrite = !written.status.ok();
    Put(key, std::move(entry));
  }
  GDN_RETURN_IF_ERROR(written.status);
  return StoreResult{.written_bytes = delta.bytes(), .incremental = true};
}

absl::StatusOr<StoreResult> DiskTier::StoreFull(const StateKey& key, const SessionImagePtr& image, const Entry& entry) {
  EncodedStateFile encoded;
  std::string merged;
  Entry next;
  std::vector<std::string_view> pieces;
  const bool partial =
      std::any_of(image->layers.begin(), image->layers.end(), [](const LayerImage& layer) { return !layer.has_base; });
  if (partial) {
    // The bases that the image lacks are in the file that is replaced.
    GDN_ASSIGN_OR_RETURN(encoded,
                         EncodeStateFile(image, {.include_owner = true, .base_snapshot_id = entry.snapshot_id}));
    std::string delta;
    for (const std::string_view piece : encoded.pieces()) delta += piece;
    GDN_ASSIGN_OR_RETURN(const FileInMemory full, Read(FullPath(key)));
    auto whole = MergeDelta(full.bytes, delta);
    if (!whole.ok()) return WithPrefix(whole.status(), FullPath(key));
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
  const NewFile file{.name = FullPath(key).substr(SessionFolder(key).size() + 1),
                     .bytes = next.full_bytes,
                     .replaced_bytes = entry.full_bytes + entry.delta_bytes};
  const ReplaceResult written = Write(key, file, pieces);
  if (!written.replaced) return written.status;
  if (!key.checkpoint.empty()) {
    next.snapshot_id.clear();  // never a base of deltas
    next.bases.clear();
  }
  // Until the folder is known to be synced, a crash may bring back the old file, which then needs its delta. Beside the new
  // file that is of no account; so it is if it cannot be removed.
  const bool kept = entry.delta_bytes > 0 && (!written.status.ok() || !RemoveFile(DeltaPath(key)).ok());
  if (kept) {
    next.delta_bytes = entry.delta_bytes;
    AddUsed(entry.delta_bytes);
  }
  next.rewrite = !written.status.ok();
  const int64_t bytes = next.full_bytes;
  Put(key, std::move(next));
  GDN_RETURN_IF_ERROR(written.status);
  return StoreResult{.written_bytes = bytes, .incremental = false};
}

ReplaceResult DiskTier::Write(const StateKey& key, const NewFile& file, const std::vector<std::string_view>& pieces) {
  if (absl::Status status = Reserve(file); !status.ok()) return {.status = std::move(status)};
  ReplaceResult result{.status = MakeSessionFolder(key)};
  if (result.status.ok()) result = ReplaceFile(SessionFolder(key), file.name, pieces);
  if (!result.replaced) AddUsed(file.replaced_bytes - file.bytes);
  return result;
}

absl::Status DiskTier::MakeSessionFolder(const StateKey& key) {
  const std::pair<std::string, std::string> folders[] = {{SessionsFolder(), PrincipalFolder(key)},
                                                         {PrincipalFolder(key), SessionFolder(key)}};
  for (const auto& [parent, folder] : folders) {
    {
      absl::MutexLock lock(&mu_);
      if (synced_folders_.count(folder) != 0) continue;
    }
    GDN_RETURN_IF_ERROR(MakeFolder(folder));
    GDN_RETURN_IF_ERROR(SyncFolder(parent));
    absl::MutexLock lock(&mu_);
    synced_folders_.insert(folder);
  }
  return absl::OkStatus();
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
    GDN_ASSIGN_OR_RETURN(file.block, memory_.TakeForFile(bytes));
    return file.block.chars();
  };
  GDN_ASSIGN_OR_RETURN(file.bytes, ReadFile(path, room, options_.pool));
  return file;
}

absl::StatusOr<SessionImagePtr> DiskTier::LoadFiles(const StateKey& key, int64_t& bytes) {
  GDN_RETURN_IF_ERROR(ValidateKey(key));
  const Entry entry = Find(key);
  struct Files {
    FileInMemory full, delta;
  };
  const auto files = std::make_shared<Files>();
  GDN_ASSIGN_OR_RETURN(files->full, Read(FullPath(key)));
  auto full = ParseStateFile(files->full.bytes, options_.pool);
  if (!full.ok()) return WithPrefix(full.status(), FullPath(key));
  StateFile* state = &*full;
  BaseVersions bases = full->snapshot_id == entry.snapshot_id ? entry.bases : BaseVersions();

  absl::StatusOr<StateFile> delta = StateFile();
  if (key.checkpoint.empty()) {
    auto read = Read(DeltaPath(key));
    if (!read.ok() && !absl::IsNotFound(read.status())) return read.status();
    if (read.ok()) {
      files->delta = *std::move(read);
      delta = ParseStateFile(files->delta.bytes);
      if (!delta.ok()) return WithPrefix(delta.status(), DeltaPath(key));
    }
  }
  // One to an earlier file was about to be removed when the process ended.
  if (!delta->base_snapshot_id.empty() && delta->base_snapshot_id == full->snapshot_id) {
    for (const StateFileLayer& layer : delta->layers) {
      if (layer.has_base) bases.erase(layer.layer);
    }
    if (const absl::Status status = CompleteDelta(*full, *delta); !status.ok()) {
      return WithPrefix(status, DeltaPath(key));
    }
    state = &*delta;
  }
  if (const absl::Status status = CheckOwner(key, *state); !status.ok()) return WithPrefix(status, FullPath(key));
  GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(state->header.dims, options_.max_draft));
  GDN_ASSIGN_OR_RETURN(SessionImage image, ReadImage(*state, layout, files));
  for (LayerImage& layer : image.layers) {
    if (const auto known = bases.find(layer.layer); known != bases.end()) layer.base_version = known->second;
  }
  bytes = static_cast<int64_t>(files->full.bytes.size() + files->delta.bytes.size());
  return std::make_shared<const SessionImage>(std::move(image));
}

absl::Status DiskTier::Erase(const StateKey& key) { return Counted(EraseFiles(key, /*all=*/false)); }

absl::Status DiskTier::EraseAll(const StateKey& key) { return Counted(EraseFiles(key, /*all=*/true)); }

absl::Status DiskTier::EraseFiles(const StateKey& key, bool all) {
  GDN_RETURN_IF_ERROR(ValidateKey(key));
  const std::string folder = SessionFolder(key);
  if (access(folder.c_str(), F_OK) != 0 && errno == ENOENT) {
    Forget(key, all);
    return absl::OkStatus();
  }
  // The whole file first: without it a delta stands for nothing, and no older state comes to light.
  std::vector<std::string> paths = {FullPath(key)};
  if (all || key.checkpoint.empty()) paths.push_back(DeltaPath(key));
  if (all) {
    std::error_code error;
    for (const auto& file : std::filesystem::directory_iterator(folder, error)) paths.push_back(file.path().string());
    if (error) return IoError(error.value(), "list", folder);
  }
  for (const std::string& path : paths) GDN_RETURN_IF_ERROR(RemoveFile(path));
  Forget(key, all);
  if (rmdir(folder.c_str()) != 0) return SyncFolder(folder);  // there are checkpoints, or the session itself
  {
    absl::MutexLock lock(&mu_);
    synced_folders_.erase(folder);
  }
  return SyncFolder(PrincipalFolder(key));
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
  auto it = entries_.lower_bound(all ? StateKey{.principal = key.principal, .id = key.id, .checkpoint = {}} : key);
  while (it != entries_.end() &&
         (all ? it->first.principal == key.principal && it->first.id == key.id : it->first == key)) {
    usage_.used_bytes -= it->second.full_bytes + it->second.delta_bytes;
    if (it->first.checkpoint.empty()) --usage_.sessions;
    it = entries_.erase(it);
  }
}

absl::Status DiskTier::Reserve(const NewFile& file) {
  absl::MutexLock lock(&mu_);
  const int64_t used = usage_.used_bytes + file.bytes - file.replaced_bytes;
  if (options_.limit_bytes > 0 && used > options_.limit_bytes) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     StrCat("no room on disk for ", file.bytes, " more bytes: ", usage_.used_bytes, " of ",
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
  if (status.ok() || absl::IsNotFound(status)) return status;
  absl::MutexLock lock(&mu_);
  ++usage_.failures;
  return status;
}

}  // namespace gdn
