#include "tests/integration/support/service_helpers.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/files/safetensors.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr float kPadding = 1e6f;
constexpr absl::Duration kPatience = absl::Seconds(60);  // sanitizers and busy machines included
constexpr absl::Duration kSettle = absl::Milliseconds(150);

DType ToDType(v1::DType dtype) { return static_cast<DType>(dtype); }  // the two number alike

// The status code of a reason: INVALID_ARGUMENT of all that are not here.
grpc::StatusCode CodeOf(const std::string& reason) {
  using enum grpc::StatusCode;
  static const auto* const kCodes = new std::map<grpc::StatusCode, std::set<std::string>>{
      {ABORTED, {"EPOCH_MISMATCH", "REPLY_DROPPED", "SESSION_BUSY", "TOKEN_COUNT_MISMATCH"}},
      {ALREADY_EXISTS, {"LEASE_EXISTS", "SESSION_EXISTS", "SNAPSHOT_EXISTS"}},
      {DATA_LOSS, {"INVALID_STATE_FILE", "STATE_LOST", "STATE_ROLLED_BACK"}},
      {FAILED_PRECONDITION,
       {"DRAFT_PENDING", "INPUT_KIND_MISMATCH", "INPUT_NEEDS_MODEL", "NO_DURABLE_TIER", "PREFIX_MISMATCH",
        "STATE_MISMATCH", "STATES_TAKEN_OVER"}},
      {NOT_FOUND,
       {"CHECKPOINT_NOT_FOUND", "LEASE_NOT_FOUND", "MODEL_NOT_FOUND", "SESSION_NOT_FOUND", "SHARED_REGION_NOT_FOUND",
        "SNAPSHOT_NOT_FOUND"}},
      {OUT_OF_RANGE, {"COUNT_LIMIT"}},
      {RESOURCE_EXHAUSTED,
       {"BYTES_EXHAUSTED", "MESSAGE_TOO_LARGE", "QUEUE_FULL", "QUOTA_EXCEEDED", "SHARED_MEMORY_EXHAUSTED",
        "STATE_BUDGET_EXHAUSTED", "TOO_MANY_CHECKPOINTS", "TOO_MANY_LEASES"}},
      {PERMISSION_DENIED, {"PERMISSION_DENIED"}},
      {UNAUTHENTICATED, {"TOKEN_EXPIRED", "UNAUTHENTICATED"}},
      {UNIMPLEMENTED, {"SHARED_MEMORY_NOT_OFFERED"}},
      {UNAVAILABLE,
       {"DEVICE_FAILED", "NODE_LEASE_LAPSED", "SERVER_DRAINING", "SESSION_ELSEWHERE", "SESSION_MOVED",
        "TIER_UNAVAILABLE"}}};
  for (const auto& [code, reasons] : *kCodes) {
    if (reasons.contains(reason)) return code;
  }
  return INVALID_ARGUMENT;
}

// Appends one sequence's rows of a [B, T, D] tensor.
void AppendSequence(const SafetensorsFile& file, const std::string& name, int sequence, Tokens& tokens) {
  const TensorView view = file.Tensor(name).value();
  const std::vector<float> all = file.Floats(name).value();
  tokens.features = view.shape[2];
  const auto stride = static_cast<std::ptrdiff_t>(view.shape[1] * view.shape[2]);
  tokens.values.insert(tokens.values.end(), all.begin() + sequence * stride, all.begin() + (sequence + 1) * stride);
}

Tokens Golden(const std::string& set, int layer, int sequence, const char* side) {
  const bool is_file = set.find('/') != std::string::npos;
  const auto file = SafetensorsFile::Open(GoldenPath(set + (is_file ? ".io.safetensors" : "/io.safetensors")));
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

}  // namespace

testing::AssertionResult RefusedAs(const grpc::Status& status, const std::string& reason,
                                   const std::map<std::string, std::string>& metadata) {
  const google::rpc::ErrorInfo info = ErrorInfoOf(status);
  bool same = status.error_code() == CodeOf(reason) && info.reason() == reason && info.domain() == "gdn.v1" &&
              !status.error_message().empty();
  for (const auto& [key, value] : metadata) {
    const auto found = info.metadata().find(key);
    same = same && found != info.metadata().end() && found->second == value;
  }
  if (same) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "code " << status.error_code() << ", \"" << status.error_message() << "\", "
                                     << info.ShortDebugString() << "; expected code " << CodeOf(reason) << ", "
                                     << reason << " and " << testing::PrintToString(metadata);
}

void ExpectRefused(const std::vector<BadCall>& calls, const std::function<std::string()>& everything) {
  const std::string before = everything();
  for (const BadCall& bad : calls) {
    SCOPED_TRACE(bad.name);
    std::map<std::string, std::string> metadata;
    if (!bad.field.empty()) metadata[bad.field[0] == '[' ? "index" : "field"] = bad.field;
    EXPECT_TRUE(RefusedAs(bad.call(), bad.reason, metadata));
    EXPECT_EQ(everything(), before);
  }
}

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

int64_t SetRows(const std::vector<std::string>& ids, const std::vector<int64_t>& lengths, v1::DecodeRequest& request) {
  const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  for (size_t i = 0; i < lengths.size(); ++i) {
    request.add_sessions("sessions/" + ids[i]);
    if (*shortest != *longest) request.add_lengths(static_cast<int32_t>(lengths[i]));
  }
  return *longest;
}

