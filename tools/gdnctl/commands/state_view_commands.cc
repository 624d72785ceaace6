// gdnctl state inspect, gdnctl state watch.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/error.h"
#include "base/files/mapped_file.h"
#include "base/files/output_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"
#include "tools/gdnctl/state_file.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_FLAG(int32_t, every_tokens, 0,
          "Write a snapshot once any layer has seen this many more tokens. 0: not by tokens.");
ABSL_FLAG(absl::Duration, every, absl::ZeroDuration(), "Write a snapshot once this time has passed. 0: not by time.");
ABSL_FLAG(int32_t, count, 0, "Stop after this many snapshots. 0: stop when the session ends.");
ABSL_FLAG(bool, keep_all, false, "Keep every snapshot, not only the files that the newest one needs.");

namespace gdn {
namespace {

std::string JsonOf(const StateFileReport& report) {
  nlohmann::json json = {{"metadata", report.metadata},
                         {"bytes", report.bytes},
                         {"tensors", report.tensors},
                         {"header_checked", report.header_checked},
                         {"tensors_checked", report.tensors_checked},
                         {"layers", nlohmann::json::array()}};
  for (const StateFileReport::Layer& layer : report.layers) {
    json["layers"].push_back({{"layer", layer.layer},
                              {"token_count", layer.token_count},
                              {"log_length", layer.log_length},
                              {"draft_length", layer.draft_length},
                              {"draft_is_tree", layer.draft_is_tree},
                              {"input_kind", layer.input_kind},
                              {"has_base", layer.has_base},
                              {"tensors", layer.parts},
                              {"bytes", layer.bytes}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

void PrintReport(const std::string& path, const StateFileReport& report) {
  const std::string base = report.Text("base_snapshot_id");
  absl::PrintF("%s: %s, format %s, %d tensors\n", path, FormatBytes(report.bytes), report.Text("format_version"),
               report.tensors);
  absl::PrintF("  of         %s\n", report.dims.conv_width() == 0
                                        ? StrCat("an operator, ", report.layer_count, " layers")
                                        : StrCat("models/", report.Text("model"), " (", report.Text("family"),
                                                 "), fingerprint ", report.Text("model_fingerprint")));
  if (const std::string heads = HeadsOf(report); !heads.empty()) {
    absl::PrintF("  heads      %s of the model %s\n", heads, WholeFingerprint(report));
  }
  absl::PrintF("  dims       %s\n  epoch      %s\n  created    %s\n  numerics   %s\n", FormatDims(report.dims),
               report.Text("epoch"), report.Text("created"), report.Text("numerics_id"));
  absl::PrintF("  snapshot   %s%s\n", report.Text("snapshot_id"),
               base.empty() ? ", in full" : StrCat(", a delta to ", base));
  for (const StateFileReport::Layer& layer : report.layers) {
    absl::PrintF("  layer %-4d %d tokens, %d of them in the log%s, %s, %s%s%s\n", layer.layer, layer.token_count,
                 layer.log_length,
                 layer.draft_length > 0
                     ? StrCat(", a draft", layer.draft_is_tree ? " tree" : "", " of ", layer.draft_length)
                     : "",
                 layer.input_kind, FormatBytes(layer.bytes), layer.has_base ? "" : ", base left out",
                 layer.reply_request_id.empty() ? "" : StrCat(", reply to '", layer.reply_request_id, "'"));
  }
  absl::PrintF("  checksums  header %s, %d of %d tensors ok\n", report.header_checked ? "ok" : "has none",
               report.tensors_checked, report.tensors);
}

absl::StatusOr<int> RunInspectStates(const std::vector<std::string>& files) {
  const std::vector<std::string> sessions = absl::GetFlag(FLAGS_session);
  if (files.empty() && sessions.empty()) return UsageError("a FILE or --session is needed");
  for (const std::string& path : files) {
    GDN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    const absl::StatusOr<StateFileReport> inspected = InspectStateFile(file.bytes());
    if (!inspected.ok()) return WithPrefix(inspected.status(), StrCat("'", path, "'"));
    const StateFileReport& report = *inspected;
    if (absl::GetFlag(FLAGS_json)) {
      absl::PrintF("%s\n", JsonOf(report));
    } else {
      PrintReport(path, report);
    }
  }
  if (sessions.empty()) return kExitOk;
  const std::unique_ptr<Client> client = ConnectByFlags();
  for (const std::string& id : sessions) {
    GDN_ASSIGN_OR_RETURN(const std::string name, ToSessionName(id));
    GDN_ASSIGN_OR_RETURN(const v1::Session session, client->GetSession(name));
    GDN_RETURN_IF_ERROR(PrintSession(session));
  }
  return kExitOk;
}

// Snapshots in a folder: each appears whole or not at all, and what no longer matters goes.
class SnapshotFolder {
 public:
  explicit SnapshotFolder(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<std::string> Write(const StateSnapshot& snapshot) {
    const std::string name =
        absl::StrFormat("%s/%s-%06d.safetensors", path_, snapshot.delta ? "delta" : "full", snapshot.sequence);
    GDN_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(name));
    GDN_RETURN_IF_ERROR(file.Append(snapshot.file));
    GDN_RETURN_IF_ERROR(file.Commit());
    if (!absl::GetFlag(FLAGS_keep_all)) {
      Remove(&delta_);
      if (!snapshot.delta) Remove(&full_);
    }
    (snapshot.delta ? delta_ : full_) = name;
    return name;
  }

 private:
  static void Remove(std::string* name) {
    if (!name->empty()) std::remove(name->c_str());
    name->clear();
  }

  const std::string path_;
  std::string full_;   // that the deltas are to
  std::string delta_;  // the newest; "": none since full_
};

absl::StatusOr<int> RunWatch(const std::vector<std::string>&) {
  v1::WatchStateRequest request;
  GDN_ASSIGN_OR_RETURN(*request.mutable_name(), OneSession());
  const std::string out = absl::GetFlag(FLAGS_out);
  const absl::Duration every = absl::GetFlag(FLAGS_every);
  if (out.empty()) return UsageError("--out is needed: a folder");
  GDN_RETURN_IF_ERROR(SetEpoch(&request));
  if (absl::GetFlag(FLAGS_every_tokens) <= 0 && every <= absl::ZeroDuration()) {
    return UsageError("--every-tokens or --every is needed");
  }
  if (mkdir(out.c_str(), 0777) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, AbslView(StrCat("cannot make the folder '", out, "'")));
  }
  struct stat found {};
  if (stat(out.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(
        StrCat("--out is '", out, "', which is not a folder, nor a symbolic link to one; name a folder"));
  }
  if (faccessat(AT_FDCWD, out.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    return absl::ErrnoToStatus(errno, AbslView(StrCat("cannot write in the folder '", out, "'")));
  }
  request.set_every_tokens(absl::GetFlag(FLAGS_every_tokens));
  if (every > absl::ZeroDuration()) {
    request.mutable_every()->set_seconds(absl::ToInt64Seconds(every));
    request.mutable_every()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(every % absl::Seconds(1))));
  }
  const std::unique_ptr<Client> client = ConnectByFlags();
  GDN_ASSIGN_OR_RETURN(StateWatch watch, client->WatchState(request));
  SnapshotFolder folder(out);
  const int32_t count = absl::GetFlag(FLAGS_count);
  for (int32_t written = 0; count == 0 || written < count; ++written) {
    GDN_ASSIGN_OR_RETURN(const StateSnapshot snapshot, watch.Next());
    GDN_ASSIGN_OR_RETURN(const std::string name, folder.Write(snapshot));
    absl::PrintF("%s: %s\n", name, FormatBytes(static_cast<int64_t>(snapshot.file.size())));
    std::fflush(stdout);
  }
  return kExitOk;
}

}  // namespace

std::vector<Command> StateViewCommands() {
  return {{.name = "state inspect",
           .arguments = "[FILE ...]",
           .summary = "Show a state file's content and verify its checksums, or show a session's tier",
           .details = "Example: gdnctl state inspect chat.safetensors\n"
                      "         gdnctl state inspect --session chat\n",
           .flags = {"session", "json"},
           .run = RunInspectStates},
          {.name = "state watch",
           .summary = "Write snapshots of a session's states to files, for a warm standby",
           .details = "Writes full-N.safetensors to the folder --out and, if a delta is smaller, the newest\n"
                      "delta-N.safetensors to that file. Each file is written atomically.\n"
                      "Example: gdnctl state watch --session chat --out standby --every-tokens 64\n",
           .flags = {"session", "out", "epoch", "every_tokens", "every", "count", "keep_all"},
           .run = RunWatch}};
}

}  // namespace gdn
