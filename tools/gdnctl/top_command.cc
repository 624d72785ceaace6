// gdnctl top.

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/top_view.h"

ABSL_FLAG(absl::Duration, interval, absl::Seconds(2), "How long between two looks, such as 500ms or 2s.");
ABSL_FLAG(bool, once, false, "Print one interval and end.");

namespace gdn {
namespace {

// Of the terminal; elsewhere room for everything.
TopViewOptions ViewOptions(bool terminal) {
  winsize size{};
  if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
    return {.rows = size.ws_row, .columns = size.ws_col};
  }
  return {.rows = 1000, .columns = 1000};
}

// Over what is on the screen, line by line, so that nothing flickers; the screen needs no setting back when the command
// is interrupted.
std::string OnScreen(const std::string& view) {
  return StrCat("\x1b[H", absl::StrReplaceAll(view, {{"\n", "\x1b[K\n"}}), "\x1b[J");
}

absl::StatusOr<int> RunTop(const std::vector<std::string>&) {
  const absl::Duration interval = absl::GetFlag(FLAGS_interval);
  if (interval < absl::ZeroDuration()) return UsageError("--interval is negative; expected a duration such as 2s");
  const bool once = absl::GetFlag(FLAGS_once);
  const bool screen = !once && isatty(STDOUT_FILENO) != 0;
  const auto client = ConnectByFlags();
  GDN_ASSIGN_OR_RETURN(TopSample before, TakeTopSample(*client));
  if (screen) absl::PrintF("\x1b[2J");
  for (;;) {
    absl::SleepFor(interval);
    GDN_ASSIGN_OR_RETURN(TopSample now, TakeTopSample(*client));
    const std::string view = TopView(before, now, ViewOptions(screen));
    absl::PrintF("%s", screen ? OnScreen(view) : once ? view : StrCat(view, "\n"));
    // Whoever reads it may have gone.
    if (std::fflush(stdout) != 0 || once) return kExitOk;
    before = std::move(now);
  }
}

}  // namespace

std::vector<Command> TopCommands() {
  return {{.name = "top",
           .summary = "Show the server as it works: tiers, steps, the busiest sessions",
           .details =
               "In a terminal the table stays and changes; elsewhere each look is printed below the one before.\n"
               "Steps are shown where the server keeps calls (gdnctl trace --keep=1000).\n"
               "Sessions and steps are the caller's own.\n",
           .flags = {"interval", "once"},
           .run = RunTop}};
}

}  // namespace gdn
