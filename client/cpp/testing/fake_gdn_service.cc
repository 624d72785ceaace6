#include "client/cpp/testing/fake_gdn_service.h"

#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/string_cat.h"
#include "client/cpp/testing/server_error.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace gdn {
namespace {

constexpr size_t kPieceBytes = 100;  // so that even small files come in pieces

// Answers a message of a stream with what `run` makes of it.
template <typename Response, typename Run>
Response Answer(const Run& run) {
  Response response;
  if (const grpc::Status status = run(response.mutable_result()); !status.ok()) {
    response.clear_result();
    // The details of a status name its reason.
    (void)response.mutable_status()->ParseFromString(status.error_details());
    response.mutable_status()->set_code(status.error_code());
    response.mutable_status()->set_message(status.error_message());
  }
  return response;
}

}  // namespace

grpc::Status FakeGdnService::GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                                           v1::GetServerInfoResponse* response) {
  response->set_version("0.0.0-fake");
  response->set_backend("cpu");
  response->set_numerics_id(numerics_id());
  response->mutable_limits()->set_max_stored_reply_bytes(kMaxStoredReplyBytes);
  v1::TierInfo* const disk = response->add_tiers();
  disk->set_name("disk");
  disk->set_sessions(3);
  disk->set_used_bytes(64 << 20);
  response->set_recovered_sessions(2);
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                                      v1::GetModelResponse* response) {
  if (request->name() != kToyModel) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such model");
  v1::Model* const model = response->mutable_model();
  model->set_name(request->name());
  model->set_num_layers(3);
  model->mutable_dims()->set_hidden_size(kToyHidden);
  model->set_fingerprint(kToyFingerprint);
  for (const int32_t layer : kToyLayers) model->add_gdn_layers(layer);
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::ListModels(grpc::ServerContext* context, const v1::ListModelsRequest*,
                                        v1::ListModelsResponse* response) {
  v1::GetModelRequest request;
  request.set_name(kToyModel);
  v1::GetModelResponse model;
  (void)GetModel(context, &request, &model);
  *response->add_models() = model.model();
  return grpc::Status::OK;
}

template <typename Piece, typename Write>
void FakeGdnService::CutInPieces(const std::string& file, const Write& write) const {
  for (size_t offset = 0; offset < file.size(); offset += kPieceBytes) {
    Piece piece;
    piece.set_data(file.substr(offset, kPieceBytes));
    piece.set_offset(static_cast<int64_t>(offset));
    piece.set_total_bytes(static_cast<int64_t>(file.size()));
    piece.set_checksum(Hash64(piece.data()) + (options_.damaged_pieces ? 1 : 0));
    write(piece);
  }
}

grpc::Status FakeGdnService::ExportState(grpc::ServerContext*, const v1::ExportStateRequest* request,
                                         grpc::ServerWriter<v1::ExportStateResponse>* writer) {
  std::string file;
  std::optional<Fault> fault;
  {
    absl::MutexLock lock(&mu_);
    fault = TakeNext("ExportState");
    if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
    grpc::Status refusal;
    const Session* const session = FindUsable(*request, &refusal);
    if (session == nullptr) return refusal;
    file = ToyStateFile(StatesOf(*session), session->epoch, options_.exported_state_error);
  }
  CutInPieces<v1::ExportStateResponse>(file, [&](const v1::ExportStateResponse& piece) { writer->Write(piece); });
  absl::MutexLock lock(&mu_);
  return FailAfter(fault);
}

grpc::Status FakeGdnService::ImportState(grpc::ServerContext*, grpc::ServerReader<v1::ImportStateRequest>* reader,
                                         v1::ImportStateResponse* response) {
  v1::ImportStateRequest request;
  if (!reader->Read(&request) || request.target().model() != kToyModel) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "expected a target of models/toy first");
  }
  const v1::ImportStateRequest::Target target = request.target();
  std::string bytes;
  while (reader->Read(&request)) {
    if (request.checksum() != Hash64(request.data())) return grpc::Status(grpc::StatusCode::DATA_LOSS, "checksum");
    bytes += request.data();
  }
  if (static_cast<int64_t>(bytes.size()) != target.total_bytes()) {
    return grpc::Status(grpc::StatusCode::DATA_LOSS, "another size than announced");
  }
  const auto layers = ParseToyStateFile(bytes);
  if (!layers.ok()) return grpc::Status(grpc::StatusCode::DATA_LOSS, layers.status().ToString());
  return AddSession("sessions/" + target.session_id(), *layers, response->mutable_session());
}

grpc::Status FakeGdnService::WatchState(grpc::ServerContext*, const v1::WatchStateRequest* request,
                                        grpc::ServerWriter<v1::WatchStateResponse>* writer) {
  std::string file;
  {
    absl::MutexLock lock(&mu_);
    grpc::Status refusal;
    const Session* const session = FindUsable(*request, &refusal);
    if (session == nullptr) return refusal;
    file = ToyStateFile(StatesOf(*session), session->epoch, 0);
  }
  for (int64_t sequence = 0; sequence < 4; ++sequence) {
    const bool delta = sequence == 1 || sequence == 2;
    const std::string snapshot = delta ? StrCat("delta ", sequence) : file;
    CutInPieces<v1::WatchStateResponse>(snapshot, [&](v1::WatchStateResponse& piece) {
      piece.set_sequence(sequence);
      piece.set_delta(delta);
      writer->Write(piece);
    });
  }
  return ServerError(grpc::StatusCode::NOT_FOUND, reason::kSessionNotFound, "no such session");
}

