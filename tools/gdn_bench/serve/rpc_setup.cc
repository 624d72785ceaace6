#include "tools/gdn_bench/serve/rpc_setup.h"

#include <functional>
#include <random>
#include <tuple>
#include <utility>

#include "absl/time/time.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/threads/processors.h"
#include "client/cpp/tensor_codec.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "tools/gdn_bench/kernels/kernel_case.h"
#include "tools/gdn_bench/serve/credentials.h"
#include "tools/gdn_bench/serve/echo_server.h"

namespace gdn::bench {
namespace {

constexpr int64_t kPrefillTokens = 4;
constexpr int kLoggedTokens = 4;
constexpr uint32_t kTensorSeed = 20240607;

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

constexpr absl::Duration kStartTimeout = absl::Seconds(120);  // large models are read before a server listens

// Where a server is to listen, and under which gRPC name it is then found.
struct Address {
  std::string listen;
  std::function<std::string(int)> target_of_port;
};

Address AddressOf(Transport transport, const std::string& socket) {
  if (transport == Transport::kUnix) {
    return {absl::StrCat("unix:", socket), [socket](int) { return absl::StrCat("unix:", socket); }};
  }
  return {"127.0.0.1:0", [](int port) { return absl::StrCat("127.0.0.1:", port); }};
}

}  // namespace

absl::StatusOr<ServerPair> StartServers(const ServerPairOptions& options,
                                        const std::vector<std::string>& server_flags) {
  const std::string& folder = options.folder;
  const std::string gdn_port = folder + "/gdn.port", echo_port = folder + "/echo.port";
  const Address gdn_address = AddressOf(options.transport, folder + "/gdn.sock");
  const Address echo_address = AddressOf(options.transport, folder + "/echo.sock");
  const Address raw_address = AddressOf(options.transport, RawEchoOf(folder + "/echo.sock"));
  const Address gdn_socket = AddressOf(Transport::kUnix, folder + "/gdn.sock");
  std::vector<std::string> argv = {options.server, absl::StrCat("--port_file=", gdn_port),
                                   absl::StrCat("--listen=", gdn_socket.listen)};
  if (options.transport == Transport::kTcp) argv.push_back(absl::StrCat("--listen=", gdn_address.listen));
  argv.insert(argv.end(), server_flags.begin(), server_flags.end());
  std::vector<std::string> echo_argv = {options.self, "echo_server", absl::StrCat("--port_file=", echo_port),
                                        absl::StrCat("--listen=", echo_address.listen)};
  if (!options.secure.empty()) {
    for (std::string& flag : SecureServerFlags(options.secure)) argv.push_back(std::move(flag));
    echo_argv.push_back(absl::StrCat("--secure=", options.secure));
  }
  GDN_ASSIGN_OR_RETURN(ChildProcess gdn, ChildProcess::Start(std::move(argv), folder + "/gdn.log"));
  GDN_ASSIGN_OR_RETURN(ChildProcess echo, ChildProcess::Start(std::move(echo_argv), folder + "/echo.log"));
  GDN_ASSIGN_OR_RETURN(const int gdn_at, gdn.WaitForPort(gdn_port, kStartTimeout));
  GDN_ASSIGN_OR_RETURN(const int raw_at, echo.WaitForPort(RawEchoOf(echo_port), kStartTimeout));
  GDN_ASSIGN_OR_RETURN(const int echo_at, echo.WaitForPort(echo_port, kStartTimeout));
  return ServerPair{.gdn = std::move(gdn),
                    .echo = std::move(echo),
                    .targets = {.gdn = gdn_address.target_of_port(gdn_at),
                                .gdn_socket = gdn_socket.target_of_port(0),
                                .echo = echo_address.target_of_port(echo_at),
                                .raw_echo = raw_address.target_of_port(raw_at)}};
}

absl::Status StartSeveral(const ServerPairOptions& options, const std::vector<std::string>& server_flags,
                          ServerPair& servers) {
  const std::string port = options.folder + "/several.port";
  const Address address = AddressOf(Transport::kUnix, options.folder + "/several.sock");
  std::vector<std::string> argv = {options.server, absl::StrCat("--port_file=", port),
                                   absl::StrCat("--listen=", address.listen)};
  argv.insert(argv.end(), server_flags.begin(), server_flags.end());
  GDN_ASSIGN_OR_RETURN(ChildProcess several, ChildProcess::Start(std::move(argv), options.folder + "/several.log"));
  GDN_RETURN_IF_ERROR(several.WaitForPort(port, kStartTimeout).status());
  servers.several.emplace(std::move(several));
  servers.targets.several = address.target_of_port(0);
  return absl::OkStatus();
}

absl::Status StartQueueEchoes(const ServerPairOptions& options, ServerPair& servers) {
  for (const auto& [name, threads, target] :
       {std::tuple("queue", 1, &servers.targets.queue_echo),
        std::tuple("queues", AvailableProcessors(), &servers.targets.queues_echo)}) {
    const std::string path = absl::StrCat(options.folder, "/", name);
    const Address address = AddressOf(options.transport, path + ".sock");
    GDN_ASSIGN_OR_RETURN(
        ChildProcess echo,
        ChildProcess::Start({options.self, "echo_server", absl::StrCat("--port_file=", path, ".port"),
                             absl::StrCat("--listen=", address.listen), absl::StrCat("--queue_threads=", threads)},
                            path + ".log"));
    GDN_ASSIGN_OR_RETURN(const int port, echo.WaitForPort(path + ".port", kStartTimeout));
    servers.queue_echoes.push_back(std::move(echo));
    *target = address.target_of_port(port);
  }
  return absl::OkStatus();
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

v1::Tensor RandomTensor(const std::vector<int64_t>& shape, float low, float high, DType dtype) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  std::mt19937 random(kTensorSeed);
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
