#include "tests/support/fake_gdn_service.h"

#include <algorithm>
#include <chrono>

#include "base/string_cat.h"
#include "client/cpp/tensor_codec.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace gdn {
namespace {

constexpr int64_t kMaxStoredReplyBytes = 64 * kToyHidden * 4;  // replies of more than 64 tokens are not kept

google::rpc::Status ToRpc(const grpc::Status& status) {
  google::rpc::Status rpc;
  rpc.set_code(status.error_code());
  rpc.set_message(status.error_message());
  return rpc;
}

}  // namespace

std::array<float, kToyHidden> ToyState::Step(int32_t layer, const float* x) {
  std::array<float, kToyHidden> y;
  for (size_t d = 0; d < kToyHidden; ++d) {
    sum[d] += x[d];
    std::rotate(newest[d].begin(), newest[d].begin() + 1, newest[d].end());
    newest[d].back() = x[d];
    y[d] = static_cast<float>(layer + 1) * sum[d];
  }
  ++token_count;
  return y;
}

std::set<std::string> FakeGdnService::session_names() const {
  absl::MutexLock lock(&mu_);
  std::set<std::string> names;
  for (const auto& [name, session] : sessions_) names.insert(name);
  return names;
}

int FakeGdnService::sessions_created() const {
  absl::MutexLock lock(&mu_);
  return sessions_created_;
}

std::set<std::string> FakeGdnService::checked_calls() const {
  absl::MutexLock lock(&mu_);
  return checked_calls_;
}

std::set<std::string> FakeGdnService::identified_calls() const {
  absl::MutexLock lock(&mu_);
  return identified_calls_;
}

grpc::Status FakeGdnService::GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                                           v1::GetServerInfoResponse* response) {
  response->set_version("0.0.0-fake");
  response->set_backend("cpu");
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
  if (request->name() != "models/toy") return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such model");
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
  request.set_name("models/toy");
  v1::GetModelResponse model;
  (void)GetModel(context, &request, &model);
  *response->add_models() = model.model();
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest* request,
                                           v1::CreateSessionResponse* response) {
  if (request->model() != "models/toy") return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such model");
  absl::MutexLock lock(&mu_);
  const std::string name = "sessions/" + request->session_id();
  if (!sessions_.emplace(name, Session{{0, {}}, {2, {}}}).second) {
    return grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "taken");
  }
  ++sessions_created_;
  response->mutable_session()->set_name(name);
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest* request,
                                           v1::DeleteSessionResponse*) {
  absl::MutexLock lock(&mu_);
  return sessions_.erase(request->name()) != 0 ? grpc::Status::OK
                                               : grpc::Status(grpc::StatusCode::NOT_FOUND, "no such session");
}

grpc::Status FakeGdnService::Advance(const std::string& call, const std::string& session, int32_t layer,
                                     int64_t expected_count, const float* input, int64_t tokens,
                                     std::vector<float>* output, int64_t* token_count) {
  absl::MutexLock lock(&mu_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such session");
  const auto state = found->second.find(layer);
  if (state == found->second.end()) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no such layer");
  if (expected_count >= 0) {
    checked_calls_.insert(call);
    if (expected_count != state->second.token_count) return grpc::Status(grpc::StatusCode::ABORTED, "another count");
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (float y : state->second.Step(layer, input + t * kToyHidden)) {
      output->push_back(call == faults_.faulty_call ? y + faults_.output_error : y);
    }
  }
  *token_count = state->second.token_count + (faults_.wrong_token_count ? 1 : 0);
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::RunPrefill(const std::string& call, const v1::PrefillRequest& request,
                                        v1::PrefillResponse* response) {
  const auto input = TensorToFloats(request.hidden_states().hidden_states(),
                                    {{request.hidden_states().hidden_states().shape(0), kToyHidden}});
  if (!input.ok()) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, input.status().ToString());
  if (!request.request_id().empty()) {
    if (static_cast<int64_t>(input->size() * 4) > kMaxStoredReplyBytes) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the reply is too large to store");
    }
    absl::MutexLock lock(&mu_);
    identified_calls_.insert(call);
  }
  std::vector<float> output;
  int64_t token_count = 0;
  const int64_t tokens = static_cast<int64_t>(input->size()) / kToyHidden;
  grpc::Status status = Advance(call, request.session(), request.layer(),
                                request.has_expected_token_count() ? request.expected_token_count() : -1, input->data(),
                                tokens, &output, &token_count);
  if (!status.ok()) return status;
  *response->mutable_output() = *MakeTensor(output, {tokens, kToyHidden});
  response->set_token_count(token_count);
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::RunDecode(const std::string& call, const v1::DecodeRequest& request,
                                       v1::DecodeResponse* response) {
  const int64_t batch = request.sessions_size();
  const auto input = TensorToFloats(request.hidden_states().hidden_states(), {{batch, 1, kToyHidden}});
  if (!input.ok()) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, input.status().ToString());
  if (faults_.refuse_decode) return grpc::Status(grpc::StatusCode::ABORTED, "busy");
  if (!request.request_id().empty()) {
    absl::MutexLock lock(&mu_);
    identified_calls_.insert(call);
  }
  std::vector<float> output;
  for (int row = 0; row < batch; ++row) {
    int64_t token_count = 0;
    const int64_t expected = request.expected_token_counts_size() > row ? request.expected_token_counts(row) : -1;
    grpc::Status status = Advance(call, request.sessions(row), request.layer(), expected,
                                  input->data() + row * kToyHidden, 1, &output, &token_count);
    if (!status.ok()) return status;
    response->add_token_counts(token_count);
  }
  *response->mutable_output() = *MakeTensor(output, {batch, 1, kToyHidden});
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::Prefill(grpc::ServerContext*, const v1::PrefillRequest* request,
                                     v1::PrefillResponse* response) {
  return RunPrefill("Prefill", *request, response);
}

grpc::Status FakeGdnService::StreamPrefill(
    grpc::ServerContext*, grpc::ServerReaderWriter<v1::StreamPrefillResponse, v1::StreamPrefillRequest>* stream) {
  v1::StreamPrefillRequest request;
  for (int message = 1; stream->Read(&request); ++message) {
    v1::StreamPrefillResponse response;
    const grpc::Status status = faults_.fail_stream_segment && message % 3 == 0
                                    ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue is full")
                                    : RunPrefill("StreamPrefill", request.segment(), response.mutable_result());
    if (!status.ok()) {
      response.clear_result();
      *response.mutable_status() = ToRpc(status);
    }
    stream->Write(response);
  }
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::Decode(grpc::ServerContext*, const v1::DecodeRequest* request,
                                    v1::DecodeResponse* response) {
  return RunDecode("Decode", *request, response);
}

grpc::Status FakeGdnService::StreamDecode(
    grpc::ServerContext*, grpc::ServerReaderWriter<v1::StreamDecodeResponse, v1::StreamDecodeRequest>* stream) {
  v1::StreamDecodeRequest request;
  while (stream->Read(&request)) {
    v1::StreamDecodeResponse response;
    const grpc::Status status = RunDecode("StreamDecode", request.step(), response.mutable_result());
    if (!status.ok()) {
      response.clear_result();
      *response.mutable_status() = ToRpc(status);
    }
    stream->Write(response);
  }
  return grpc::Status::OK;
}

LoopbackServer::LoopbackServer(grpc::Service* service) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  target_ = StrCat("127.0.0.1:", port);
}

LoopbackServer::~LoopbackServer() { server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5)); }

}  // namespace gdn
