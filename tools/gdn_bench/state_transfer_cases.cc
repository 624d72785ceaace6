// Export and import over loopback, beside a plain stream of the same bytes in messages of the same size.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "client/cpp/rpc_status.h"
#include "tools/gdn_bench/clock.h"
#include "tools/gdn_bench/state_bench.h"
#include "tools/gdn_bench/state_sessions.h"

namespace gdn::bench {
namespace {

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

}  // namespace gdn::bench
