#include "tests/integration/service_helpers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/safetensors.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr float kPadding = 1e6f;
constexpr absl::Duration kPatience = absl::Seconds(60);  // sanitizers and busy machines included
constexpr absl::Duration kSettle = absl::Milliseconds(150);

DType ToDType(v1::DType dtype) { return static_cast<DType>(dtype); }  // the two number alike

// Appends one sequence's rows of a [B, T, D] tensor.
void AppendSequence(const SafetensorsFile& file, const std::string& name, int sequence, Tokens& tokens) {
  const TensorView view = file.Tensor(name).value();
  const std::vector<float> all = file.Floats(name).value();
  tokens.features = view.shape[2];
  const auto stride = static_cast<std::ptrdiff_t>(view.shape[1] * view.shape[2]);
  tokens.values.insert(tokens.values.end(), all.begin() + sequence * stride, all.begin() + (sequence + 1) * stride);
}

Tokens Golden(const std::string& set, int layer, int sequence, const char* side) {
  const auto file = SafetensorsFile::Open(GoldenPath(set + "/io.safetensors"));
  EXPECT_TRUE(file.ok()) << file.status();
  Tokens tokens;
  AppendSequence(*file, absl::StrCat("layer.", layer, ".prefill.", side), sequence, tokens);
  for (int step = 0;; ++step) {
    const std::string name = absl::StrCat("layer.", layer, ".decode.", step, ".", side);
    if (!file->Contains(name)) return tokens;
    AppendSequence(*file, name, sequence, tokens);
  }
}

std::vector<int64_t> Joined(std::vector<int64_t> leading, std::initializer_list<int64_t> trailing) {
  leading.insert(leading.end(), trailing);
  return leading;
}

bool Poll(const std::function<bool()>& condition, const char* what) {
  const absl::Time end = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > end) {
      ADD_FAILURE() << "waited in vain for " << what;
      return false;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace

Tokens Tokens::Slice(int64_t first, int64_t count) const {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first * features);
  return {features, std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count * features))};
}

Tokens GoldenInputs(const std::string& set, int layer, int sequence) { return Golden(set, layer, sequence, "in"); }
Tokens GoldenOutputs(const std::string& set, int layer, int sequence) { return Golden(set, layer, sequence, "out"); }

Tokens RandomTokens(int64_t count, uint64_t seed, int64_t features) {
  return {features, Random(seed).Normal(count * features)};
}

v1::Tensor AsTensor(const std::vector<int64_t>& shape, const std::vector<float>& values, v1::DType dtype) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (const int64_t dim : shape) tensor.add_shape(dim);
  tensor.mutable_data()->resize(values.size() * DTypeSize(ToDType(dtype)));
  ConvertFromFloat(values.data(), values.size(), ToDType(dtype), tensor.mutable_data()->data());
  return tensor;
}

std::vector<float> Floats(const v1::Tensor& tensor) {
  if (tensor.data().empty()) return {};
  std::vector<float> values(tensor.data().size() / DTypeSize(ToDType(tensor.dtype())));
  ConvertToFloat(ToDType(tensor.dtype()), tensor.data().data(), values.size(), values.data());
  return values;
}

v1::PrefillRequest PrefillOf(const std::string& id, int layer, const Tokens& tokens, v1::DType dtype) {
  v1::PrefillRequest request;
  request.set_session("sessions/" + id);
  request.set_layer(layer);
  *request.mutable_hidden_states()->mutable_hidden_states() =
      AsTensor({tokens.count(), tokens.features}, tokens.values, dtype);
  return request;
}

v1::DecodeRequest DecodeOf(const std::vector<std::string>& ids, int layer, const std::vector<Tokens>& rows,
                           v1::DType dtype) {
  v1::DecodeRequest request;
  request.set_layer(layer);
  int64_t longest = 0;
  for (const Tokens& row : rows) longest = std::max(longest, row.count());
  const bool ragged = std::any_of(rows.begin(), rows.end(), [&](const Tokens& row) { return row.count() != longest; });
  const int64_t features = rows.front().features;
  std::vector<float> values;
  for (size_t i = 0; i < rows.size(); ++i) {
    request.add_sessions("sessions/" + ids[i]);
    if (ragged) request.add_lengths(static_cast<int32_t>(rows[i].count()));
    values.insert(values.end(), rows[i].values.begin(), rows[i].values.end());
    values.resize((i + 1) * static_cast<size_t>(longest * features), kPadding);
  }
  *request.mutable_hidden_states()->mutable_hidden_states() =
      AsTensor({static_cast<int64_t>(rows.size()), longest, features}, values, dtype);
  return request;
}

