#include "tools/gdn_bench/server_pair.h"

#include <utility>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace gdn::bench {

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

}  // namespace gdn::bench
