#include "tools/gdnctl/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "tools/gdnctl/print.h"

ABSL_FLAG(bool, progress, false, "Show progress on stderr even if it is not a terminal.");

namespace gdn {
namespace {

constexpr int kBarColumns = 24;
constexpr absl::Duration kRedraw = absl::Milliseconds(100);

}  // namespace

std::string FormatProgress(std::string_view what, int64_t done, int64_t total, absl::Duration elapsed) {
  const double seconds = std::max(absl::ToDoubleSeconds(elapsed), 1e-3);
  const double rate = static_cast<double>(done) / seconds;
  const std::string speed = FormatBytes(static_cast<int64_t>(rate)) + "/s";
  if (total <= 0) return absl::StrFormat("%s  %s  %s", what, FormatBytes(done), speed);
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const int filled = static_cast<int>(share * kBarColumns);
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < kBarColumns) bar += '>';
  bar.resize(kBarColumns, ' ');
  std::string text = absl::StrFormat("%s  [%s] %3d%%  %s of %s  %s", what, bar, static_cast<int>(share * 100),
                                     FormatBytes(done), FormatBytes(total), speed);
  if (done < total && rate > 0) {
    absl::StrAppendFormat(
        &text, "  %s left",
        absl::FormatDuration(absl::Seconds(static_cast<int64_t>(static_cast<double>(total - done) / rate + 0.5))));
  }
  return text;
}

ProgressBar::ProgressBar(std::string_view what)
    : what_(what), enabled_(absl::GetFlag(FLAGS_progress) || isatty(STDERR_FILENO) == 1), begin_(absl::Now()) {}

ProgressBar::~ProgressBar() {
  if (shown_) absl::FPrintF(stderr, "\n");
}

void ProgressBar::Show(int64_t done, int64_t total) {
  const absl::Time now = absl::Now();
  if (!enabled_ || (now < next_ && done != total)) return;
  next_ = now + kRedraw;
  shown_ = true;
  absl::FPrintF(stderr, "\r%s\x1b[K", FormatProgress(what_, done, total, now - begin_));
  std::fflush(stderr);
}

}  // namespace gdn
