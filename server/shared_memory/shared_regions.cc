#include "server/shared_memory/shared_regions.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// Removes the file if this user owns it and no server has its lock.
void RemoveIfLeft(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  struct stat found {};
  if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid() &&
      flock(fd, LOCK_EX | LOCK_NB) == 0) {
    unlink(path.c_str());
  }
  close(fd);
}

// Removes the files that killed servers have left.
void RemoveLeftFiles(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(kSharedRegionPrefix)) RemoveIfLeft(it->path().string());
  }
}

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                   "the server is shutting down and shares no more memory");
}

absl::Status OverLimit(std::string_view limit, int64_t needed, int64_t available) {
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kSharedMemoryExhausted,
                   StrCat("over the limit of ", limit, ": ", needed, " needed, ", available,
                          " available; end regions that are not used, or send tensors in the messages"),
                   {{"needed", StrCat(needed)}, {"available", StrCat(available)}});
}

}  // namespace

SharedRegions::SharedRegions(SharedMemoryOptions options) : options_(std::move(options)) {
  if (options_.directory.empty()) {
    unavailable_ = "it is turned off (--shared-memory-dir)";
    return;
  }
  RemoveLeftFiles(options_.directory);
  const auto tried = SharedRegion::Make(options_.directory, /*bytes=*/1);
  if (!tried.ok()) unavailable_ = std::string(tried.status().message());
}

SharedRegions::~SharedRegions() {
  absl::flat_hash_map<std::string, Entry> left;
  absl::MutexLock lock(&mu_);
  left.swap(entries_);
}

int64_t SharedRegions::used_bytes() const {
  absl::MutexLock lock(&mu_);
  return total_.bytes;
}

absl::Status SharedRegions::Charge(const std::string& account, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  if (draining_) return Draining();
  const auto found = used_.find(account);
  const Use own = found == used_.end() ? Use() : found->second;
  if (bytes > options_.bytes_per_principal - own.bytes) {
    return OverLimit("bytes a caller", bytes, options_.bytes_per_principal - own.bytes);
  }
  if (bytes > options_.bytes - total_.bytes) {
    return OverLimit("bytes of all callers", bytes, options_.bytes - total_.bytes);
  }
  if (own.regions >= options_.regions_per_principal) return OverLimit("regions a caller", 1, 0);
  if (total_.regions >= options_.regions) return OverLimit("regions of all callers", 1, 0);
  for (Use* use : {&used_[account], &total_}) {
    use->bytes += bytes;
    ++use->regions;
  }
  return absl::OkStatus();
}

void SharedRegions::Credit(const std::string& account, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  const auto own = used_.find(account);
  for (Use* use : {&own->second, &total_}) {
    use->bytes -= bytes;
    --use->regions;
  }
  if (own->second.regions == 0) used_.erase(own);
}

absl::Status SharedRegions::CheckOffered(int64_t bytes) const {
  if (!offered()) {
    return MakeError(absl::StatusCode::kUnimplemented, reason::kSharedMemoryNotOffered,
                     StrCat("this server shares no memory: ", unavailable_, "; send tensors in the messages"));
  }
  if (bytes < 1) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("bytes is ", bytes, ", expected at least 1"), {{"field", "bytes"}});
  }
  return absl::OkStatus();
}

absl::StatusOr<SharedRegionPtr> SharedRegions::Open(const std::string& principal, const std::string& account,
                                                    int64_t bytes) {
  GDN_RETURN_IF_ERROR(CheckOffered(bytes));
  GDN_RETURN_IF_ERROR(Charge(account, bytes));
  auto made = SharedRegion::Make(options_.directory, bytes);
  if (!made.ok()) {
    Credit(account, bytes);
    return made.status();
  }
  const std::shared_ptr<SharedRegion> region(made->release(), [this, account, bytes](SharedRegion* owned) {
    delete owned;
    Credit(account, bytes);
  });
  {
    absl::MutexLock lock(&mu_);
    if (!draining_) {
      entries_[region->name()] = {.region = region, .principal = principal};
      return SharedRegionPtr(region);
    }
  }
  return Draining();  // the drain began after Charge
}

absl::StatusOr<std::shared_ptr<void>> SharedRegions::ChargeRing(const std::string& account, int64_t bytes) {
  GDN_RETURN_IF_ERROR(CheckOffered(bytes));
  GDN_RETURN_IF_ERROR(Charge(account, bytes));
  return std::shared_ptr<void>(this, [account, bytes](SharedRegions* of) { of->Credit(account, bytes); });
}

absl::StatusOr<SharedRegionPtr> SharedRegions::Find(const std::string& principal, const std::string& name) const {
  absl::MutexLock lock(&mu_);
  const auto found = entries_.find(name);
  if (found != entries_.end() && found->second.principal == principal) return SharedRegionPtr(found->second.region);
  return MakeError(
      absl::StatusCode::kNotFound, reason::kSharedRegionNotFound,
      StrCat("no shared-memory region named '", name, "'; a region ends with its ShareMemory call: share memory again"),
      {{"region", name}});
}

bool SharedRegions::End(const std::string& name) {
  Entry ended;
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return false;
    ended = std::move(found->second);
    entries_.erase(found);
  }
  ended.region->Unlink();
  return true;
}

void SharedRegions::Drain() {
  absl::flat_hash_map<std::string, Entry> ended;
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    ended.swap(entries_);
  }
  for (auto& [name, entry] : ended) entry.region->Unlink();
  drained_.Raise();
}

}  // namespace gdn
