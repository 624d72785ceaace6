// Measures how full the disk's file system is, and decides whether new states may be written there. They may not from
// the time that usage is above the high watermark until it has fallen to the low one. Files of other programs count
// too.
//
// Thread safety: safe from any thread; Look and Admit query the file system. Ownership: plain values.
//
//   DiskWatermarks watermarks("/var/lib/gdn", {.high_percent = 95, .low_percent = 90});
//   GDN_RETURN_IF_ERROR(watermarks.Admit(bytes));
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace gdn {

// Usage of a file system. Blocks that are reserved for root do not count.
struct DiskSpace {
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;
};

// Returns the usage of the folder's file system, in bytes. Errors of durable_file.h: UNAVAILABLE (TIER_UNAVAILABLE:
// tier, path).
absl::StatusOr<DiskSpace> SpaceOf(const std::string& folder);

struct DiskWatermarkOptions {
  int32_t high_percent = 100;  // percent of the file system in use; 0 or 100: no watermarks
  int32_t low_percent = 100;   // below high_percent: usage at which new states are accepted again
  std::function<absl::StatusOr<DiskSpace>(const std::string& folder)> space = SpaceOf;
};

// Key in the metadata of Admit's error; the value is the high watermark in percent. It tells the caller that moving
// states out of the tier would not help.
inline constexpr char kWatermark[] = "watermark";

class DiskWatermarks {
 public:
  DiskWatermarks(std::string folder, DiskWatermarkOptions options)
      : folder_(std::move(folder)), options_(std::move(options)) {}

  bool on() const { return options_.high_percent > 0 && options_.high_percent < 100; }
  // Measures the usage, and updates problem() and used_share(); does nothing without watermarks. Logs if a watermark
  // was crossed. If the file system cannot be queried, nothing changes. May hang with the disk.
  void Look();
  // Measures the usage. OK if a new state of `bytes` bytes may be written: it fits below the high watermark, which was
  // not crossed, or there are no watermarks. Else RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED: tier, needed, available,
  // watermark). May hang with the disk.
  absl::Status Admit(int64_t bytes);
  // Makes Admit accept everything from now on. For shutdown, when a state that is not stored is lost.
  void Lift();

  // Returns why no new states are accepted, with figures, as of the last measurement. "" if they are accepted.
  std::string problem() const;
  double used_share() const;  // used part of the file system, 0 to 1, as of the last measurement; 0 before

 private:
  struct Seen {
    DiskSpace space;
    bool above = false;  // above the watermark: no new states
    bool lifted = false;
  };
  // Measures the usage and returns the result.
  Seen Ask();
  int64_t PercentOf(const DiskSpace& space, int32_t percent) const { return space.total_bytes / 100 * percent; }
  std::string Describe(const DiskSpace& space) const;

  const std::string folder_;
  const DiskWatermarkOptions options_;

  mutable absl::Mutex mu_;
  Seen seen_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
