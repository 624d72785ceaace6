// gdnctl metrics, gdnctl drain: for who runs the server.
#include <cstdio>
#include <future>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tools/gdnctl/commands.h"

ABSL_FLAG(bool, watch, false, "Show the drain's progress until the server closes its connections.");
ABSL_DECLARE_FLAG(absl::Duration, interval);

namespace gdn {
namespace {

absl::StatusOr<int> RunMetrics(const std::vector<std::string>&) {
  GDN_ASSIGN_OR_RETURN(const std::string text, ConnectByFlags()->GetMetrics());
  absl::PrintF("%s", text);
  return kExitOk;
}

std::string Describe(const v1::DrainProgress& progress) {
  std::string text = StrCat(progress.waiting_steps(), " steps wait, ", progress.open_transfers(), " transfers open, ",
                            progress.durable_sessions(), " of ", progress.sessions(), " sessions made durable");
  if (progress.failed_sessions() > 0) StrAppend(&text, ", ", progress.failed_sessions(), " FAILED");
  return text;
}

// Prints what is new.
class DrainPrinter {
 public:
  void Show(const v1::DrainProgress& progress) {
    const std::string text = Describe(progress);
    if (text == shown_) return;
    shown_ = text;
    absl::PrintF("draining: %s\n", text);
    std::fflush(stdout);  // somebody waits for it
  }

 private:
  std::string shown_;
};

// A drain that somebody else has begun, as by SIGTERM, for who may not: `refusal`.
absl::StatusOr<int> WatchOthersDrain(Client& client, DrainPrinter& printer, const absl::Status& refusal) {
  for (bool seen = false;; seen = true) {
    const absl::StatusOr<v1::GetServerInfoResponse> info = client.GetServerInfo();
    if (seen && absl::IsUnavailable(info.status())) {
      absl::PrintF("the server has ended its connections\n");
      return kExitOk;
    }
    GDN_RETURN_IF_ERROR(info.status());
    if (!info->has_drain()) return refusal;
    printer.Show(info->drain());
    absl::SleepFor(absl::GetFlag(FLAGS_interval));
  }
}

// `drained` has the answer once the drain is over.
absl::StatusOr<int> WatchDrain(Client& client, std::future<absl::StatusOr<v1::DrainProgress>> drained) {
  DrainPrinter printer;
  const auto interval = absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_interval));
  while (drained.wait_for(interval) != std::future_status::ready) {
    const absl::StatusOr<v1::GetServerInfoResponse> info = client.GetServerInfo();
    if (info.ok() && info->has_drain()) printer.Show(info->drain());
  }
  const absl::StatusOr<v1::DrainProgress> progress = drained.get();
  if (absl::IsPermissionDenied(progress.status())) return WatchOthersDrain(client, printer, progress.status());
  GDN_RETURN_IF_ERROR(progress.status());
  printer.Show(*progress);
  absl::PrintF("drained; the server ends its connections\n");
  return progress->failed_sessions() == 0 ? kExitOk : kExitFailed;
}

absl::StatusOr<int> RunDrain(const std::vector<std::string>&) {
  const auto client = ConnectByFlags();
  v1::DrainRequest request;
  if (!absl::GetFlag(FLAGS_watch)) {
    GDN_ASSIGN_OR_RETURN(const v1::DrainProgress progress, client->Drain(request));
    absl::PrintF("draining: %s\n", Describe(progress));
    return kExitOk;
  }
  if (absl::GetFlag(FLAGS_interval) <= absl::ZeroDuration()) return UsageError("--interval is not above 0");
  request.set_wait(true);
  return WatchDrain(*client, std::async(std::launch::async, [&client, request] {
    CallOptions call;
    call.timeout = absl::InfiniteDuration();
    return client->Drain(request, call);
  }));
}

}  // namespace

std::vector<Command> AdminCommands() {
  return {{.name = "metrics",
           .summary = "Print the server's metrics in Prometheus text format (for admins)",
           .run = RunMetrics},
          {.name = "drain",
           .summary = "Shut the server down, as SIGTERM does (for admins)",
           .details =
               "The server refuses new steps, finishes accepted ones, makes sessions durable, and exits.\n"
               "Example: gdnctl drain --watch --interval=500ms\n"
               "With --watch the exit code is 1 if a session could not be made durable. Any caller may watch a drain\n"
               "that has begun already, for example by SIGTERM.\n",
           .flags = {"watch", "interval"},
           .run = RunDrain}};
}

}  // namespace gdn
