// gdnctl trace.
#include <optional>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/files/output_file.h"
#include "base/status_macros.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"
#include "tools/gdnctl/trace/trace_view.h"

ABSL_FLAG(
    int32_t, keep, -1,
    "Number of calls that the server records from now on, the newest ones. 0: turn recording off. -1: no change.");
ABSL_FLAG(int32_t, calls, 0, "Most calls to show, the newest ones. 0: all that are recorded.");
ABSL_FLAG(std::string, chrome, "", "Also write the calls to this file, for chrome://tracing or ui.perfetto.dev.");

namespace gdn {
namespace {

absl::StatusOr<int> RunTrace(const std::vector<std::string>&) {
  v1::TraceCallsRequest request;
  request.set_max_calls(absl::GetFlag(FLAGS_calls));
  if (const int32_t keep = absl::GetFlag(FLAGS_keep); keep != -1) request.set_keep(keep);
  // Opened before --keep can drop calls.
  std::optional<OutputFile> file;
  if (const std::string path = absl::GetFlag(FLAGS_chrome); !path.empty()) {
    GDN_ASSIGN_OR_RETURN(OutputFile opened, OutputFile::Create(path));
    file.emplace(std::move(opened));
  }
  GDN_ASSIGN_OR_RETURN(const v1::TraceCallsResponse traced, ConnectByFlags()->TraceCalls(request));
  if (file.has_value()) {
    GDN_RETURN_IF_ERROR(file->Append(ChromeTrace(traced)));
    GDN_RETURN_IF_ERROR(file->Commit());
  }
  return Show(traced, [&] {
    absl::PrintF("%s", TraceTables(traced));
    if (traced.kept() == 0) {
      absl::PrintF("The server keeps no calls; 'gdnctl trace --keep=1000' turns it on.\n");
    } else {
      absl::PrintF("%d calls; the server keeps the last %d of all its callers.\n", traced.calls_size(), traced.kept());
    }
  });
}

}  // namespace

std::vector<Command> TraceCommands() {
  return {{.name = "trace",
           .summary = "Show how long each stage of your last steps took",
           .details = "Example: gdnctl trace --keep=1000        # then run your calls, and then:\n"
                      "         gdnctl trace --chrome=calls.json --keep=0\n",
           .flags = {"keep", "calls", "chrome", "json"},
           .run = RunTrace}};
}

}  // namespace gdn
