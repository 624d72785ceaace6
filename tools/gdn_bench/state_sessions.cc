#include "tools/gdn_bench/state_sessions.h"

#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "client/cpp/tensor_codec.h"
#include "tools/gdn_bench/kernel_case.h"

namespace gdn::bench {
namespace {

constexpr int64_t kPrefillTokens = 4;
constexpr int kLoggedTokens = 4;
constexpr uint32_t kSeed = 20240607;

v1::DeltaRuleInput RandomInput(const std::vector<int64_t>& leading) {
  const LayerDims dims = BenchOperatorDims();
  const auto shape = [&leading](std::vector<int64_t> rest) {
    rest.insert(rest.begin(), leading.begin(), leading.end());
    return rest;
  };
  v1::DeltaRuleInput input;
  *input.mutable_q() = RandomTensor(shape({dims.key_heads, dims.key_dim}), -1, 1);
  *input.mutable_k() = RandomTensor(shape({dims.key_heads, dims.key_dim}), -1, 1);
  *input.mutable_v() = RandomTensor(shape({dims.value_heads, dims.value_dim}), -1, 1);
  *input.mutable_g() = RandomTensor(shape({dims.value_heads}), -0.1f, 0);
  *input.mutable_beta() = RandomTensor(shape({dims.value_heads}), 0, 1);
  input.set_use_qk_l2norm(true);
  return input;
}

}  // namespace

v1::Tensor RandomTensor(const std::vector<int64_t>& shape, float low, float high, DType dtype) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = uniform(random);
  return MakeTensor(values, shape, dtype).value();
}

v1::OperatorSpec BenchOperatorSpec(int layers) {
  const LayerDims dims = BenchOperatorDims();
  v1::OperatorSpec spec;
  spec.set_key_heads(dims.key_heads);
  spec.set_value_heads(dims.value_heads);
  spec.set_key_dim(dims.key_dim);
  spec.set_value_dim(dims.value_dim);
  spec.set_layer_count(layers);
  return spec;
}

v1::DecodeRequest StepOf(const std::string& id, int layer) {
  v1::DecodeRequest request;
  request.add_sessions(absl::StrCat("sessions/", id));
  request.set_layer(layer);
  *request.mutable_delta_rule() = RandomInput({1, 1});
  return request;
}

absl::Status MakeBusySession(Client& client, const std::string& id, int layers) {
  v1::CreateSessionRequest create;
  create.set_session_id(id);
  *create.mutable_operator_() = BenchOperatorSpec(layers);
  GDN_RETURN_IF_ERROR(WithPrefix(client.CreateSession(create).status(), "CreateSession"));
  v1::PrefillRequest prefill;
  prefill.set_session(absl::StrCat("sessions/", id));
  *prefill.mutable_delta_rule() = RandomInput({kPrefillTokens});
  v1::DecodeRequest step = StepOf(id, 0);
  for (int layer = 0; layer < layers; ++layer) {
    prefill.set_layer(layer);
    step.set_layer(layer);
    GDN_RETURN_IF_ERROR(WithPrefix(client.Prefill(prefill).status(), "Prefill"));
    for (int token = 0; token < kLoggedTokens; ++token) {
      GDN_RETURN_IF_ERROR(WithPrefix(client.Decode(step).status(), "Decode"));
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn::bench
