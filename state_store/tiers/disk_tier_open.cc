// What a server does with the folder when it starts, and the last thing when it ends.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "spdlog/spdlog.h"
#include "state_store/state_file/parse.h"
#include "state_store/tiers/disk_tier.h"

namespace gdn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCleanName = "clean";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kCheckpointPrefix = "checkpoint-";
constexpr std::string_view kSessionPrefix = "s-";

// The folder and those above it, each durable where it is new.
absl::Status MakeFolders(const std::string& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return absl::OkStatus();
  const std::string parent = fs::path(folder).parent_path().string();
  if (!parent.empty() && parent != folder) GDN_RETURN_IF_ERROR(MakeFolders(parent));
  GDN_RETURN_IF_ERROR(MakeFolder(folder));
  if (!fs::is_directory(folder, error)) return IoError(ENOTDIR, "use", folder);
  return SyncFolder(parent.empty() ? "." : parent);
}

absl::StatusOr<int> TakeLock(const std::string& directory) {
  const std::string path = StrCat(directory, "/lock");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) return IoError(errno, "create", path);
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int error = errno;
  close(fd);
  if (error != EWOULDBLOCK) return IoError(error, "lock", path);
  return MakeError(absl::StatusCode::kUnavailable, reason::kTierUnavailable,
                   StrCat("another server keeps its states in '", directory,
                          "'; give each server a folder of its own (--disk-dir), or end the other one"),
                   {{"tier", "disk"}, {"path", directory}});
}

// The entries of a folder; none where it has gone.
absl::StatusOr<std::vector<fs::directory_entry>> Entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) entries.push_back(*it);
  if (error && error != std::errc::no_such_file_or_directory) return IoError(error.value(), "list", folder.string());
  return entries;
}

