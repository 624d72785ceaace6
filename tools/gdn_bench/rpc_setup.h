// What is measured over RPC: gdn_server and the echo server that it is measured against, as children of this process on
// the loopback interface or on Unix sockets; connections to them; tensors to send; and operator sessions with states
// worth moving.
//
// Thread safety: one thread, servers before any gRPC channel is made. Ownership: the servers end with the pair; clients
// are the caller's.
//
//   GDN_ASSIGN_OR_RETURN(const ServerPair servers,
//                        StartServers({.server = path, .self = self, .folder = folder}, {"--backend=null"}));
//   const auto client = ConnectAlone(servers.targets.gdn);
//   GDN_RETURN_IF_ERROR(MakeBusySession(*client, "a", /*layers=*/36));
//   v1::DecodeRequest step = StepOf("a", /*layer=*/0);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/child_process.h"
#include "base/dtype.h"
#include "base/layer_dims.h"
#include "client/cpp/client.h"

namespace gdn::bench {

enum class Transport { kTcp, kUnix };

// gRPC names.
struct Targets {
  std::string gdn;
  std::string gdn_socket;                         // the same server's Unix socket
  std::string echo;                               // of messages
  std::string raw_echo;                           // of bytes
  std::string gdn_secure = {}, echo_secure = {};  // with TLS; "": there are none
  std::string several = {};  // the Unix socket of a gdn_server on several devices; "": there is none
};

struct ServerPair {
  ChildProcess gdn;
  ChildProcess echo;
  std::optional<ChildProcess> several = std::nullopt;
  Targets targets;
};

struct ServerPairOptions {
  std::string server;  // path of gdn_server
  std::string self;    // path of this program, which is the other one
  std::string folder;  // for ports, sockets and logs
  Transport transport = Transport::kTcp;
  std::string secure = {};  // the folder of credentials.h; "": no TLS
};

// Returns once both take calls. Errors of ChildProcess.
absl::StatusOr<ServerPair> StartServers(const ServerPairOptions& options, const std::vector<std::string>& server_flags);
// Another gdn_server, on several devices. The same errors.
absl::Status StartSeveral(const ServerPairOptions& options, const std::vector<std::string>& server_flags,
                          ServerPair& servers);

// A connection shared with no other, so that workers do not queue behind each other's messages, and a client with one.
std::shared_ptr<grpc::Channel> ChannelAlone(const std::string& target);
std::unique_ptr<Client> ConnectAlone(const std::string& target);

// Numbers in [low, high), the same ones on every run.
v1::Tensor RandomTensor(const std::vector<int64_t>& shape, float low, float high, DType dtype = DType::kF32);

v1::OperatorSpec BenchOperatorSpec(int layers);

// One token for one layer.
v1::DecodeRequest StepOf(const std::string& id, int layer);

// Every layer has a base, and a log of a few tokens.
absl::Status MakeBusySession(Client& client, const std::string& id, int layers);

// INVALID_ARGUMENT where the value of a flag is not in low .. high.
template <typename T>
absl::Status CheckRange(const char* flag, T value, std::type_identity_t<T> low, std::type_identity_t<T> high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be ", low, " to ", high, ", not ", value));
}

}  // namespace gdn::bench
