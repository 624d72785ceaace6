// Clients' leases in a Redis prefix that several servers share. A client shows a sign of life to one server, and all
// servers see it here.
//
//   PREFIXleases        sorted set: PRINCIPAL/ID -> when the lease ends, in milliseconds of Redis' clock
//   PREFIXlease-graces  hash: PRINCIPAL/ID -> the grace in milliseconds, or "ended" if the client has ended the lease
//   PREFIXlease-scan    exists while a server looks for sessions that nobody has (TakeScan)
// An entry outlives the end of its lease, so that a server that comes later learns of it; Forget removes it. Redis may
// be set back, or a failover may lose a renewal. So a sign of life that a server knows of counts, unless the client has
// ended the lease.
// Thread safety: safe from any thread. Ownership: the pool must outlive it.
//
//   GDN_ASSIGN_OR_RETURN(const auto opened, leases.Open({"alice", "engine"}, absl::Seconds(60)));
//   GDN_ASSIGN_OR_RETURN(const auto found, leases.Renew({"alice", "engine"}, /*grace=*/std::nullopt));
//   if (!found.has_value()) ...it has ended...
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "state_store/tiers/redis/redis_connection.h"

namespace gdn {

class RedisClientLeases {
 public:
  struct Name {
    std::string principal;
    std::string id;
    friend auto operator<=>(const Name&, const Name&) = default;
  };
  struct Found {
    absl::Duration grace;
    absl::Duration left;  // left of the grace; not above 0: the lease has ended
  };
  struct Known {
    Name name;
    absl::Duration grace;
    absl::Duration left;  // left of the grace, as this server knows it
  };

  RedisClientLeases(std::string prefix, RedisPool& pool) : prefix_(std::move(prefix)), pool_(pool) {}

  // Errors of all methods: those of the connection.
  // Opens a lease that ends `grace` from now. If it is there already, notes a sign of life of it. If it is there with
  // another grace, changes nothing; Found::grace then differs from `grace`.
  absl::StatusOr<Found> Open(const Name& name, absl::Duration grace);
  // Notes a sign of life: the lease ends its grace from now. nullopt if it has ended. `grace`: the lease's, if this
  // server knows that it lives. Redis then makes the lease again if it has lost the entry or takes the grace for over,
  // unless the client has ended the lease.
  absl::StatusOr<std::optional<Found>> Renew(const Name& name, std::optional<absl::Duration> grace);
  // Returns the lease; nullopt if it has ended.
  absl::StatusOr<std::optional<Found>> Find(const Name& name);
  // Ends the lease; does nothing if it has ended.
  absl::Status End(const Name& name);
  // Returns how much is left of each lease's grace, parallel to `known`; not above 0: it has ended. If Redis has no
  // entry or an older one, it gets what this server knows.
  absl::StatusOr<std::vector<absl::Duration>> Look(const std::vector<Known>& known);

  // Returns at most 256 leases that ended at least `ago` ago, with the time since, the earliest end first.
  absl::StatusOr<std::vector<std::pair<Name, absl::Duration>>> Ended(absl::Duration ago);
  // Takes the scan for `interval`. False if a server, maybe this one, has taken it less than its interval ago.
  absl::StatusOr<bool> TakeScan(absl::Duration interval);
  // Removes the entry of a lease, if it has ended; does nothing otherwise.
  absl::Status Forget(const Name& name);

 private:
  // Runs the script of redis_client_leases.cc. `arguments`: after its mode.
  absl::StatusOr<RedisReply> Run(std::string_view mode, const std::vector<std::string>& arguments);
  absl::StatusOr<std::optional<Found>> One(std::string_view mode, const Name& name,
                                           std::optional<absl::Duration> grace);

  const std::string prefix_;
  RedisPool& pool_;
};

}  // namespace gdn