int64_t FileBytes(const fs::directory_entry& file) {
  std::error_code error;
  const auto size = file.file_size(error);
  return error ? 0 : static_cast<int64_t>(size);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(const DiskTierOptions& options, HostBlockPool& memory) {
  DiskTierOptions settled = options;
  std::error_code error;
  // "a/b/" and "a/b" are one folder, and stay it when the process changes its own.
  settled.directory = fs::absolute(options.directory, error).lexically_normal().string();
  if (error || options.directory.empty()) {
    return IoError(options.directory.empty() ? EINVAL : error.value(), "find the folder", options.directory);
  }
  while (settled.directory.size() > 1 && settled.directory.back() == '/') settled.directory.pop_back();
  GDN_RETURN_IF_ERROR(MakeFolders(settled.directory));
  GDN_ASSIGN_OR_RETURN(const int lock_fd, TakeLock(settled.directory));
  std::unique_ptr<DiskTier> tier(new DiskTier(settled, memory, lock_fd));
  GDN_RETURN_IF_ERROR(MakeFolders(tier->SessionsFolder()));
  GDN_ASSIGN_OR_RETURN(const std::vector<Found> all, tier->Scan(/*remove_leftovers=*/true));
  for (const Found& found : all) {
    Entry entry;
    entry.full_bytes = found.full_bytes;
    entry.delta_bytes = found.delta_bytes;
    tier->Put(found.key, std::move(entry));
    tier->AddUsed(found.full_bytes + found.delta_bytes);
  }
  return tier;
}

absl::StatusOr<std::vector<DiskTier::Found>> DiskTier::Scan(bool remove_leftovers) const {
  std::map<StateKey, Found> found;
  GDN_ASSIGN_OR_RETURN(const auto principals, Entries(SessionsFolder()));
  for (const fs::directory_entry& principal : principals) {
    std::string name = principal.path().filename().string();
    if (name == "anonymous") name.clear();
    GDN_ASSIGN_OR_RETURN(const auto sessions, Entries(principal.path()));
    for (const fs::directory_entry& session : sessions) {
      const std::string folder = session.path().filename().string();
      if (!folder.starts_with(kSessionPrefix)) continue;
      const StateKey key{.principal = name, .id = folder.substr(kSessionPrefix.size()), .checkpoint = {}};
      GDN_ASSIGN_OR_RETURN(const auto files, Entries(session.path()));
      for (const fs::directory_entry& file : files) {
        const std::string path = file.path().string();
        if (path.ends_with(kTemporarySuffix)) {
          if (remove_leftovers) GDN_RETURN_IF_ERROR(RemoveFile(path));
        } else if (path == FullPath(key)) {
          found[key].full_bytes = FileBytes(file);
        } else if (path == DeltaPath(key)) {
          found[key].delta_bytes = FileBytes(file);
        } else if (std::string cid = file.path().filename().string();
                   cid.starts_with(kCheckpointPrefix) && cid.ends_with(kSuffix)) {
          StateKey checkpoint = key;
          checkpoint.checkpoint =
              cid.substr(kCheckpointPrefix.size(), cid.size() - kCheckpointPrefix.size() - kSuffix.size());
          found[checkpoint].full_bytes = FileBytes(file);
        }
      }
      // A delta whose whole file was removed: the session was being erased.
      std::error_code error;
      if (const auto it = found.find(key); it != found.end() && !fs::exists(FullPath(key), error)) {
        if (remove_leftovers) GDN_RETURN_IF_ERROR(RemoveFile(DeltaPath(key)));
        found.erase(it);
      }
      if (remove_leftovers) rmdir(session.path().c_str());  // where nothing is left in it
    }
  }
  std::vector<Found> all;
  all.reserve(found.size());
  for (auto& [key, files] : found) {
    files.key = key;
    all.push_back(std::move(files));
  }
  return all;
}

absl::StatusOr<StoredSession> DiskTier::ReadEntry(const Found& found) {
  const auto read = [&found](const std::string& path) -> absl::StatusOr<StateFile> {
    GDN_ASSIGN_OR_RETURN(const FileHead head, ReadSafetensorsHead(path));
    auto file = ParseStateFileHeader(head.bytes, head.file_bytes);
    if (!file.ok()) return WithPrefix(file.status(), path);
    if (!file->has_owner || file->header.principal != found.key.principal || file->header.id != found.key.id) {
      return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                       StrCat(path, ": the file is of 'sessions/", file->header.id, "'"), {{"tensor", "header"}});
    }
    return file;
  };
  GDN_ASSIGN_OR_RETURN(StateFile file, read(FullPath(found.key)));
  StoredSession stored;
  stored.key = found.key;
  stored.bytes = found.full_bytes;
  if (found.delta_bytes > 0) {
    GDN_ASSIGN_OR_RETURN(StateFile delta, read(DeltaPath(found.key)));
    if (delta.base_snapshot_id == file.snapshot_id) {
      file = std::move(delta);
      stored.bytes += found.delta_bytes;
    } else {
      GDN_RETURN_IF_ERROR(RemoveFile(DeltaPath(found.key)));
      Entry entry = Find(found.key);
      entry.delta_bytes = 0;
      Put(found.key, std::move(entry));
      AddUsed(-found.delta_bytes);
    }
  }
  stored.header = std::move(file.header);
  stored.stored_at = file.created;
  for (const StateFileLayer& layer : file.layers) {
    stored.layers.emplace_back(layer.layer, layer.extent);
    stored.kinds.push_back(layer.kind);
  }
  return stored;
}

absl::StatusOr<std::vector<StoredSession>> DiskTier::List() {
  GDN_ASSIGN_OR_RETURN(const std::vector<Found> all, Scan(/*remove_leftovers=*/false));
  std::vector<StoredSession> sessions;
  sessions.reserve(all.size());
  for (const Found& found : all) {
    auto stored = ReadEntry(found);
    if (stored.ok()) {
      sessions.push_back(*std::move(stored));
      continue;
    }
    Counted(stored.status()).IgnoreError();
    spdlog::warn("disk tier: {} is passed over: {}", found.key.ToString(), stored.status().ToString());
  }
  return sessions;
}

absl::Status DiskTier::WriteCleanMarker(int64_t sessions) {
  const std::string text = StrCat(sessions);
  return ReplaceFile(options_.directory, std::string(kCleanName), {text}).status;
}

absl::StatusOr<std::optional<int64_t>> DiskTier::TakeCleanMarker() {
  const std::string path = StrCat(options_.directory, "/", kCleanName);
  const auto file = ReadSmallFile(path);
  if (absl::IsNotFound(file.status())) return std::optional<int64_t>();
  GDN_RETURN_IF_ERROR(file.status());
  int64_t sessions = 0;
  const bool valid = absl::SimpleAtoi(AbslView(*file), &sessions) && sessions >= 0;
  GDN_RETURN_IF_ERROR(RemoveFile(path));
  GDN_RETURN_IF_ERROR(SyncFolder(options_.directory));
  return valid ? std::optional<int64_t>(sessions) : std::nullopt;
}

}  // namespace gdn
