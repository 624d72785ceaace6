// What `gdn_bench state` measures over RPC: export and import beside a plain stream of the same bytes in messages of
// the same size, and what others feel of forks and checkpoints.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "client/cpp/rpc_status.h"
#include "tools/gdn_bench/serve/rpc_setup.h"
#include "tools/gdn_bench/states/state_bench.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {
namespace {

constexpr int kWarmUpCalls = 50;
constexpr char kExported[] = "exported";
constexpr char kImported[] = "imported";

// The echo server sends as many bytes as the name says.
absl::StatusOr<double> PlainDownload(v1::GdnService::Stub& stub, int64_t bytes) {
  v1::ExportStateRequest request;
  request.set_name(absl::StrCat(bytes));
  grpc::ClientContext context;
  const double start = NowSeconds();
  const auto reader = stub.ExportState(&context, request);
  v1::ExportStateResponse piece;
  int64_t received = 0;
  while (reader->Read(&piece)) received += static_cast<int64_t>(piece.data().size());
  GDN_RETURN_IF_ERROR(StatusFromGrpc(reader->Finish()));
  const double seconds = NowSeconds() - start;
  if (received == bytes) return seconds;
  return absl::InternalError(absl::StrCat("the plain stream brought ", received, " of ", bytes, " bytes"));
}

absl::StatusOr<double> PlainUpload(v1::GdnService::Stub& stub, const std::string& file) {
  grpc::ClientContext context;
  v1::ImportStateResponse response;
  const double start = NowSeconds();
  const auto writer = stub.ImportState(&context, &response);
  v1::ImportStateRequest piece;
  for (size_t sent = 0; sent < file.size(); sent += kImportChunkBytes) {
    piece.set_data(file.data() + sent, std::min(kImportChunkBytes, file.size() - sent));
    if (!writer->Write(piece)) break;
  }
  writer->WritesDone();
  GDN_RETURN_IF_ERROR(StatusFromGrpc(writer->Finish()));
  return NowSeconds() - start;
}

absl::StatusOr<double> TimeFork(Client& client, const std::string& parent) {
  v1::ForkSessionRequest request;
  request.set_name(absl::StrCat("sessions/", parent));
  request.add_session_ids("fork");
  const double start = NowSeconds();
  GDN_RETURN_IF_ERROR(WithPrefix(client.ForkSession(request).status(), "ForkSession"));
  const double seconds = NowSeconds() - start;
  GDN_RETURN_IF_ERROR(WithPrefix(client.DeleteSession("sessions/fork"), "DeleteSession"));
  return seconds;
}

// Decodes with a session and makes a checkpoint of what is new, again and again from construction to Stop. Without
// checkpoints it lets `pause` pass instead, so that the neighbour has the same steps beside its own.
class BusySession {
 public:
  BusySession(const std::string& target, const std::string& session, std::optional<std::string> checkpoint_id,
              absl::Duration pause)
      : client_(ConnectAlone(target)),
        checkpoint_id_(std::move(checkpoint_id)),
        pause_(pause),
        step_(StepOf(session, 0)) {
    thread_ = std::thread([this, session] { Run(session); });
  }
  ~BusySession() { Stop().IgnoreError(); }

  absl::Status Stop() {
    if (thread_.joinable()) {
      stop_.Notify();
      thread_.join();
    }
    return status_;
  }
  // Of checkpoints; after Stop.
  int64_t made() const { return made_; }
  absl::Duration took() const { return took_; }

 private:
  void Run(const std::string& session) {
    v1::CheckpointSessionRequest request;
    request.set_name(absl::StrCat("sessions/", session));
    if (checkpoint_id_.has_value()) request.set_checkpoint_id(*checkpoint_id_);
    do {  // once at the least, however short the phase is
      status_ = WithPrefix(client_->Decode(step_).status(), "Decode");
      if (!checkpoint_id_.has_value()) {
        stop_.WaitForNotificationWithTimeout(pause_);
        continue;
      }
      const double start = NowSeconds();
      if (status_.ok()) status_ = WithPrefix(client_->CheckpointSession(request).status(), "CheckpointSession");
      took_ += absl::Seconds(NowSeconds() - start);
      if (status_.ok()) ++made_;
    } while (!stop_.HasBeenNotified() && status_.ok());
  }

