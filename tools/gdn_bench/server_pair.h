// gdn_server and the echo server that it is measured against, as children of this process on the loopback interface.
//
// Thread safety: one thread, before any gRPC channel is made. Ownership: the servers end with the pair.
//
//   GDN_ASSIGN_OR_RETURN(const ServerPair servers, StartServers(server, {"--backend=null"}, self, folder));
//   const auto client = ConnectAlone(servers.targets.gdn);
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/child_process.h"
#include "client/cpp/client.h"

namespace gdn::bench {

struct Targets {
  std::string gdn;
  std::string echo;
};

struct ServerPair {
  ChildProcess gdn;
  ChildProcess echo;
  Targets targets;
};

// `server` is the path of gdn_server, `self` of this program, which is the other one; `folder` is for ports and logs.
absl::StatusOr<ServerPair> StartServers(const std::string& server, const std::vector<std::string>& server_flags,
                                        const std::string& self, const std::string& folder);

// A connection shared with no other, so that workers do not queue behind each other's messages, and a client with one.
std::shared_ptr<grpc::Channel> ChannelAlone(const std::string& target);
std::unique_ptr<Client> ConnectAlone(const std::string& target);

// INVALID_ARGUMENT where the value of a flag is not in low .. high.
template <typename T>
absl::Status CheckRange(const char* flag, T value, std::type_identity_t<T> low, std::type_identity_t<T> high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be ", low, " to ", high, ", not ", value));
}

}  // namespace gdn::bench
