// What FakeGdnService does with whole sessions.
#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "base/hash.h"
#include "base/safetensors.h"
#include "base/string_cat.h"
#include "tests/support/fake_gdn_service.h"

namespace gdn {
namespace {

constexpr size_t kPieceBytes = 100;  // so that even small files come in pieces

grpc::Status NoSession() { return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such session"); }

std::string_view Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace

int64_t FakeGdnService::token_count(const std::string& session, int32_t layer) const {
  absl::MutexLock lock(&mu_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? -1 : found->second.at(layer).token_count;
}

std::vector<std::string> FakeGdnService::prefetched() const {
  absl::MutexLock lock(&mu_);
  return prefetched_;
}

uint64_t FakeGdnService::Checksum(std::string_view data) const {
  return Hash64(data) + (faults_.damaged_pieces ? 1 : 0);
}

void FakeGdnService::Describe(const std::string& name, const Session& session, v1::Session* out) const {
  out->set_name(name);
  out->set_model("models/toy");
  const auto restores = restores_.find(name);
  out->set_epoch(1 + (restores == restores_.end() ? 0 : restores->second));
  out->set_tier(v1::STATE_TIER_HOST);
  const auto checkpoints = checkpoints_.find(name);
  if (checkpoints != checkpoints_.end()) out->mutable_durable_time()->set_seconds(1'700'000'000);
  for (const auto& [index, layer] : session) {
    v1::LayerState* const state = out->add_layers();
    state->set_layer(index);
    state->set_token_count(layer.token_count);
    if (checkpoints == checkpoints_.end() || checkpoints->second.count("") == 0) continue;
    state->set_durable_token_count(checkpoints->second.at("").at(index).token_count);
  }
}

grpc::Status FakeGdnService::GetSession(grpc::ServerContext*, const v1::GetSessionRequest* request,
                                        v1::GetSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  const auto found = sessions_.find(request->name());
  if (found == sessions_.end()) return NoSession();
  Describe(request->name(), found->second, response->mutable_session());
  return grpc::Status::OK;
}

std::string FakeGdnService::StateFile(const Session& session) const {
  std::vector<std::pair<std::string, std::vector<float>>> values;
  std::map<std::string, std::string> metadata = {
      {"format", "gdn.state"}, {"format_version", "1"},
      {"layer_count", "3"},    {"dims", "{\"conv_width\": 4, \"hidden_size\": 4}"},
      {"model", "toy"},        {"model_fingerprint", kToyFingerprint}};
  for (const auto& [layer, state] : session) {
    std::vector<float> sum(state.sum.begin(), state.sum.end());
    for (float& element : sum) element += faults_.exported_state_error;
    std::vector<float> newest;
    for (const auto& channel : state.newest) newest.insert(newest.end(), channel.begin(), channel.end());
    values.emplace_back(StrCat("layer.", layer, ".recurrent_state"), std::move(sum));
    values.emplace_back(StrCat("layer.", layer, ".conv_state"), std::move(newest));
    metadata[StrCat("layer.", layer)] = StrCat("{\"token_count\": ", state.token_count, "}");
  }
  std::vector<NamedTensor> tensors;
  for (const auto& [name, floats] : values) {
    const bool conv = floats.size() != kToyHidden;
    tensors.push_back(
        {name,
         {DType::kF32,
          conv ? std::vector<int64_t>{kToyHidden, kToyConvColumns} : std::vector<int64_t>{1, kToyHidden, 1},
          Bytes(floats)}});
  }
  return *SerializeSafetensors(tensors, metadata);
}

std::optional<std::string> FakeGdnService::StateFileOf(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  const auto session = sessions_.find(name);
  if (session == sessions_.end()) return std::nullopt;
  return StateFile(session->second);
}

template <typename Piece, typename Write>
void FakeGdnService::CutInPieces(const std::string& file, const Write& write) const {
  for (size_t offset = 0; offset < file.size(); offset += kPieceBytes) {
    Piece piece;
    piece.set_data(file.substr(offset, kPieceBytes));
    piece.set_offset(static_cast<int64_t>(offset));
    piece.set_total_bytes(static_cast<int64_t>(file.size()));
    piece.set_checksum(Checksum(piece.data()));
    write(piece);
  }
}

grpc::Status FakeGdnService::ExportState(grpc::ServerContext*, const v1::ExportStateRequest* request,
                                         grpc::ServerWriter<v1::ExportStateResponse>* writer) {
  const std::optional<std::string> file = StateFileOf(request->name());
  if (!file.has_value()) return NoSession();
  CutInPieces<v1::ExportStateResponse>(*file, [&](const v1::ExportStateResponse& piece) { writer->Write(piece); });
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::ImportState(grpc::ServerContext*, grpc::ServerReader<v1::ImportStateRequest>* reader,
                                         v1::ImportStateResponse* response) {
  v1::ImportStateRequest request;
  if (!reader->Read(&request) || request.target().model() != "models/toy") {
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
  const auto file = SafetensorsFile::Parse(bytes);
  if (!file.ok()) return grpc::Status(grpc::StatusCode::DATA_LOSS, file.status().ToString());
  Session session;
  for (const int32_t layer : kToyLayers) {
    ToyState& state = session[layer];
    const auto sum = file->Floats(StrCat("layer.", layer, ".recurrent_state"));
    const auto newest = file->Floats(StrCat("layer.", layer, ".conv_state"));
    const std::string entry = file->metadata().at(StrCat("layer.", layer));
    if (!sum.ok() || !newest.ok()) return grpc::Status(grpc::StatusCode::DATA_LOSS, "a tensor is missing");
    std::copy(sum->begin(), sum->end(), state.sum.begin());
    std::memcpy(state.newest.data(), newest->data(), sizeof(state.newest));
    state.token_count = std::atoll(entry.c_str() + entry.find(':') + 1);
  }
  absl::MutexLock lock(&mu_);
  const std::string name = "sessions/" + target.session_id();
  if (!sessions_.emplace(name, session).second) return grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "taken");
  Describe(name, session, response->mutable_session());
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::WatchState(grpc::ServerContext*, const v1::WatchStateRequest* request,
                                        grpc::ServerWriter<v1::WatchStateResponse>* writer) {
  const std::optional<std::string> file = StateFileOf(request->name());
  if (!file.has_value()) return NoSession();
  for (int64_t sequence = 0; sequence < 4; ++sequence) {
    const bool delta = sequence == 1 || sequence == 2;
    const std::string snapshot = delta ? StrCat("delta ", sequence) : *file;
    CutInPieces<v1::WatchStateResponse>(snapshot, [&](v1::WatchStateResponse& piece) {
      piece.set_sequence(sequence);
      piece.set_delta(delta);
      writer->Write(piece);
    });
  }
  return NoSession();
}

grpc::Status FakeGdnService::ForkSession(grpc::ServerContext*, const v1::ForkSessionRequest* request,
                                         v1::ForkSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  const auto parent = sessions_.find(request->name());
  if (parent == sessions_.end()) return NoSession();
  for (const std::string& id : request->session_ids()) {
    const std::string name = "sessions/" + (id.empty() ? "made-by-the-server" : id);
    sessions_[name] = parent->second;
    Describe(name, parent->second, response->add_sessions());
  }
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::CheckpointSession(grpc::ServerContext*, const v1::CheckpointSessionRequest* request,
                                               v1::CheckpointSessionResponse* response) {
  absl::MutexLock lock(&mu_);
  const auto found = sessions_.find(request->name());
  if (found == sessions_.end()) return NoSession();
  checkpoints_[request->name()][request->checkpoint_id()] = found->second;
  v1::Session session;
  Describe(request->name(), found->second, &session);
  v1::Checkpoint* const checkpoint = response->mutable_checkpoint();
  checkpoint->set_checkpoint_id(request->checkpoint_id());
  checkpoint->set_epoch(session.epoch());
  *checkpoint->mutable_layers() = session.layers();
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::RestoreCheckpoint(grpc::ServerContext*, const v1::RestoreCheckpointRequest* request,
                                               v1::RestoreCheckpointResponse* response) {
  absl::MutexLock lock(&mu_);
  const auto found = sessions_.find(request->name());
  if (found == sessions_.end()) return NoSession();
  const auto checkpoints = checkpoints_.find(request->name());
  if (checkpoints == checkpoints_.end() || checkpoints->second.count(request->checkpoint_id()) == 0) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such checkpoint");
  }
  found->second = checkpoints->second.at(request->checkpoint_id());
  ++restores_[request->name()];
  Describe(request->name(), found->second, response->mutable_session());
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::PrefetchSessions(grpc::ServerContext*, const v1::PrefetchSessionsRequest* request,
                                              v1::PrefetchSessionsResponse* response) {
  absl::MutexLock lock(&mu_);
  prefetched_.assign(request->names().begin(), request->names().end());
  response->set_started(request->names_size());
  return grpc::Status::OK;
}

}  // namespace gdn
