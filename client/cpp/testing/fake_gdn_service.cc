#include "client/cpp/testing/fake_gdn_service.h"

#include <chrono>
#include <utility>

#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/testing/server_error.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "server/validation/names.h"

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

grpc::Status FakeGdnService::GetServerInfo(Context*, const v1::GetServerInfoRequest*,
                                           v1::GetServerInfoResponse* response) {
  absl::MutexLock lock(&mu_);
  response->set_version("0.0.0-fake");
  response->set_backend("cpu");
  response->set_numerics_id(numerics_id_);
  response->mutable_limits()->set_max_stored_reply_bytes(kMaxStoredReplyBytes);
  v1::TierInfo* const disk = response->add_tiers();
  disk->set_name("disk");
  disk->set_sessions(3);
  disk->set_used_bytes(64 << 20);
  response->set_recovered_sessions(2);
  response->mutable_snapshots()->set_count(static_cast<int64_t>(snapshots_.size()));
  response->mutable_snapshots()->set_evicted(static_cast<int64_t>(lost_snapshots_.size()));
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::GetModel(Context*, const v1::GetModelRequest* request, v1::GetModelResponse* response) {
  if (request->name() != kToyModel) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such model");
  v1::Model* const model = response->mutable_model();
  model->set_name(request->name());
  model->set_num_layers(3);
  model->mutable_dims()->set_hidden_size(kToyHidden);
  model->set_fingerprint(kToyFingerprint);
  for (const int32_t layer : kToyLayers) model->add_gdn_layers(layer);
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::ListModels(Context* context, const v1::ListModelsRequest*,
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

template <typename Request>
grpc::Status FakeGdnService::ReadFile(const std::string& method, const Request& request, float error,
                                      std::string* file) {
  return Call(method, [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_ASSIGN_OR_RETURN(const Session* const session, Find(request.name()));
    GDN_RETURN_IF_ERROR(session->unusable);
    GDN_RETURN_IF_ERROR(CheckEpochOf(*session, request));
    ToyStates states;
    for (const auto& [index, layer] : session->now.layers) states[index] = layer.toy;
    *file = ToyStateFile(states, session->epoch, error);
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::ExportState(Context*, const v1::ExportStateRequest* request,
                                         grpc::ServerWriter<v1::ExportStateResponse>* writer) {
  std::string file;
  grpc::Status status = ReadFile("ExportState", *request, options_.exported_state_error, &file);
  CutInPieces<v1::ExportStateResponse>(file, [&](const v1::ExportStateResponse& piece) { writer->Write(piece); });
  return status;
}

grpc::Status FakeGdnService::ImportState(Context*, grpc::ServerReader<v1::ImportStateRequest>* reader,
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
  const std::string& id = target.session_id();
  absl::MutexLock lock(&mu_);
  const auto [entry, made] = sessions_.emplace(SessionName(id), Session{.id = id});
  if (!made) return grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "taken");
  for (const auto& [index, toy] : *layers) entry->second.now.layers[index].toy = toy;
  Describe(entry->second, response->mutable_session());
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::WatchState(Context*, const v1::WatchStateRequest* request,
                                        grpc::ServerWriter<v1::WatchStateResponse>* writer) {
  std::string file;
  if (grpc::Status status = ReadFile("WatchState", *request, /*error=*/0, &file); !status.ok()) return status;
  for (int64_t sequence = 0; sequence < 4; ++sequence) {
    const bool delta = sequence == 1 || sequence == 2;
    const std::string snapshot = delta ? StrCat("delta ", sequence) : file;
    CutInPieces<v1::WatchStateResponse>(snapshot, [&](v1::WatchStateResponse& piece) {
      piece.set_sequence(sequence);
      piece.set_delta(delta);
      writer->Write(piece);
    });
  }
  return ServerError(SessionNotFound(std::string(*ParseSessionName(request->name()))));
}

grpc::Status FakeGdnService::Prefill(Context*, const v1::PrefillRequest* request, v1::PrefillResponse* response) {
  return RunPrefill("Prefill", *request, response);
}

grpc::Status FakeGdnService::Decode(Context*, const v1::DecodeRequest* request, v1::DecodeResponse* response) {
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

grpc::Status FakeGdnService::Step(Context*, const v1::StepRequest* request, v1::StepResponse* response) {
  if (options_.no_step) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  return RunMixed("Step", *request, response);
}

grpc::Status FakeGdnService::StreamStep(
    grpc::ServerContext*, grpc::ServerReaderWriter<v1::StreamStepResponse, v1::StreamStepRequest>* stream) {
  if (options_.no_step) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  v1::StreamStepRequest request;
  while (stream->Read(&request)) {
    stream->Write(Answer<v1::StreamStepResponse>(
        [&](v1::StepResponse* result) { return RunMixed("StreamStep", request.step(), result); }));
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

}  // namespace gdn
