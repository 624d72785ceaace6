#include "state_store/tiers/disk/disk_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/name_rules.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "spdlog/spdlog.h"
#include "state_store/tiers/disk/durable_file.h"

namespace gdn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFullName = "state.safetensors";
constexpr std::string_view kDeltaName = "state.delta.safetensors";
constexpr std::string_view kCheckpointPrefix = "checkpoint-";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kAsideSuffix = ".damaged";
constexpr std::string_view kSessionPrefix = "s-";
constexpr std::string_view kGonePrefix = "gone-";
constexpr char kCleanName[] = "clean";
constexpr char kIncarnationName[] = "incarnation";
constexpr char kSecretName[] = "principal-key";
// A bound against damaged files, because epochs are made from the number. No server starts so often.
constexpr int64_t kMostStarts = int64_t{1} << 40;

bool IsPrincipal(const std::string& principal) {
  return principal.size() <= kMaxSessionIdLength &&
         std::ranges::all_of(principal, [](unsigned char c) { return absl::ascii_isxdigit(c); });
}

// Makes the folder and those above it. Each new folder is durable.
absl::Status MakeFolders(const std::string& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return absl::OkStatus();
  const std::string parent = fs::path(folder).parent_path().string();
  if (!parent.empty() && parent != folder) GDN_RETURN_IF_ERROR(MakeFolders(parent));
  if (fs::symlink_status(folder, error).type() == fs::file_type::symlink && !fs::exists(folder, error)) {
    return MakeError(absl::StatusCode::kNotFound, reason::kTierUnavailable,
                     StrCat("'", folder, "' is a symbolic link to '", fs::read_symlink(folder, error).string(),
                            "', which is not there; make that folder, or remove the link"),
                     {{"tier", "disk"}, {"path", folder}});
  }
  GDN_RETURN_IF_ERROR(MakeFolder(folder));
  if (!fs::is_directory(folder, error)) return IoError(ENOTDIR, "use", folder);
  return SyncFolder(parent.empty() ? "." : parent);
}

absl::StatusOr<OwnedFd> TakeLock(const std::string& directory) {
  const std::string path = StrCat(directory, "/lock");
  OwnedFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!lock.valid()) return IoError(errno, "create", path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return IoError(errno, "lock", path);
  return MakeError(absl::StatusCode::kUnavailable, reason::kTierUnavailable,
                   StrCat("another server keeps its states in '", directory,
                          "'; give each server a folder of its own (--disk-dir), or end the other one"),
                   {{"tier", "disk"}, {"path", directory}});
}

// Returns true if there may be files in it. Follows links.
bool IsFolder(const fs::directory_entry& entry) {
  std::error_code error;
  return entry.is_directory(error) || error;  // if it cannot be told: the caller's listing reports the error
}

// Removes the folder and the files in it.
absl::Status RemoveFolder(const std::string& folder) {
  GDN_ASSIGN_OR_RETURN(const auto files, ListFolder(folder));
  for (const fs::directory_entry& file : files) GDN_RETURN_IF_ERROR(RemoveFile(file.path().string()));
  if (rmdir(folder.c_str()) != 0 && errno != ENOENT) return IoError(errno, "remove", folder);
  return absl::OkStatus();
}

