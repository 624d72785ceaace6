// A server's entry among the servers that share a Redis prefix: a lease that shows that it is alive, and a mailbox in
// which other servers ask it for sessions.
//
//   PREFIXnode:SERVER   hash that expires: "name", "renewals". While it exists, nobody takes the server's sessions.
//   PREFIXasked:SERVER  list: PRINCIPAL/ID of sessions that clients have asked other servers for
// A server counts its lease from before the renewal, and stops relying on it a little early (Fleet). So it stops before
// Redis lets others take its sessions. Clocks must run at the same rate but need not agree.
// Thread safety: safe from any thread, each with its own connection. Ownership: values.
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
  // `server`: this server's id. `name`: its name in messages.
  RedisNode(std::string prefix, std::string server, std::string name)
      : prefix_(std::move(prefix)), server_(std::move(server)), name_(std::move(name)) {}

  const std::string& server() const { return server_; }
  const std::string& name() const { return name_; }

  // Renews the lease for `ttl` from now on. True if it had not expired. Errors of the connection.
  absl::StatusOr<bool> Renew(RedisConnection& redis, absl::Duration ttl);
  // Ends the lease: other servers may take this server's sessions at once.
  absl::Status End(RedisConnection& redis);
  // Number of times that the store had the lease, but with fewer renewals than were made: it had been set back.
  int64_t set_backs() const { return set_backs_; }

  // Asks the server `holder` for the session, through its mailbox.
  absl::Status Ask(RedisConnection& redis, std::string_view holder, const StateKey& session) const;
  // Waits for the next session that this server is asked for; nullopt after `timeout`, which is 1 s or more.
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