v1::DeltaRuleInput DeltaRuleOf(const DeltaRuleInputs& inputs, const std::vector<int64_t>& leading) {
  const LayerDims& dims = inputs.dims;
  v1::DeltaRuleInput input;
  *input.mutable_q() = AsTensor(Joined(leading, {dims.key_heads, dims.key_dim}), inputs.q);
  *input.mutable_k() = AsTensor(Joined(leading, {dims.key_heads, dims.key_dim}), inputs.k);
  *input.mutable_v() = AsTensor(Joined(leading, {dims.value_heads, dims.value_dim}), inputs.v);
  *input.mutable_g() = AsTensor(Joined(leading, {dims.value_heads}), inputs.g);
  *input.mutable_beta() = AsTensor(Joined(leading, {dims.value_heads}), inputs.beta);
  return input;
}

v1::ProjectedInput RandomProjected(const std::vector<int64_t>& leading, uint64_t seed) {
  constexpr int64_t kChannels = 256;
  constexpr int64_t kValueFeatures = 128;
  constexpr int64_t kValueHeads = 4;
  const int64_t tokens = std::accumulate(leading.begin(), leading.end(), int64_t{1}, std::multiplies<>());
  Random random(seed);
  v1::ProjectedInput input;
  *input.mutable_mixed_qkv() = AsTensor(Joined(leading, {kChannels}), random.Normal(tokens * kChannels));
  *input.mutable_z() = AsTensor(Joined(leading, {kValueFeatures}), random.Normal(tokens * kValueFeatures));
  *input.mutable_b() = AsTensor(Joined(leading, {kValueHeads}), random.Normal(tokens * kValueHeads));
  *input.mutable_a() = AsTensor(Joined(leading, {kValueHeads}), random.Normal(tokens * kValueHeads));
  return input;
}

LayerDims SmallOperatorDims() { return OperatorDims(2, 4, 16, 24); }

v1::OperatorSpec SmallOperator(int layer_count) {
  const LayerDims dims = SmallOperatorDims();
  v1::OperatorSpec spec;
  spec.set_key_heads(dims.key_heads);
  spec.set_value_heads(dims.value_heads);
  spec.set_key_dim(dims.key_dim);
  spec.set_value_dim(dims.value_dim);
  spec.set_layer_count(layer_count);
  return spec;
}

std::string RowBytes(const v1::Tensor& tensor, int64_t row) {
  const size_t bytes = tensor.data().size() / static_cast<size_t>(tensor.shape(0));
  return tensor.data().substr(static_cast<size_t>(row) * bytes, bytes);
}

std::unique_ptr<grpc::ClientContext> Caller::NewContext() const {
  auto context = std::make_unique<grpc::ClientContext>();
  if (!authorization_.empty()) context->AddMetadata("authorization", authorization_);
  return context;
}

Outcome<v1::Session> Caller::Create(const v1::CreateSessionRequest& request) const {
  Outcome<v1::Session> outcome;
  v1::CreateSessionResponse response;
  outcome.status = server_.stub().CreateSession(NewContext().get(), request, &response);
  outcome.reply = response.session();
  return outcome;
}

Outcome<v1::Session> Caller::Create(const std::string& id, const std::string& model) const {
  v1::CreateSessionRequest request;
  request.set_session_id(id);
  request.set_model("models/" + model);
  return Create(request);
}

Outcome<v1::Session> Caller::CreateOperator(const std::string& id, const v1::OperatorSpec& spec) const {
  v1::CreateSessionRequest request;
  request.set_session_id(id);
  *request.mutable_operator_() = spec;
  return Create(request);
}

Outcome<v1::Session> Caller::Get(const std::string& id) const {
  Outcome<v1::Session> outcome;
  v1::GetSessionRequest request;
  request.set_name("sessions/" + id);
  v1::GetSessionResponse response;
  outcome.status = server_.stub().GetSession(NewContext().get(), request, &response);
  outcome.reply = response.session();
  return outcome;
}

Outcome<v1::ListSessionsResponse> Caller::List(int page_size, const std::string& page_token) const {
  Outcome<v1::ListSessionsResponse> outcome;
  v1::ListSessionsRequest request;
  request.set_page_size(page_size);
  request.set_page_token(page_token);
  outcome.status = server_.stub().ListSessions(NewContext().get(), request, &outcome.reply);
  return outcome;
}

