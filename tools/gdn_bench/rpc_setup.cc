#include "tools/gdn_bench/rpc_setup.h"

#include <fstream>
#include <list>
#include <random>
#include <string_view>
#include <utility>

#include "absl/time/time.h"
#include "base/error.h"
#include "base/safetensors.h"
#include "base/status_macros.h"
#include "client/cpp/tensor_codec.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "nlohmann/json.hpp"
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

absl::Status WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write '", path, "'"));
  return absl::OkStatus();
}

std::string ConfigJson(const LayerDims& dims) {
  return nlohmann::json{{"model_type", "qwen3_5_text"},
                        {"dtype", "bfloat16"},
                        {"hidden_act", "silu"},
                        {"hidden_size", dims.hidden_size},
                        {"num_hidden_layers", 1},
                        {"layer_types", {"linear_attention"}},
                        {"linear_conv_kernel_dim", dims.conv_width},
                        {"linear_key_head_dim", dims.key_dim},
                        {"linear_value_head_dim", dims.value_dim},
                        {"linear_num_key_heads", dims.key_heads},
                        {"linear_num_value_heads", dims.value_heads},
                        {"rms_norm_eps", 1e-6}}
      .dump(2);
}

}  // namespace

absl::StatusOr<ServerPair> StartServers(const std::string& server, const std::vector<std::string>& server_flags,
                                        const std::string& self, const std::string& folder) {
  constexpr absl::Duration kStartTimeout = absl::Seconds(60);
  const std::string gdn_port = folder + "/gdn.port", echo_port = folder + "/echo.port";
  std::vector<std::string> argv = {server, "--listen=127.0.0.1:0", absl::StrCat("--port_file=", gdn_port)};
  argv.insert(argv.end(), server_flags.begin(), server_flags.end());
  GDN_ASSIGN_OR_RETURN(ChildProcess gdn, ChildProcess::Start(std::move(argv), folder + "/gdn.log"));
  GDN_ASSIGN_OR_RETURN(
      ChildProcess echo,
      ChildProcess::Start({self, "echo_server", absl::StrCat("--port_file=", echo_port)}, folder + "/echo.log"));
  GDN_ASSIGN_OR_RETURN(const int gdn_at, gdn.WaitForPort(gdn_port, kStartTimeout));
  GDN_ASSIGN_OR_RETURN(const int echo_at, echo.WaitForPort(echo_port, kStartTimeout));
  return ServerPair{
      .gdn = std::move(gdn),
      .echo = std::move(echo),
      .targets = {.gdn = absl::StrCat("127.0.0.1:", gdn_at), .echo = absl::StrCat("127.0.0.1:", echo_at)}};
}

std::shared_ptr<grpc::Channel> ChannelAlone(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

std::unique_ptr<Client> ConnectAlone(const std::string& target) {
  ClientOptions options;
  options.default_timeout = absl::Seconds(10);
  return std::make_unique<Client>(ChannelAlone(target), options);
}

absl::Status WriteSyntheticCheckpoint(const LayerDims& dims, const std::string& folder) {
  const int64_t hidden = dims.hidden_size;
  const int64_t heads = dims.value_heads;
  const std::pair<const char*, std::vector<int64_t>> shapes[] = {
      {"in_proj_qkv.weight", {dims.conv_channels(), hidden}},
      {"in_proj_z.weight", {dims.value_features(), hidden}},
      {"in_proj_b.weight", {heads, hidden}},
      {"in_proj_a.weight", {heads, hidden}},
      {"conv1d.weight", {dims.conv_channels(), 1, dims.conv_width}},
      {"A_log", {heads}},
      {"dt_bias", {heads}},
      {"norm.weight", {dims.value_dim}},
      {"out_proj.weight", {hidden, dims.value_features()}},
  };
  std::list<std::string> zeros;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, shape] : shapes) {
    GDN_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape));
    zeros.emplace_back(static_cast<size_t>(count) * sizeof(uint16_t), '\0');
    tensors.push_back({absl::StrCat("model.layers.0.linear_attn.", name), {DType::kBF16, shape, zeros.back()}});
  }
  GDN_ASSIGN_OR_RETURN(const std::string file, SerializeSafetensors(tensors, {{"format", "pt"}}));
  GDN_RETURN_IF_ERROR(WriteFile(folder + "/model.safetensors", file));
  return WriteFile(folder + "/config.json", ConfigJson(dims));
}

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
