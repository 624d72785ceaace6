#include "server/process_end.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "base/threads/stop_signal.h"

namespace gdn {
namespace {

[[noreturn]] void ExitAtOnce(int code) {
  spdlog::shutdown();  // writes buffered lines
  _exit(code);
}

// Exits the process after `limit`, unless the process has ended or `ended` was given before.
void ExitAfter(absl::Duration limit, int code, std::string what, std::shared_ptr<StopSignal> ended) {
  std::thread([limit, code, what = std::move(what), ended = std::move(ended)] {
    if (ended->GivenWithin(limit)) return;
    spdlog::critical("{} did not end within {}; the process ends without it, with code {}", what,
                     absl::FormatDuration(limit), code);
    ExitAtOnce(code);
  }).detach();
}

}  // namespace

int DrainAndEnd(std::unique_ptr<GdnServer> server, const EndLimits& limits) {
  const auto drain_ended = std::make_shared<StopSignal>();
  const bool device_failed = limits.tell_of_device && !server->device_status().ok();
  const int failed = device_failed ? kDeviceFailed : kDrainFailed;
  ExitAfter(limits.steps + limits.checkpoints + limits.destruction, failed, "the drain", drain_ended);
  // States on a failed device cannot be made durable. States in the tiers below are made durable.
  const bool drained = server->Drain(limits.steps, limits.checkpoints);
  const int code = drained && !device_failed ? EXIT_SUCCESS : failed;
  drain_ended->Give();
  // This limit holds to the very end of the process, including what runs after main.
  ExitAfter(limits.destruction, code, "the backend (its driver may hang)", std::make_shared<StopSignal>());
  if (server->has_stuck_calls()) {
    spdlog::critical("calls on the device do not end; the process ends without them, with code {}", code);
    ExitAtOnce(code);
  }
  server = nullptr;
  spdlog::info("stopped");
  return code;
}

}  // namespace gdn
