#include "state_store/tiers/disk/disk_space.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>

#include <spdlog/spdlog.h>

#include "base/error.h"
#include "base/string_cat.h"
#include "state_store/tiers/disk/durable_file.h"

namespace gdn {

absl::StatusOr<DiskSpace> SpaceOf(const std::string& folder) {
  struct statvfs found;
  if (statvfs(folder.c_str(), &found) != 0) return IoError(errno, "ask for the room of", folder);
  const auto bytes = [&found](fsblkcnt_t blocks) {
    return static_cast<int64_t>(blocks) * static_cast<int64_t>(found.f_frsize);
  };
  const int64_t used = bytes(found.f_blocks - found.f_bfree);
  return DiskSpace{.used_bytes = used, .total_bytes = used + bytes(found.f_bavail)};
}

DiskWatermarks::Seen DiskWatermarks::Ask() {
  const absl::StatusOr<DiskSpace> space = options_.space(folder_);
  absl::MutexLock lock(&mu_);
  if (!space.ok() || space->total_bytes <= 0) return seen_;
  seen_.space = *space;
  const int32_t mark = seen_.above ? options_.low_percent : options_.high_percent;
  const bool above = space->used_bytes > PercentOf(*space, mark);
  if (above == seen_.above) return seen_;
  seen_.above = above;
  if (above) {
    spdlog::warn(
        "degraded: no new states are put on the disk: {}. Free space there, or give the states another folder "
        "(--disk-dir)",
        Describe(*space));
  } else {
    spdlog::info("new states are put on the disk again: {}", Describe(*space));
  }
  return seen_;
}

std::string DiskWatermarks::Describe(const DiskSpace& space) const {
  return StrCat("the file system of '", folder_, "' has ", space.used_bytes, " of ", space.total_bytes,
                " bytes in use (--disk-high-watermark ", options_.high_percent, " %, --disk-low-watermark ",
                options_.low_percent, " %)");
}

void DiskWatermarks::Look() {
  if (on()) Ask();
}

absl::Status DiskWatermarks::Admit(int64_t bytes) {
  if (!on()) return absl::OkStatus();
  const Seen seen = Ask();
  const int64_t limit = PercentOf(seen.space, options_.high_percent);
  if (seen.lifted || seen.space.total_bytes == 0) return absl::OkStatus();
  if (!seen.above && seen.space.used_bytes + bytes <= limit) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                   StrCat("no room on disk for ", bytes, " bytes of a state that it has none of yet: ",
                          Describe(seen.space), ". Free space there, or end sessions"),
                   {{"tier", "disk"},
                    {"needed", StrCat(bytes)},
                    {"available", StrCat(std::max<int64_t>(limit - seen.space.used_bytes, 0))},
                    {kWatermark, StrCat(options_.high_percent)}});
}

void DiskWatermarks::Lift() {
  absl::MutexLock lock(&mu_);
  seen_.lifted = true;
}

std::string DiskWatermarks::problem() const {
  absl::MutexLock lock(&mu_);
  return seen_.above ? Describe(seen_.space) : "";
}

double DiskWatermarks::used_share() const {
  absl::MutexLock lock(&mu_);
  if (seen_.space.total_bytes == 0) return 0;
  return static_cast<double>(seen_.space.used_bytes) / static_cast<double>(seen_.space.total_bytes);
}

}  // namespace gdn
