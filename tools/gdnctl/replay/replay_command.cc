// gdnctl replay.
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/replay/replay.h"

ABSL_DECLARE_FLAG(std::string, model);
ABSL_FLAG(std::string, io, "", "File of recorded layer inputs and outputs: an io.safetensors of reference vectors.");
ABSL_FLAG(double, tolerance, 1e-5, "Largest relative error (Euclidean norm) that passes.");
ABSL_FLAG(std::string, dtype, "F32", "Dtype of the inputs that are sent: F32, F16 or BF16. Outputs are always F32.");
ABSL_DECLARE_FLAG(bool, progress);

namespace gdn {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

// The first signal ends the replay between two parts, so that its sessions are deleted; the second one kills.
void CatchInterrupts() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    action.sa_handler = [](int) { g_interrupted = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(signal, &action, nullptr);
  }
}

class Progress {
 public:
  explicit Progress(bool always) : terminal_(isatty(STDERR_FILENO) == 1), shown_(always || terminal_) {}
  ~Progress() {
    if (terminal_ && shown_) absl::FPrintF(stderr, "\r\x1b[K");
  }

  absl::Status Show(std::string_view what) const {
    if (shown_) absl::FPrintF(stderr, "%s%s%s", terminal_ ? "\r\x1b[K" : "", what, terminal_ ? "" : "\n");
    return g_interrupted ? absl::CancelledError("interrupted") : absl::OkStatus();
  }

 private:
  const bool terminal_;
  const bool shown_;
};

absl::StatusOr<ErrorTable> ReplayFile(const std::string& path, const ReplayOptions& base_options) {
  GDN_ASSIGN_OR_RETURN(const GoldenIo io, ReadGoldenIo(path));
  absl::PrintF("replaying %d sequences, %d prompt tokens, %d decode steps, %d layers of %s\n", io.batch,
               io.prompt_tokens, io.decode_steps, io.layers.size(), base_options.model);
  std::fflush(stdout);
  const Progress progress(absl::GetFlag(FLAGS_progress));
  ReplayOptions options = base_options;
  options.before_part = [&progress](std::string_view what) { return progress.Show(what); };
  const auto client = ConnectByFlags();
  return Replay(*client, io, options);
}

absl::StatusOr<int> RunReplay(const std::vector<std::string>&) {
  const std::string path = absl::GetFlag(FLAGS_io);
  const double tolerance = absl::GetFlag(FLAGS_tolerance);
  ReplayOptions options;
  if (absl::GetFlag(FLAGS_model).empty() || path.empty()) return UsageError("--model and --io are needed");
  GDN_ASSIGN_OR_RETURN(options.model, ToModelName(absl::GetFlag(FLAGS_model)));
  if (!std::isfinite(tolerance) || tolerance < 0) return UsageError("--tolerance must be a number, 0 or more");
  const absl::StatusOr<DType> dtype = ParseDType(absl::GetFlag(FLAGS_dtype));
  if (!dtype.ok()) return UsageError(StrCat("--dtype: ", dtype.status().message()));
  options.dtype = *dtype;

  CatchInterrupts();
  const absl::StatusOr<ErrorTable> table = ReplayFile(path, options);
  if (!table.ok()) {
    const std::string reason = ErrorReason(table.status());
    absl::PrintF("replay FAILED: %s%s: %s\n", absl::StatusCodeToString(table.status().code()),
                 reason.empty() ? "" : StrCat(" (", reason, ")"), table.status().message());
    return kExitFailed;
  }
  absl::PrintF("%s%s\n", table->Format(tolerance), table->Verdict(tolerance));
  return table->Within(tolerance) ? kExitOk : kExitFailed;
}

}  // namespace

std::vector<Command> ReplayCommands() {
  return {
      {.name = "replay",
       .summary = "Replay recorded layers and measure the errors of the server's outputs",
       .details =
           "For each layer, sends the prompt in one Prefill and in uneven segments of a stream. Sends the decode\n"
           "steps one by one and streamed, and the whole sequence in one Prefill. Also compares the conv and\n"
           "recurrent states at the end. Prints the relative errors ||got - recorded|| / ||recorded||. The last line\n"
           "is 'replay ok: ..' or 'replay FAILED: ..'.\n"
           "Example: gdnctl replay --model qwen --io io.safetensors\n",
       .flags = {"model", "io", "tolerance", "dtype", "progress"},
       .run = RunReplay}};
}

}  // namespace gdn
