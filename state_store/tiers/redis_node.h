// This server among those that share a Redis prefix: a lease that says that it lives, and a mailbox in which others ask
// it for sessions.
//
//   PREFIXnode:SERVER   hash that expires: "name", "renewals". While it is there, nobody takes what the server has.
//   PREFIXasked:SERVER  list: PRINCIPAL/ID of sessions that others have been called for
// A server counts its lease from before it asked for it, and gives up a part of it (Fleet), so that it has stopped
// before Redis lets others in; that needs clocks that run equally fast, not ones that agree.
// Thread safety: safe from any thread, a connection each. Ownership: values.
//
//   GDN_ASSIGN_OR_RETURN(const bool was_there, node.Renew(redis, absl::Seconds(15)));
//   GDN_ASSIGN_OR_RETURN(std::optional<StateKey> asked, node.NextAsked(redis, absl::Seconds(1)));
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "state_store/tiers/redis_connection.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

std::string RedisLeaseKey(std::string_view prefix, std::string_view server);

class RedisNode {
 public:
  // `server`: its id. `name`: what it is called in messages.
  RedisNode(std::string prefix, std::string server, std::string name)
      : prefix_(std::move(prefix)), server_(std::move(server)), name_(std::move(name)) {}

  const std::string& server() const { return server_; }
  const std::string& name() const { return name_; }

  // The lease lasts for `ttl` from now on. True where the store still had it. Errors of the connection.
  absl::StatusOr<bool> Renew(RedisConnection& redis, absl::Duration ttl);
  // Others may take what it has, at once.
  absl::Status End(RedisConnection& redis);
  // How often the store was found to have forgotten renewals of a lease that it still has.
  int64_t set_backs() const { return set_backs_; }

  // Tells the server `holder` that this one was called for the session.
  absl::Status Ask(RedisConnection& redis, std::string_view holder, const StateKey& session) const;
  // The next session that this server is asked for; nothing where none is within `timeout`, 1s or more.
  absl::StatusOr<std::optional<StateKey>> NextAsked(RedisConnection& redis, absl::Duration timeout) const;

 private:
  std::string MailboxOf(std::string_view server) const;

  const std::string prefix_;
  const std::string server_;
  const std::string name_;
  std::atomic<int64_t> renewals_{0};
  std::atomic<int64_t> set_backs_{0};
};

}  // namespace gdn
