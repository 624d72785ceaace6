// gdnctl top.

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/key_watch.h"
#include "tools/gdnctl/top/top_figures.h"
#include "tools/gdnctl/top/top_view.h"

ABSL_FLAG(absl::Duration, interval, absl::Seconds(2), "Time between two refreshes, such as 500ms or 2s.");
ABSL_FLAG(bool, once, false, "Print one interval and exit.");

namespace gdn {
namespace {

constexpr size_t kMostLooks = 120;  // that the row of bars remembers

bool TerminalShowsUtf8() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string lower = absl::AsciiStrToLower(value);
    return absl::StrContains(lower, "utf-8") || absl::StrContains(lower, "utf8");
  }
  return false;
}

// Fits the terminal as it is now; elsewhere there is room for everything.
TopViewOptions ViewOptions(bool terminal) {
  winsize size{};
  if (!terminal || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) {
    return {.rows = 1000, .columns = 1000};
  }
  const char* const no_colour = std::getenv("NO_COLOR");
  return {.rows = size.ws_row,
          .columns = size.ws_col,
          .colours = no_colour == nullptr || *no_colour == '\0',
          .utf8 = TerminalShowsUtf8()};
}

// Over what is on the screen, line by line, so that nothing flickers.
std::string OnScreen(const std::string& view) {
  return StrCat("\x1b[H", absl::StrReplaceAll(view, {{"\n", "\x1b[K\n"}}), "\x1b[J");
}

absl::StatusOr<int> RunTop(const std::vector<std::string>&) {
  const absl::Duration interval = absl::GetFlag(FLAGS_interval);
  if (interval < absl::ZeroDuration()) return UsageError("--interval is negative; expected a duration such as 2s");
  const bool once = absl::GetFlag(FLAGS_once);
  const bool json = absl::GetFlag(FLAGS_json);
  const bool screen = !once && !json && isatty(STDOUT_FILENO) != 0;
  const auto client = ConnectByFlags();
  GDN_ASSIGN_OR_RETURN(TopSample before, TakeTopSample(*client));
  std::optional<KeyWatch> keys;
  if (screen) {
    keys.emplace();
    absl::PrintF("\x1b[2J");
  }
  std::vector<double> history;
  for (;;) {
    if (!keys.has_value()) {
      absl::SleepFor(interval);
    } else if (keys->WaitFor('q', interval)) {
      absl::PrintF("\n");
      return kExitOk;
    }
    GDN_ASSIGN_OR_RETURN(TopSample now, TakeTopSample(*client));
    const TopFigures figures = FiguresBetween(before, now);
    history.push_back(figures.tokens.value_or(0));
    if (history.size() > kMostLooks) history.erase(history.begin());
    if (json) {
      GDN_ASSIGN_OR_RETURN(const std::string document, TopJson(figures));
      absl::PrintF("%s", document);
    } else {
      const std::string view = TopView(figures, history, ViewOptions(screen));
      absl::PrintF("%s", screen ? OnScreen(view + "q ends") : once ? view : StrCat(view, "\n"));
    }
    // Whoever reads it may have gone.
    if (std::fflush(stdout) != 0 || once) return kExitOk;
    before = std::move(now);
  }
}

}  // namespace

std::vector<Command> TopCommands() {
  return {
      {.name = "top",
       .summary = "Show the running server in a live table: tiers, steps, the busiest sessions",
       .details =
           "In a terminal the table is refreshed in place. Elsewhere each table is printed below the previous one.\n"
           "Steps are shown only if the server records calls (gdnctl trace --keep=1000).\n"
           "Sessions and steps are your own.\n",
       .flags = {"interval", "once", "json"},
       .run = RunTop}};
}

}  // namespace gdn
