// The part of DiskTier for damaged states, which are set aside for people to inspect.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/disk/disk_tier.h"

namespace gdn {

std::optional<StateKey> DiskTier::NextKey(const std::optional<StateKey>& after) const {
  absl::MutexLock lock(&mu_);
  const auto it = after.has_value() ? entries_.upper_bound(*after) : entries_.begin();
  return it == entries_.end() ? std::nullopt : std::optional(it->first);
}

std::vector<std::string> DiskTier::PathsOf(const StateKey& key) const {
  std::vector<std::string> paths = {folder_->FullPath(key)};
  if (Find(key).delta_bytes > 0) paths.push_back(folder_->DeltaPath(key));
  return paths;
}

absl::StatusOr<bool> DiskTier::SetAside(const StateKey& key, const FileCheck& check, const absl::Status& damage) {
  if (!check.IsThere()) return false;
  const Entry entry = Find(key);
  if (entry.full_bytes == 0) return false;
  GDN_RETURN_IF_ERROR(Counted(folder_->SetAside(key)));
  NoteSetAside(key, entry.full_bytes + entry.delta_bytes);
  AddUsed(-entry.full_bytes - entry.delta_bytes);
  Put(key, {.damage = damage});
  Counted(damage).IgnoreError();
  return true;
}

void DiskTier::NoteSetAside(const StateKey& key, int64_t bytes) {
  std::vector<StateKey> oldest;
  {
    absl::MutexLock lock(&mu_);
    usage_.used_bytes += bytes - ForgetSetAside(key);
    aside_[key] = {.number = next_aside_++, .bytes = bytes};
    while (aside_.size() > kMostSetAside) {
      const auto first = std::ranges::min_element(aside_, {}, [](const auto& aside) { return aside.second.number; });
      oldest.push_back(first->first);
      usage_.used_bytes -= ForgetSetAside(oldest.back());
    }
  }
  // Removes these files by name, without a lock. Whatever the session's owner does meanwhile, nobody reads them.
  for (const StateKey& old : oldest) {
    for (const std::string& path : {folder_->FullPath(old), folder_->DeltaPath(old)}) {
      if (path == folder_->DeltaPath(old) && !old.checkpoint.empty()) continue;
      Counted(RemoveFile(DiskFolder::AsidePath(path))).IgnoreError();
    }
  }
}

int64_t DiskTier::ForgetSetAside(const StateKey& key) {
  const auto it = aside_.find(key);
  if (it == aside_.end()) return 0;
  const int64_t bytes = it->second.bytes;
  aside_.erase(it);
  return bytes;
}

DiskTier::SetAsideFiles DiskTier::set_aside() const {
  absl::MutexLock lock(&mu_);
  SetAsideFiles files;
  for (const auto& [key, aside] : aside_) {
    ++files.states;
    files.bytes += aside.bytes;
  }
  return files;
}

absl::Status DiskTier::SetAsideBefore(const StateKey& key) const {
  return MakeError(
      absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
      StrCat("the file of ", key.ToString(), " was found damaged by an earlier server and set aside as '",
             DiskFolder::AsidePath(folder_->FullPath(key)),
             "'; if the session has a named checkpoint, restore it with RestoreCheckpoint; otherwise delete the "
             "session and create it again"),
      {{"tensor", "header"}});
}

}  // namespace gdn
