// Setup of measurements over RPC: starts gdn_server and an echo server for comparison as child processes, on the
// loopback interface or on Unix sockets. Makes connections to them, tensors to send, and operator sessions with states.
//
// Thread safety: one thread; start the servers before any gRPC channel is made. Ownership: the servers end with the
// ServerPair; clients belong to the caller.
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
#include "base/dtype.h"
#include "base/layer_dims.h"
#include "client/cpp/client.h"
#include "tools/common/child_process.h"
#include "tools/gdn_bench/serve/wake_echo.h"

namespace gdn::bench {

enum class Transport { kTcp, kUnix };

// gRPC names of the servers.
struct Targets {
  std::string gdn;
  std::string gdn_socket;                         // the same server's Unix socket
  std::string echo;                               // echo server, which parses and returns messages
  std::string raw_echo;                           // echo server, which returns bytes unparsed
  std::string queue_echo = {}, queues_echo = {};  // the same on completion queues, by one thread and by one for each
                                                  // processor; "": there are none
  std::string gdn_secure = {}, echo_secure = {};  // servers with TLS; "": there are none
  const WakeEcho* wake_echo = nullptr;            // two processes that wake each other; null: there are none
  std::string folder = {};                        // for logs of processes that start later
  std::string several = {};  // the Unix socket of a gdn_server on several devices; "": there is none
};

struct ServerPair {
  ChildProcess gdn;
  ChildProcess echo;
  std::optional<ChildProcess> several = std::nullopt;
  std::vector<ChildProcess> queue_echoes = {};
  Targets targets;
};

struct ServerPairOptions {
  std::string server;  // path of gdn_server
  std::string self;    // path of this program, which is also the echo server
  std::string folder;  // for ports, sockets and logs
  Transport transport = Transport::kTcp;
  std::string secure = {};  // the folder of credentials.h; "": no TLS
};

// Starts gdn_server with `server_flags` and the echo server, and returns when both accept calls. Errors of
// ChildProcess; UNAVAILABLE after 120 s.
absl::StatusOr<ServerPair> StartServers(const ServerPairOptions& options, const std::vector<std::string>& server_flags);
// Starts another gdn_server, whose flags name several devices, on a Unix socket, and adds it and its target to
// `servers`. Errors of ChildProcess; UNAVAILABLE after 120 s.
absl::Status StartSeveral(const ServerPairOptions& options, const std::vector<std::string>& server_flags,
                          ServerPair& servers);

// Starts the two echo servers on completion queues and adds them and their targets to `servers`. Errors of
// ChildProcess; UNAVAILABLE after 120 s.
absl::Status StartQueueEchoes(const ServerPairOptions& options, ServerPair& servers);

// Make a channel, or a client, with its own connection, so that workers do not queue behind each other's messages. The
// client's calls have 10 s.
std::shared_ptr<grpc::Channel> ChannelAlone(const std::string& target);
std::unique_ptr<Client> ConnectAlone(const std::string& target);

// Makes a tensor of random numbers in [low, high), the same on every run.
v1::Tensor RandomTensor(const std::vector<int64_t>& shape, float low, float high, DType dtype = DType::kF32);

// Returns the spec of an operator session with BenchOperatorDims() and this number of layers.
v1::OperatorSpec BenchOperatorSpec(int layers);

// Makes a Decode request of one token for one layer of "sessions/ID", with random delta rule inputs of
// BenchOperatorDims().
v1::DecodeRequest StepOf(const std::string& id, int layer);

// Makes an operator session "sessions/ID" in which every layer has a base, and a log of a few tokens. Errors of the
// calls.
absl::Status MakeBusySession(Client& client, const std::string& id, int layers);

// OK if low <= value <= high, else INVALID_ARGUMENT. `flag`: its name without dashes.
template <typename T>
absl::Status CheckRange(const char* flag, T value, std::type_identity_t<T> low, std::type_identity_t<T> high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be ", low, " to ", high, ", not ", value));
}

}  // namespace gdn::bench
