#include "state_store/tiers/redis_sentinel.h"

#include <hiredis/hiredis.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// Returns the master's address, as one Sentinel knows it.
absl::StatusOr<RedisAddress> AskSentinel(const RedisEndpoint& endpoint, const RedisAddress& sentinel,
                                         absl::Duration connect_timeout, absl::Duration command_timeout) {
  RedisEndpoint address;
  address.host = sentinel.host;
  address.port = sentinel.port;
  GDN_ASSIGN_OR_RETURN(const auto connection, RedisConnection::Connect(address, connect_timeout, command_timeout));
  GDN_ASSIGN_OR_RETURN(const RedisReply reply,
                       connection->Call({"SENTINEL", "get-master-addr-by-name", endpoint.master_name}));
  if (reply->type == REDIS_REPLY_NIL) {
    return RedisUnavailable(endpoint, StrCat("the Sentinel at ", address.ToString(), " knows no master of this name"));
  }
  const std::string_view host = ReplyText(*reply, 0);
  const int port = std::atoi(std::string(ReplyText(*reply, 1)).c_str());
  if (host.empty() || port < 1 || port > 65535) {
    return RedisUnavailable(endpoint, StrCat("the answer of ", address.ToString(), " is no Sentinel's"));
  }
  return RedisAddress{.host = std::string(host), .port = port};
}

absl::StatusOr<RedisAddress> FindMaster(const RedisEndpoint& endpoint, absl::Duration connect_timeout,
                                        absl::Duration command_timeout) {
  std::string failures;
  for (const RedisAddress& sentinel : endpoint.sentinels) {
    absl::StatusOr<RedisAddress> master = AskSentinel(endpoint, sentinel, connect_timeout, command_timeout);
    if (master.ok()) return master;
    StrAppend(&failures, failures.empty() ? "" : "; ", master.status().message());
  }
  return RedisUnavailable(endpoint, StrCat("no Sentinel says where the master is: ", failures));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisConnection>> ConnectToMaster(const RedisEndpoint& endpoint,
                                                                 absl::Duration connect_timeout,
                                                                 absl::Duration command_timeout) {
  if (endpoint.sentinels.empty()) return RedisConnection::Connect(endpoint, connect_timeout, command_timeout);
  GDN_ASSIGN_OR_RETURN(const RedisAddress master, FindMaster(endpoint, connect_timeout, command_timeout));
  RedisEndpoint server = endpoint;
  server.sentinels.clear();
  server.host = master.host;
  server.port = master.port;
  GDN_ASSIGN_OR_RETURN(auto connection, RedisConnection::Connect(server, connect_timeout, command_timeout));
  // The Sentinel may not know of a failover yet. A replica refuses writes and has old states.
  GDN_ASSIGN_OR_RETURN(const RedisReply role, connection->Call({"ROLE"}));
  if (ReplyText(*role, 0) == "master") return connection;
  return RedisUnavailable(endpoint, StrCat(server.ToString(),
                                           ", which the Sentinels name, is no master: a failover is "
                                           "under way"));
}

}  // namespace gdn
