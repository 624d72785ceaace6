#include "server/config_reload.h"

#include <sys/stat.h>

#include <ctime>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <spdlog/spdlog.h>

namespace gdn {
namespace {

// Updates the parts that keep a copy of a live option (OptionUse::kLive). Other parts read a live option when they use
// it.
void TakeEffect(GdnServer& server, const ServerOptions& before, const ServerOptions& now) {
  spdlog::set_level(spdlog::level::from_str(now.logging.level));
  if (!(now.quotas == before.quotas)) server.SetQuotas(now.quotas);
  if (now.trace_calls != before.trace_calls) server.tracer().Keep(now.trace_calls);
}

// Reads the changed --config file, applies the options that may change while the server runs, and logs every change.
// `asked`: logs something even if nothing has changed.
void Reload(GdnServer& server, const CommandFlags& line, ServerOptions& options, bool asked) {
  const absl::StatusOr<ServerOptions> next = ReadOptions(line);
  if (!next.ok()) {
    spdlog::error("the changed --config file was not applied, and all flags keep their values: {}",
                  std::string(next.status().message()));
    return;
  }
  const ServerOptions before = options;
  const std::vector<OptionChange> changes = TakeLiveChanges(options, *next);
  TakeEffect(server, before, options);
  for (const OptionChange& change : changes) {
    spdlog::info("config: {} has changed{}", change.name,
                 change.takes_effect ? " and is in effect" : ", but needs a restart to take effect");
  }
  if (asked || !changes.empty()) spdlog::info("config: reloaded, {} changes", changes.size());
}

// Identifies a version of a file: its inode, size and time of change. A file that is renamed over another has another
// inode.
using FileStamp = std::tuple<ino_t, off_t, time_t, int64_t>;

FileStamp StampOf(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) return {};
  return {file.st_ino, file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec};
}

constexpr timespec kLookEvery = {.tv_sec = 2, .tv_nsec = 0};

}  // namespace

int WaitForEnd(GdnServer& server, const CommandFlags& line, ServerOptions& options, const sigset_t& signals) {
  const std::string path = options.config;
  std::optional<FileStamp> seen;  // none: the file may have changed since the flags were parsed
  for (;;) {
    const int signal = path.empty() ? sigwaitinfo(&signals, nullptr) : sigtimedwait(&signals, nullptr, &kLookEvery);
    if (signal == SIGTERM || signal == SIGINT) return signal;
    if (path.empty() && signal == SIGHUP) return signal;  // no file to reload, and its terminal has gone
    if (path.empty()) continue;                           // the wait was interrupted
    const FileStamp stamp = StampOf(path);
    if (signal == SIGHUP || stamp != seen) Reload(server, line, options, /*asked=*/signal == SIGHUP);
    seen = stamp;
  }
}

}  // namespace gdn