grpc::Status FakeGdnService::RunPrefill(const std::string& call, const v1::PrefillRequest& request,
                                        v1::PrefillResponse* response) {
  return RunStep({.call = call,
                  .layer = request.layer(),
                  .request_id = request.request_id(),
                  .input = &request.hidden_states().hidden_states(),
                  .prefill = true,
                  .rows = {{.session = request.session(),
                            .epoch = request.session_epoch(),
                            .expected = request.has_expected_token_count() ? request.expected_token_count() : -1}}},
                 response);
}

grpc::Status FakeGdnService::RunDecode(const std::string& call, const v1::DecodeRequest& request,
                                       v1::DecodeResponse* response) {
  if (options_.refuse_decode) return grpc::Status(grpc::StatusCode::ABORTED, "busy");
  Step step = {.call = call,
               .layer = request.layer(),
               .request_id = request.request_id(),
               .input = &request.hidden_states().hidden_states(),
               .draft = request.draft(),
               .partial_ok = request.partial_ok()};
  for (int row = 0; row < request.sessions_size(); ++row) {
    step.rows.push_back(
        {.session = request.sessions(row),
         .epoch = request.session_epochs_size() > row ? request.session_epochs(row) : 0,
         .expected = request.expected_token_counts_size() > row ? request.expected_token_counts(row) : -1});
    // A tree a row, or one that all rows share.
    const auto& parents = request.draft_parents();
    const int tokens = step.input->shape_size() > 1 ? static_cast<int>(step.input->shape(1)) : 0;
    const int first = parents.size() == tokens ? 0 : row * tokens;
    if (first + tokens > parents.size()) continue;
    step.rows.back().parents.assign(parents.begin() + first, parents.begin() + first + tokens);
  }
  return RunStep(step, response);
}

grpc::Status FakeGdnService::Prefill(grpc::ServerContext*, const v1::PrefillRequest* request,
                                     v1::PrefillResponse* response) {
  return RunPrefill("Prefill", *request, response);
}

grpc::Status FakeGdnService::Decode(grpc::ServerContext*, const v1::DecodeRequest* request,
                                    v1::DecodeResponse* response) {
  return RunDecode("Decode", *request, response);
}

grpc::Status FakeGdnService::StreamPrefill(
    grpc::ServerContext*, grpc::ServerReaderWriter<v1::StreamPrefillResponse, v1::StreamPrefillRequest>* stream) {
  v1::StreamPrefillRequest request;
  for (int message = 1; stream->Read(&request); ++message) {
    stream->Write(Answer<v1::StreamPrefillResponse>([&](v1::PrefillResponse* result) {
      return options_.fail_stream_segment && message % 3 == 0
                 ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue is full")
                 : RunPrefill("StreamPrefill", request.segment(), result);
    }));
  }
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::StreamDecode(
    grpc::ServerContext*, grpc::ServerReaderWriter<v1::StreamDecodeResponse, v1::StreamDecodeRequest>* stream) {
  v1::StreamDecodeRequest request;
  while (stream->Read(&request)) {
    stream->Write(Answer<v1::StreamDecodeResponse>(
        [&](v1::DecodeResponse* result) { return RunDecode("StreamDecode", request.step(), result); }));
  }
  return grpc::Status::OK;
}

LoopbackServer::LoopbackServer(grpc::Service* service) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  target_ = StrCat("127.0.0.1:", port);
}

LoopbackServer::~LoopbackServer() { server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5)); }

std::unique_ptr<Client> LoopbackServer::Connect(ClientOptions options) const {
  return std::make_unique<Client>(server_->InProcessChannel({}), std::move(options));
}

grpc::Status FakeGdnService::ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest* request,
                                             v1::ListCheckpointsResponse* response) {
  constexpr int64_t kBytes = 1024;
  absl::MutexLock lock(&mu_);
  Session* const session = FindSession(request->name());
  if (session == nullptr) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such session");
  for (const auto& [id, states] : session->checkpoints) {
    if (id.empty()) continue;
    v1::Checkpoint* const checkpoint = response->add_checkpoints();
    checkpoint->set_checkpoint_id(id);
    checkpoint->set_epoch(session->epoch);
    checkpoint->set_written_bytes(kBytes);
    for (const auto& [index, layer] : states.layers) *checkpoint->add_layers() = Describe(*session, index, layer);
    response->set_stored_bytes(response->stored_bytes() + kBytes);
  }
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::DeleteCheckpoint(grpc::ServerContext*, const v1::DeleteCheckpointRequest* request,
                                              v1::DeleteCheckpointResponse*) {
  absl::MutexLock lock(&mu_);
  Session* const session = FindSession(request->name());
  if (session != nullptr && session->checkpoints.erase(request->checkpoint_id()) != 0) return grpc::Status::OK;
  return ServerError(grpc::StatusCode::NOT_FOUND, reason::kCheckpointNotFound, "no such checkpoint");
}

}  // namespace gdn
