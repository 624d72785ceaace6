// A progress bar on stderr for transfers: bytes, rate, time left.
//
// Thread safety: for one thread at a time. Ownership: writes to stderr; the destructor ends the line.
//
//   ProgressBar bar("export");
//   call.progress = [&bar](int64_t done, int64_t total) { bar.Show(done, total); };
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/flags/declare.h"
#include "absl/time/time.h"

ABSL_DECLARE_FLAG(bool, progress);

namespace gdn {

// Returns "export  [=====>    ]  50%  32.0 MiB of 64.0 MiB  128.0 MiB/s  1s left". If total is 0: only bytes and rate.
std::string FormatProgress(std::string_view what, int64_t done, int64_t total, absl::Duration elapsed);

class ProgressBar {
 public:
  // Shows nothing unless stderr is a terminal or --progress is set.
  explicit ProgressBar(std::string_view what);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws the bar anew, at most every 100 ms, and always when done == total. In bytes; `total` is 0 if it is not known.
  void Show(int64_t done, int64_t total);

 private:
  const std::string what_;
  const bool enabled_;
  const absl::Time begin_;
  absl::Time next_;  // earliest time of the next update
  bool shown_ = false;
};

}  // namespace gdn
