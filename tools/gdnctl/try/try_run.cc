#include "tools/gdnctl/try/try_run.h"

#include <csignal>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files/temporary_folder.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/durable_session.h"
#include "client/cpp/tensor_codec.h"
#include "tools/common/restartable_server.h"
#include "tools/gdnctl/error_table.h"
#include "tools/gdnctl/replay/golden_io.h"

namespace gdn {
namespace {

constexpr double kTolerance = 1e-5;
constexpr int64_t kSequence = 0;  // of the recorded ones
constexpr std::string_view kModel = "try";

// One session that is given a recorded sequence, layer by layer, as an engine would.
class RecordedSession {
 public:
  RecordedSession(const GoldenIo& io, std::unique_ptr<DurableSession> session)
      : io_(io), session_(std::move(session)) {}

  absl::Status Prefill() {
    for (const GoldenLayer& layer : io_.layers) {
      v1::PrefillRequest request;
      request.set_layer(layer.layer);
      GDN_ASSIGN_OR_RETURN(
          *request.mutable_hidden_states()->mutable_hidden_states(),
          MakeTensor(layer.prefill_in.Tokens(kSequence, 0, io_.prompt_tokens), {io_.prompt_tokens, io_.hidden_size}));
      GDN_ASSIGN_OR_RETURN(const v1::PrefillResponse reply, session_->Prefill(request));
      GDN_RETURN_IF_ERROR(Keep(reply.output(), layer.prefill_out.Tokens(kSequence, 0, io_.prompt_tokens)));
    }
    return absl::OkStatus();
  }

  // Steps first .. last - 1.
  absl::Status Decode(int64_t first, int64_t last) {
    for (int64_t step = first; step < last; ++step) {
      for (const GoldenLayer& layer : io_.layers) {
        const auto at = static_cast<size_t>(step);
        v1::DecodeRequest request;
        request.set_layer(layer.layer);
        GDN_ASSIGN_OR_RETURN(*request.mutable_hidden_states()->mutable_hidden_states(),
                             MakeTensor(layer.decode_in[at].Tokens(kSequence, 0, 1), {1, 1, io_.hidden_size}));
        GDN_ASSIGN_OR_RETURN(const v1::DecodeResponse reply, session_->Decode(request));
        GDN_RETURN_IF_ERROR(Keep(reply.output(), layer.decode_out[at].Tokens(kSequence, 0, 1)));
      }
    }
    return absl::OkStatus();
  }

  // The largest error of the outputs so far, beside the recorded ones.
  double worst_error() const { return worst_error_; }
  const std::vector<std::vector<float>>& outputs() const { return outputs_; }
  DurableSession& session() { return *session_; }

 private:
  absl::Status Keep(const v1::Tensor& output, absl::Span<const float> recorded) {
    GDN_ASSIGN_OR_RETURN(outputs_.emplace_back(), TensorToFloats(output));
    worst_error_ = std::max(worst_error_, RelativeError(outputs_.back(), recorded));
    if (worst_error_ <= kTolerance) return absl::OkStatus();
    return absl::InternalError(
        StrCat("an output is off by ", worst_error_, " of its size, expected at most ", kTolerance));
  }

  const GoldenIo& io_;  // must outlive the object
  std::unique_ptr<DurableSession> session_;
  std::vector<std::vector<float>> outputs_;
  double worst_error_ = 0;
};

absl::StatusOr<RecordedSession> MakeSession(Client& client, const GoldenIo& io, std::string_view id) {
  v1::CreateSessionRequest request;
  request.set_model(StrCat("models/", kModel));
  request.set_session_id(std::string(id));
  GDN_ASSIGN_OR_RETURN(auto session, DurableSession::Create(client, request));
  return RecordedSession(io, std::move(session));
}

std::string Seconds(absl::Time since) { return absl::StrFormat("%.2f s", absl::ToDoubleSeconds(absl::Now() - since)); }

}  // namespace

absl::Status TryServer(const TryOptions& options, std::ostream& out) {
  GDN_ASSIGN_OR_RETURN(const GoldenIo io, ReadGoldenIo(options.model + "/io.safetensors"));
  GDN_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Make());
  const int64_t half = io.decode_steps / 2;

  out << "1. Start a server that keeps checkpoints on disk: " << options.server << "\n"
      << "   --model=" << kModel << "=" << options.model << " --checkpoint-every-tokens=64 --disk-dir=...\n";
  RestartableServer server(options.server,
                           {StrCat("--model=", kModel, "=", options.model), "--checkpoint-every-tokens=64",
                            StrCat("--disk-dir=", folder.path(), "/states"), "--device-state-bytes=64MiB"},
                           folder.path(), "server");
  const absl::Time begin = absl::Now();
  GDN_RETURN_IF_ERROR(server.Start());
  const std::unique_ptr<Client> client = Client::Connect(server.target());
  GDN_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info, client->GetServerInfo());
  out << "   ready after " << Seconds(begin) << ": " << info.backend() << ", " << info.device() << "\n";

  out << "2. Prefill " << io.prompt_tokens << " tokens of a new session in each of its " << io.layers.size()
      << " GDN layers, and decode " << half << " more.\n";
  GDN_ASSIGN_OR_RETURN(RecordedSession session, MakeSession(*client, io, "try-crash"));
  GDN_RETURN_IF_ERROR(session.Prefill());
  GDN_RETURN_IF_ERROR(session.Decode(0, half));
  out << absl::StrFormat("   outputs are those of Hugging Face transformers, within %.1e\n", session.worst_error());

  out << "3. Kill the server (SIGKILL), as a crash would, and start it again.\n";
  const absl::Time killed = absl::Now();
  server.Kill();
  GDN_RETURN_IF_ERROR(server.Start());
  out << "   ready after " << Seconds(killed) << "\n";

  out << "4. Decode " << io.decode_steps - half << " more tokens of the same session.\n";
  GDN_RETURN_IF_ERROR(session.Decode(half, io.decode_steps));
  const DurableSessionStats stats = session.session().stats();
  out << absl::StrFormat(
      "   the client found the session at its checkpoint and sent %d steps again (%d tokens in all layers)\n"
      "   outputs are those of transformers, within %.1e\n",
      stats.replayed_steps, stats.replayed_tokens, session.worst_error());
  if (stats.recoveries == 0)
    return absl::InternalError("the session was not brought back, though its server was killed");

  out << "5. Run the same tokens through a session that meets no crash.\n";
  GDN_ASSIGN_OR_RETURN(RecordedSession twin, MakeSession(*client, io, "try-calm"));
  GDN_RETURN_IF_ERROR(twin.Prefill());
  GDN_RETURN_IF_ERROR(twin.Decode(0, io.decode_steps));
  if (twin.outputs() != session.outputs()) {
    return absl::InternalError("the session that met a crash has other outputs than the one that met none");
  }
  out << "   all " << twin.outputs().size() << " outputs of both sessions have the same bits\n"
      << "try ok: one crash, no token lost, " << Seconds(begin) << "\n";
  return absl::OkStatus();
}

}  // namespace gdn