Outcome<v1::DeleteSessionResponse> Caller::Delete(const std::string& id) const {
  Outcome<v1::DeleteSessionResponse> outcome;
  v1::DeleteSessionRequest request;
  request.set_name("sessions/" + id);
  outcome.status = server_.stub().DeleteSession(NewContext().get(), request, &outcome.reply);
  return outcome;
}

Outcome<v1::GetServerInfoResponse> Caller::Info() const {
  Outcome<v1::GetServerInfoResponse> outcome;
  outcome.status = server_.stub().GetServerInfo(NewContext().get(), v1::GetServerInfoRequest(), &outcome.reply);
  return outcome;
}

Outcome<v1::PrefillResponse> Caller::Prefill(grpc::ClientContext& context, const v1::PrefillRequest& request) const {
  Outcome<v1::PrefillResponse> outcome;
  outcome.status = server_.stub().Prefill(&context, request, &outcome.reply);
  return outcome;
}

Outcome<v1::PrefillResponse> Caller::Prefill(const v1::PrefillRequest& request) const {
  return Prefill(*NewContext(), request);
}

Outcome<v1::DecodeResponse> Caller::Decode(grpc::ClientContext& context, const v1::DecodeRequest& request) const {
  Outcome<v1::DecodeResponse> outcome;
  outcome.status = server_.stub().Decode(&context, request, &outcome.reply);
  return outcome;
}

Outcome<v1::DecodeResponse> Caller::Decode(const v1::DecodeRequest& request) const {
  return Decode(*NewContext(), request);
}

Outcome<std::string> Caller::Export(const std::string& id, bool include_recurrent_state) const {
  Outcome<std::string> outcome;
  v1::ExportStateRequest request;
  request.set_name("sessions/" + id);
  request.set_include_recurrent_state(include_recurrent_state);
  const auto context = NewContext();
  const auto reader = server_.stub().ExportState(context.get(), request);
  v1::ExportStateResponse piece;
  while (reader->Read(&piece)) outcome.reply += piece.data();
  outcome.status = reader->Finish();
  return outcome;
}

Outcome<v1::Session> Caller::Import(const v1::ImportStateRequest::Target& target, const std::string& file,
                                    size_t piece_bytes) const {
  Outcome<v1::Session> outcome;
  const auto context = NewContext();
  v1::ImportStateResponse response;
  const auto writer = server_.stub().ImportState(context.get(), &response);
  v1::ImportStateRequest request;
  *request.mutable_target() = target;
  bool open = writer->Write(request);
  for (size_t sent = 0; open && sent < file.size(); sent += piece_bytes) {
    request.set_data(file.substr(sent, piece_bytes));
    open = writer->Write(request);
  }
  writer->WritesDone();
  outcome.status = writer->Finish();
  outcome.reply = response.session();
  return outcome;
}

Outcome<v1::Session> Caller::Import(const std::string& id, const std::string& model, const std::string& file) const {
  v1::ImportStateRequest::Target target;
  target.set_session_id(id);
  target.set_model("models/" + model);
  return Import(target, file);
}

int64_t Caller::TokenCount(const std::string& id, int layer) const {
  const v1::Session session = Get(id).reply;
  for (const v1::LayerState& state : session.layers()) {
    if (state.layer() == layer) return state.token_count();
  }
  return -1;
}

std::string Caller::State(const std::string& id) const {
  const Outcome<std::string> exported = Export(id);
  EXPECT_TRUE(exported.ok()) << exported.status.error_message();
  return exported.reply;
}

bool WaitForCalls(TestServer& server, const std::string& id, int layer, int calls) {
  const auto session = server.sessions().Find(/*principal=*/"", id);
  if (!session.ok()) {
    ADD_FAILURE() << session.status();
    return false;
  }
  const auto there = [&] {
    for (const LayerInfo& info : (*session)->Layers()) {
      if (info.layer == layer) return info.waiting_calls == calls;
    }
    return false;
  };
  return Poll(there, "calls to wait for a step");
}

bool WaitForQueuedSteps(TestServer& server, size_t steps) {
  return Poll([&] { return server.batcher().queued_steps() == steps; }, "steps to be queued");
}

void CancelAndSettle(const Caller& caller, grpc::ClientContext& context) {
  context.TryCancel();
  EXPECT_TRUE(caller.Info().ok());
  absl::SleepFor(kSettle);
}

}  // namespace gdn