v1::DecodeRequest DecodeOf(const std::vector<std::string>& ids, int layer, const std::vector<Tokens>& rows,
                           v1::DType dtype) {
  v1::DecodeRequest request;
  request.set_layer(layer);
  std::vector<int64_t> lengths;
  for (const Tokens& row : rows) lengths.push_back(row.count());
  const int64_t longest = SetRows(ids, lengths, request);
  const int64_t features = rows.front().features;
  std::vector<float> values;
  for (const Tokens& row : rows) {
    const size_t end = values.size() + static_cast<size_t>(longest * features);
    values.insert(values.end(), row.values.begin(), row.values.end());
    values.resize(end, kPadding);
  }
  *request.mutable_hidden_states()->mutable_hidden_states() =
      AsTensor({static_cast<int64_t>(rows.size()), longest, features}, values, dtype);
  return request;
}

v1::AcceptTokensRequest AcceptOf(const std::vector<std::string>& ids, const std::vector<int>& accepted) {
  v1::AcceptTokensRequest request;
  for (size_t i = 0; i < ids.size(); ++i) {
    v1::DraftAcceptance* acceptance = request.add_acceptances();
    acceptance->set_session("sessions/" + ids[i]);
    acceptance->set_accepted_tokens(accepted[i]);
  }
  return request;
}

v1::ForkSessionRequest ForkOf(const std::string& id, const std::vector<std::string>& children) {
  v1::ForkSessionRequest request;
  request.set_name("sessions/" + id);
  for (const std::string& child : children) request.add_session_ids(child);
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

v1::StepRequest AsStep(const v1::DecodeRequest& decode) {
  v1::StepRequest step;
  step.set_layer(decode.layer());
  step.set_request_id(decode.request_id());
  step.set_output_dtype(decode.output_dtype());
  step.set_partial_ok(decode.partial_ok());
  step.set_allow_non_finite(decode.allow_non_finite());
  int64_t length = 0;
  // [B, T, ..] becomes [B * T, ..].
  const auto packed = [&length](v1::Tensor tensor) {
    length = tensor.shape(1);
    std::vector<int64_t> shape(tensor.shape().begin() + 1, tensor.shape().end());
    shape[0] *= tensor.shape(0);
    tensor.mutable_shape()->Assign(shape.begin(), shape.end());
    return tensor;
  };
  if (decode.has_hidden_states()) {
    *step.mutable_hidden_states()->mutable_hidden_states() = packed(decode.hidden_states().hidden_states());
  } else if (decode.has_delta_rule()) {
    v1::DeltaRuleInput& to = *step.mutable_delta_rule() = decode.delta_rule();
    for (v1::Tensor* const tensor : {to.mutable_q(), to.mutable_k(), to.mutable_v(), to.mutable_g(), to.mutable_beta()})
      *tensor = packed(*tensor);
  }
  for (int i = 0; i < decode.sessions_size(); ++i) {
    v1::StepRow& row = *step.add_rows();
    row.set_session(decode.sessions(i));
    row.set_token_count(static_cast<int32_t>(length));
    row.set_kind(decode.draft() ? v1::STEP_KIND_DRAFT : v1::STEP_KIND_DECODE);
    if (i < decode.expected_token_counts_size()) row.set_expected_token_count(decode.expected_token_counts(i));
    if (i < decode.session_epochs_size()) row.set_session_epoch(decode.session_epochs(i));
  }
  return step;
}

v1::StreamDecodeRequest StreamStep(const v1::DecodeRequest& step) {
  v1::StreamDecodeRequest message;
  *message.mutable_step() = step;
  return message;
}

v1::StreamPrefillRequest StreamSegment(const v1::PrefillRequest& segment) {
  v1::StreamPrefillRequest message;
  *message.mutable_segment() = segment;
  return message;
}

std::string RowBytes(const v1::Tensor& tensor, int64_t row) {
  const size_t bytes = tensor.data().size() / static_cast<size_t>(tensor.shape(0));
  return tensor.data().substr(static_cast<size_t>(row) * bytes, bytes);
}

bool WaitUntil(const std::function<bool()>& condition, const char* what) {
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

bool WaitForCalls(TestServer& server, const std::string& id, int layer, int calls) {
  const auto session = server.server().states().sessions().Find(/*principal=*/"", id);
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
  return WaitUntil(there, "calls to wait for a step");
}

bool WaitForQueuedSteps(TestServer& server, size_t steps) {
  return WaitUntil([&] { return server.batcher().queued_steps() == steps; }, "steps to be queued");
}

int HealthOf(TestServer& server, const std::string& service) {
  // On the wire HealthCheckRequest is a StringValue, and HealthCheckResponse a UInt32Value.
  grpc::TemplatedGenericStub<google::protobuf::StringValue, google::protobuf::UInt32Value> stub(server.channel());
  grpc::ClientContext context;
  google::protobuf::StringValue request;
  request.set_value(service);
  google::protobuf::UInt32Value response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  return done.get_future().get().ok() ? static_cast<int>(response.value()) : -1;
}

void CancelAndSettle(const Caller& caller, grpc::ClientContext& context) {
  context.TryCancel();
  EXPECT_TRUE(caller.Info().ok());
  absl::SleepFor(kSettle);
}

}  // namespace gdn