  const std::unique_ptr<Client> client_;
  const std::optional<std::string> checkpoint_id_;
  const absl::Duration pause_;
  const v1::DecodeRequest step_;
  absl::Notification stop_;
  absl::Status status_;
  int64_t made_ = 0;
  absl::Duration took_;
  std::thread thread_;
};

absl::Status DecodeCalls(Client& client, const v1::DecodeRequest& step, int calls, std::vector<double>& latencies) {
  for (int call = 0; call < calls; ++call) {
    const double start = NowSeconds();
    GDN_RETURN_IF_ERROR(WithPrefix(client.Decode(step).status(), "Decode"));
    latencies.push_back(NowSeconds() - start);
  }
  return absl::OkStatus();
}

absl::StatusOr<PauseResult> MeasurePause(const StateBenchOptions& options, const Targets& targets,
                                         const std::string& name, const std::string& checkpoint_id) {
  std::fprintf(stderr, "%s: %d phases of %d calls, with checkpoints and without\n", name.c_str(), options.pause_phases,
               options.pause_calls);
  const auto client = ConnectAlone(targets.gdn);
  const v1::DecodeRequest step = StepOf("neighbour", 0);
  std::vector<double> with, without;
  PauseResult result;
  result.name = name;
  absl::Duration took;
  for (int phase = 0; phase < options.pause_phases; ++phase) {
    for (const bool checkpoints : {phase % 2 == 0, phase % 2 != 0}) {
      BusySession busy(targets.gdn, "big", checkpoints ? std::optional(checkpoint_id) : std::nullopt,
                       /*pause=*/absl::Seconds(result.checkpoint_s));
      GDN_RETURN_IF_ERROR(DecodeCalls(*client, step, options.pause_calls, checkpoints ? with : without));
      GDN_RETURN_IF_ERROR(busy.Stop());
      result.checkpoints += busy.made();
      took += busy.took();
      result.checkpoint_s = absl::ToDoubleSeconds(took / result.checkpoints);  // each phase that has them has some
    }
  }
  result.with = SummarizeLatencies(with);
  result.without = SummarizeLatencies(without);
  return result;
}

}  // namespace

absl::Status MeasureTransfers(const Targets& targets, StateReport& report) {
  const auto client = ConnectAlone(targets.gdn);
  const auto plain = v1::GdnService::NewStub(ChannelAlone(targets.echo));
  GDN_RETURN_IF_ERROR(MakeBusySession(*client, kExported, report.options.layers));
  v1::ExportStateRequest request;
  request.set_name(absl::StrCat("sessions/", kExported));
  GDN_ASSIGN_OR_RETURN(const std::string file, client->ExportState(request));
  const auto bytes = static_cast<int64_t>(file.size());

  const auto download = [&]() -> absl::StatusOr<double> {
    const double start = NowSeconds();
    int64_t received = 0;
    GDN_RETURN_IF_ERROR(WithPrefix(client->ExportState(request,
                                                       [&received](std::string_view piece) {
                                                         received += static_cast<int64_t>(piece.size());
                                                         return absl::OkStatus();
                                                       }),
                                   "ExportState"));
    const double seconds = NowSeconds() - start;
    if (received == bytes) return seconds;
    return absl::InternalError(absl::StrCat("an export brought ", received, " bytes, the one before ", bytes));
  };
  GDN_RETURN_IF_ERROR(MeasureRate(
      "export", "grpc_stream", bytes, download, [&] { return PlainDownload(*plain, bytes); }, report));

  v1::ImportStateRequest::Target target;
  target.set_session_id(kImported);
  *target.mutable_operator_() = BenchOperatorSpec(report.options.layers);
  const auto upload = [&]() -> absl::StatusOr<double> {
    const double start = NowSeconds();
    GDN_RETURN_IF_ERROR(WithPrefix(client->ImportState(target, file).status(), "ImportState"));
    const double seconds = NowSeconds() - start;
    GDN_RETURN_IF_ERROR(WithPrefix(client->DeleteSession(absl::StrCat("sessions/", kImported)), "DeleteSession"));
    return seconds;
  };
  GDN_RETURN_IF_ERROR(MeasureRate(
      "import", "grpc_stream", bytes, upload, [&] { return PlainUpload(*plain, file); }, report));
  return client->DeleteSession(absl::StrCat("sessions/", kExported));
}

absl::Status MeasureForks(const Targets& targets, StateReport& report) {
  const auto client = ConnectAlone(targets.gdn);
  GDN_RETURN_IF_ERROR(MakeBusySession(*client, "many", report.options.layers));
  GDN_RETURN_IF_ERROR(MakeBusySession(*client, "one", 1));
  GDN_RETURN_IF_ERROR(MeasureFork(
      "fork_rpc", [&] { return TimeFork(*client, "many"); }, [&] { return TimeFork(*client, "one"); }, report));
  GDN_RETURN_IF_ERROR(client->DeleteSession("sessions/many"));
  return client->DeleteSession("sessions/one");
}

absl::Status MeasurePauses(const Targets& targets, StateReport& report) {
  const auto client = ConnectAlone(targets.gdn);
  GDN_RETURN_IF_ERROR(MakeBusySession(*client, "big", report.options.layers));
  GDN_RETURN_IF_ERROR(MakeBusySession(*client, "neighbour", 1));
  std::vector<double> warm_up;
  GDN_RETURN_IF_ERROR(DecodeCalls(*client, StepOf("neighbour", 0), kWarmUpCalls, warm_up));
  // A named checkpoint holds everything; the newest one, what changed since the one before.
  for (const auto& [name, checkpoint_id] : {std::pair("pause_full", "whole"), std::pair("pause_changes", "")}) {
    GDN_ASSIGN_OR_RETURN(PauseResult result, MeasurePause(report.options, targets, name, checkpoint_id));
    report.pauses.push_back(std::move(result));
  }
  GDN_RETURN_IF_ERROR(client->DeleteSession("sessions/big"));
  return client->DeleteSession("sessions/neighbour");
}

}  // namespace gdn::bench