int64_t FileBytes(const fs::directory_entry& file) {
  std::error_code error;
  const auto size = file.file_size(error);
  return error ? 0 : static_cast<int64_t>(size);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskFolder>> DiskFolder::Open(const std::string& directory) {
  std::error_code error;
  // "a/b/" and "a/b" are one folder, and stay the same folder when the process changes its working directory.
  std::string settled = fs::absolute(directory, error).lexically_normal().string();
  if (error || directory.empty()) {
    return IoError(directory.empty() ? EINVAL : error.value(), "find the folder", directory);
  }
  while (settled.size() > 1 && settled.back() == '/') settled.pop_back();
  GDN_RETURN_IF_ERROR(MakeFolders(settled));
  GDN_ASSIGN_OR_RETURN(OwnedFd lock, TakeLock(settled));
  std::unique_ptr<DiskFolder> folder(new DiskFolder(std::move(settled), std::move(lock)));
  GDN_RETURN_IF_ERROR(MakeFolders(folder->principals_.directory()));
  return folder;
}

absl::Status DiskFolder::ValidateKey(const StateKey& key) {
  if (IsPrincipal(key.principal) && IsStateId(key.id) && IsId(key.checkpoint, kMaxSessionIdLength)) {
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidName,
                   StrCat("'", key.ToString(), "' of principal '", key.principal,
                          "' is no name for a state; expected 1 to 128 of [A-Za-z0-9._~-], or + and a key, and "
                          "hexadecimal digits"));
}

std::string DiskFolder::SessionFolder(const StateKey& key) const {
  return StrCat(principals_.PathOf(key.principal), "/", kSessionPrefix, key.id);
}

std::string DiskFolder::FullName(const StateKey& key) {
  return key.checkpoint.empty() ? std::string(kFullName) : StrCat(kCheckpointPrefix, key.checkpoint, kSuffix);
}

std::string DiskFolder::DeltaName() { return std::string(kDeltaName); }

std::string DiskFolder::FullPath(const StateKey& key) const { return StrCat(SessionFolder(key), "/", FullName(key)); }

std::string DiskFolder::DeltaPath(const StateKey& key) const { return StrCat(SessionFolder(key), "/", kDeltaName); }

std::string DiskFolder::AsidePath(const std::string& path) { return StrCat(path, kAsideSuffix); }

absl::StatusOr<std::map<StateKey, DiskFolder::Files>> DiskFolder::Scan(bool remove_leftovers) const {
  std::map<StateKey, Files> found;
  GDN_ASSIGN_OR_RETURN(const auto principals, ListFolder(principals_.directory()));
  // Entries that no server made stay where they are. The log names them once.
  const auto pass_over = [remove_leftovers](const fs::directory_entry& stray) {
    if (remove_leftovers) spdlog::warn("disk tier: '{}' is no session's and is passed over", stray.path().string());
  };
  for (const fs::directory_entry& principal : principals) {
    const std::string name(PrincipalFolders::PrincipalOf(principal.path().filename().string()));
    if (!IsFolder(principal) || !IsPrincipal(name)) {
      pass_over(principal);
      continue;
    }
    GDN_ASSIGN_OR_RETURN(const auto sessions, ListFolder(principal.path().string()));
    for (const fs::directory_entry& session : sessions) {
      const std::string folder = session.path().filename().string();
      if (folder.starts_with(kGonePrefix)) {
        if (remove_leftovers) GDN_RETURN_IF_ERROR(RemoveFolder(session.path().string()));
        continue;
      }
      const std::string id = folder.starts_with(kSessionPrefix) ? folder.substr(kSessionPrefix.size()) : "";
      if (!IsFolder(session) || !IsStateId(id)) {
        pass_over(session);
        continue;
      }
      GDN_RETURN_IF_ERROR(ScanSession({.principal = name, .id = id, .checkpoint = {}}, remove_leftovers, found));
    }
    if (remove_leftovers) rmdir(principal.path().c_str());  // fails unless the folder is empty
  }
  return found;
}

absl::Status DiskFolder::ScanSession(const StateKey& key, bool remove_leftovers,
                                     std::map<StateKey, Files>& found) const {
  const std::string folder = SessionFolder(key);
  GDN_ASSIGN_OR_RETURN(const auto files, ListFolder(folder));
  for (const fs::directory_entry& file : files) {
    std::string name = file.path().filename().string();
    const bool aside = name.ends_with(kAsideSuffix);
    if (aside) name.resize(name.size() - kAsideSuffix.size());
    StateKey of = key;
    if (name.starts_with(kCheckpointPrefix) && name.ends_with(kSuffix)) {
      of.checkpoint = name.substr(kCheckpointPrefix.size(), name.size() - kCheckpointPrefix.size() - kSuffix.size());
    }
    if (aside) {
      if (name == kFullName || name == kDeltaName || !of.checkpoint.empty()) found[of].aside_bytes += FileBytes(file);
    } else if (name.ends_with(kTemporarySuffix)) {
      if (remove_leftovers) GDN_RETURN_IF_ERROR(RemoveFile(file.path().string()));
    } else if (name == kFullName) {
      found[key].full_bytes = FileBytes(file);
    } else if (name == kDeltaName) {
      found[key].delta_bytes = FileBytes(file);
    } else if (!of.checkpoint.empty()) {
      found[of].full_bytes = FileBytes(file);
    }
  }
  // There is a delta without its full file: the session was being erased.
  std::error_code error;
  if (const auto it = found.find(key); it != found.end() && !fs::exists(FullPath(key), error)) {
    if (remove_leftovers) GDN_RETURN_IF_ERROR(RemoveFile(DeltaPath(key)));
    it->second.delta_bytes = 0;
    if (it->second.aside_bytes == 0) found.erase(it);
  }
  if (remove_leftovers) rmdir(folder.c_str());  // fails unless the folder is empty
  return absl::OkStatus();
}

absl::Status DiskFolder::MakeSessionFolder(const StateKey& key) {
  const std::string folder = SessionFolder(key);
  {
    absl::MutexLock lock(&mu_);
    if (synced_folders_.contains(folder)) return absl::OkStatus();
  }
  PrincipalFolders::Hold principal(principals_, key.principal);
  GDN_RETURN_IF_ERROR(principal.Make());
  GDN_RETURN_IF_ERROR(MakeFolder(folder));
  GDN_RETURN_IF_ERROR(SyncFolder(principal.path()));
  absl::MutexLock lock(&mu_);
  synced_folders_.insert(folder);
  return absl::OkStatus();
}

absl::Status DiskFolder::RemoveFiles(const StateKey& key) const {
  // The full file goes first. Without it a delta is not used, so no older state appears.
  std::vector<std::string> paths = {FullPath(key), AsidePath(FullPath(key))};
  if (key.checkpoint.empty()) {
    paths.push_back(DeltaPath(key));
    paths.push_back(AsidePath(DeltaPath(key)));
  }
  for (const std::string& path : paths) GDN_RETURN_IF_ERROR(RemoveFile(path));
  return absl::OkStatus();
}

absl::Status DiskFolder::SyncRemoval(const StateKey& key) {
  const PrincipalFolders::Hold principal(principals_, key.principal);
  const std::string folder = SessionFolder(key);
  if (rmdir(folder.c_str()) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return SyncFolder(folder);  // checkpoints, or the session itself, are left
  }
  {
    absl::MutexLock lock(&mu_);
    synced_folders_.erase(folder);
  }
  return SyncFolder(principal.path());
}

absl::Status DiskFolder::RemoveSession(const StateKey& key) {
  const PrincipalFolders::Hold principal(principals_, key.principal);
  if (!principal.exists() && errno == ENOENT) return absl::OkStatus();
  const std::string folder = SessionFolder(key);
  const std::string gone = StrCat(principal.path(), "/", kGonePrefix, key.id);
  GDN_RETURN_IF_ERROR(RemoveFolder(gone));  // left by an earlier call
  {
    absl::MutexLock lock(&mu_);
    synced_folders_.erase(folder);
  }
  // Renames the folder at once to a name that is not a session's, so that no checkpoint outlives its session.
  const bool there = rename(folder.c_str(), gone.c_str()) == 0;
  if (!there && errno != ENOENT) return IoError(errno, "rename", folder);
  GDN_RETURN_IF_ERROR(SyncFolder(principal.path()));
  return there ? RemoveFolder(gone) : absl::OkStatus();
}

absl::Status DiskFolder::SetAside(const StateKey& key) const {
  // The full file goes first. Without it a delta is not used; a full file without its delta would be an older state.
  std::vector<std::string> paths = {FullPath(key)};
  if (key.checkpoint.empty()) paths.push_back(DeltaPath(key));
  for (const std::string& path : paths) {
    const std::string aside = AsidePath(path);
    if (rename(path.c_str(), aside.c_str()) == 0) continue;
    if (errno != ENOENT) return IoError(errno, "rename a file to", aside);
    GDN_RETURN_IF_ERROR(RemoveFile(aside));  // a file that was set aside earlier does not belong to this state
  }
  return SyncFolder(SessionFolder(key));
}

absl::Status DiskFolder::WriteCleanMarker(const CleanMarker& marker) const {
  const std::string text = marker.ToText();
  return ReplaceFile(directory_, kCleanName, {text}).status;
}

absl::StatusOr<std::optional<CleanMarker>> DiskFolder::TakeCleanMarker() const {
  const std::string path = StrCat(directory_, "/", kCleanName);
  int64_t file_bytes = 0;
  const auto file = ReadFileStart(path, static_cast<int64_t>(CleanMarker::kMostBytes) + 1, file_bytes);
  if (absl::IsNotFound(file.status())) return std::optional<CleanMarker>();
  GDN_RETURN_IF_ERROR(file.status());
  GDN_RETURN_IF_ERROR(RemoveFile(path));
  GDN_RETURN_IF_ERROR(SyncFolder(directory_));
  return CleanMarker::Parse(*file);
}

absl::StatusOr<int64_t> DiskFolder::NextIncarnation() const {
  const std::string path = StrCat(directory_, "/", kIncarnationName);
  int64_t incarnation = 0;
  const absl::StatusOr<std::string> file = ReadSmallFile(path);
  if (file.ok()) {
    if (!absl::SimpleAtoi(AbslView(*file), &incarnation) || incarnation < 0 || incarnation > kMostStarts) {
      return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                       StrCat("'", path, "' holds no number of starts; write one there that is higher than any before"),
                       {{"tier", "disk"}, {"path", path}});
    }
  } else if (!absl::IsNotFound(file.status())) {
    return file.status();
  }
  const std::string text = StrCat(++incarnation, "\n");
  GDN_RETURN_IF_ERROR(ReplaceFile(directory_, kIncarnationName, {text}).status);
  return incarnation;
}

absl::StatusOr<std::string> DiskFolder::KeepSecret(std::string_view proposed) const {
  const std::string path = StrCat(directory_, "/", kSecretName);
  absl::StatusOr<std::string> kept = ReadSmallFile(path);
  if (kept.ok() && kept->empty()) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                     StrCat("'", path,
                            "' is empty; without what was in it callers do not find their sessions: restore "
                            "it, or remove it together with them"),
                     {{"tier", "disk"}, {"path", path}});
  }
  if (!absl::IsNotFound(kept.status())) return kept;
  GDN_RETURN_IF_ERROR(ReplaceFile(directory_, kSecretName, {proposed}).status);
  return std::string(proposed);
}

}  // namespace gdn
