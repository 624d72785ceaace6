// How full the disk's file system is, whoever fills it, and whether new states may be put there: above the high
// watermark none are, until it has fallen to the low one.
//
// Thread safety: safe from any thread; Look and Admit ask the file system. Ownership: plain.
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

// Of a file system, without what only its administrator may use.
struct DiskSpace {
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;
};

// Of the one that the folder is on. UNAVAILABLE (TIER_UNAVAILABLE: tier, path).
absl::StatusOr<DiskSpace> SpaceOf(const std::string& folder);

struct DiskWatermarkOptions {
  int32_t high_percent = 100;  // of the file system; 0 or 100: no watermarks
  int32_t low_percent = 100;   // below high_percent
  std::function<absl::StatusOr<DiskSpace>(const std::string& folder)> space = SpaceOf;
};

// In the metadata of Admit's error: no room that others make in the tier helps.
inline constexpr char kWatermark[] = "watermark";

class DiskWatermarks {
 public:
  DiskWatermarks(std::string folder, DiskWatermarkOptions options)
      : folder_(std::move(folder)), options_(std::move(options)) {}

  bool on() const { return options_.high_percent > 0 && options_.high_percent < 100; }
  // Asks how full it is, and logs where that changes what is taken. Where nobody answers all stays as it was.
  void Look();
  // Whether a new state of so many bytes may be put there: RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED: tier, needed,
  // available, watermark).
  absl::Status Admit(int64_t bytes);
  // Takes everything from now on: at the server's end a state that is not stored is lost.
  void Lift();

  // As last seen. Why nothing new is taken, with figures; "": it is.
  std::string problem() const;
  double used_share() const;  // of the file system

 private:
  struct Seen {
    DiskSpace space;
    bool above = false;  // nothing new is taken
    bool lifted = false;
  };
  // As seen now.
  Seen Ask();
  int64_t PercentOf(const DiskSpace& space, int32_t percent) const { return space.total_bytes / 100 * percent; }
  std::string Describe(const DiskSpace& space) const;

  const std::string folder_;
  const DiskWatermarkOptions options_;

  mutable absl::Mutex mu_;
  Seen seen_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
