#include "server/config_reload.h"

#include <sys/stat.h>

#include <ctime>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <spdlog/spdlog.h>

namespace gdn {
namespace {

// What can change while the server runs, by flag. The rest is read once, at the start.
using LiveFlag = void (*)(GdnServer&, ServerOptions&, const ServerOptions&);
const std::map<std::string, LiveFlag>& LiveFlags() {
  static const auto* const flags = new std::map<std::string, LiveFlag>{
      {"drain_checkpoint_timeout",
       [](GdnServer&, ServerOptions& now, const ServerOptions& next) {
         now.drain_checkpoint_timeout = next.drain_checkpoint_timeout;
       }},
      {"drain_timeout",
       [](GdnServer&, ServerOptions& now, const ServerOptions& next) { now.drain_timeout = next.drain_timeout; }},
      {"log_level", [](GdnServer&, ServerOptions&,
                       const ServerOptions& next) { spdlog::set_level(spdlog::level::from_str(next.logging.level)); }},
      {"quotas", [](GdnServer& server, ServerOptions&, const ServerOptions& next) { server.SetQuotas(next.quotas); }},
      {"trace_calls",
       [](GdnServer& server, ServerOptions&, const ServerOptions& next) { server.tracer().Keep(next.trace_calls); }},
  };
  return *flags;
}

// Takes up what a changed file of --config says, as far as that is safe, and logs what it did not. Where nothing has
// changed it says so only if it was asked to look.
void Reload(GdnServer& server, ServerOptions& options, bool asked) {
  std::set<std::string> live;
  for (const auto& [name, apply] : LiveFlags()) live.insert(name);
  const absl::StatusOr<std::vector<FlagChange>> changes = ReloadConfig(live);
  if (!changes.ok()) {
    spdlog::error("the changed file of --config is not taken up, all stays as it is: {}",
                  std::string(changes.status().message()));
    return;
  }
  std::vector<std::string> none;
  const ServerOptions next = OptionsOfFlags(none);
  for (const FlagChange& change : *changes) {
    if (change.takes_effect) LiveFlags().at(change.flag)(server, options, next);
    spdlog::info("config: {} has changed: {}", change.name,
                 change.takes_effect ? "took effect" : "needs a restart, the old value stays");
  }
  if (asked || !changes->empty()) spdlog::info("config: read anew, {} changes", changes->size());
}

// Which file it is, and when it was written: one that is renamed over another is another.
using FileStamp = std::tuple<ino_t, off_t, time_t, int64_t>;

FileStamp StampOf(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) return {};
  return {file.st_ino, file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec};
}

constexpr timespec kLookEvery = {.tv_sec = 2, .tv_nsec = 0};

}  // namespace

int WaitForEnd(GdnServer& server, ServerOptions& options, const sigset_t& signals) {
  const std::string path = ConfigPath();
  std::optional<FileStamp> seen;  // none: the file may have changed since the flags were parsed
  for (;;) {
    const int signal = path.empty() ? sigwaitinfo(&signals, nullptr) : sigtimedwait(&signals, nullptr, &kLookEvery);
    if (signal == SIGTERM || signal == SIGINT) return signal;
    if (path.empty() && signal == SIGHUP) return signal;  // there is nothing to read anew: its terminal has gone
    if (path.empty()) continue;                           // interrupted
    const FileStamp stamp = StampOf(path);
    if (signal == SIGHUP || stamp != seen) Reload(server, options, /*asked=*/signal == SIGHUP);
    seen = stamp;
  }
}

}  // namespace gdn
