#include "state_store/tiers/disk/principal_folders.h"

#include <unistd.h>

#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/disk/durable_file.h"

namespace gdn {

std::string PrincipalFolders::PathOf(std::string_view principal) const {
  return StrCat(directory_, "/", NameOf(principal));
}

PrincipalFolders::Hold::Hold(PrincipalFolders& folders, std::string_view principal)
    : folders_(folders), path_(folders.PathOf(principal)) {
  absl::MutexLock lock(&folders_.mu_);
  ++folders_.uses_[path_].holds;
}

PrincipalFolders::Hold::~Hold() {
  absl::MutexLock lock(&folders_.mu_);
  const auto it = folders_.uses_.find(path_);
  if (--it->second.holds > 0) return;
  // This fails while anything is in the folder. If a crash brings the empty folder back, the next scan removes it.
  rmdir(path_.c_str());
  folders_.uses_.erase(it);
}

bool PrincipalFolders::Hold::exists() const { return access(path_.c_str(), F_OK) == 0; }

absl::Status PrincipalFolders::Hold::Make() {
  {
    absl::MutexLock lock(&folders_.mu_);
    if (folders_.uses_[path_].durable) return absl::OkStatus();
  }
  GDN_RETURN_IF_ERROR(MakeFolder(path_));
  GDN_RETURN_IF_ERROR(SyncFolder(folders_.directory_));
  absl::MutexLock lock(&folders_.mu_);
  folders_.uses_[path_].durable = true;
  return absl::OkStatus();
}

}  // namespace gdn
