// One connection to a Redis server: commands are pipelined, large values are sent from where they lie.
//
// hiredis connects and parses; sending is done here, without SIGPIPE and without copying values.
// Thread safety: a connection is for one thread at a time; a RedisPool is safe from any thread. Ownership: what Append
// is given must live until Flush returns.
//
//   GDN_ASSIGN_OR_RETURN(auto connection, RedisConnection::Connect(endpoint, absl::Seconds(1), absl::Seconds(5)));
//   GDN_ASSIGN_OR_RETURN(RedisReply reply, connection->Call({"HGET", key, field}));
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "state_store/tiers/redis_endpoint.h"

struct redisContext;
struct redisReply;

namespace gdn {

struct RedisReplyDeleter {
  void operator()(redisReply* reply) const;
};
using RedisReply = std::unique_ptr<redisReply, RedisReplyDeleter>;

// A string that Redis sent, or one of an array of its answers; "" for what is none. Lives as long as the reply.
std::string_view ReplyText(const redisReply& reply);
std::string_view ReplyText(const redisReply& reply, size_t index);

class RedisConnection {
 public:
  // Connected, authenticated and at the endpoint's database, or UNAVAILABLE (TIER_UNAVAILABLE). A command may be
  // without progress for `command_timeout`.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Connect(const RedisEndpoint& endpoint,
                                                                  absl::Duration connect_timeout,
                                                                  absl::Duration command_timeout);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // A command: `arguments`, and where `value` has pieces one more, which is these end to end.
  void Append(const std::vector<std::string_view>& arguments, const std::vector<std::string_view>& value = {});
  absl::Status Flush();
  // The next reply, which may be one of Redis' errors: CheckReply tells. UNAVAILABLE where the connection is of no use
  // any more.
  absl::StatusOr<RedisReply> Receive();
  // OK, or what an error reply means: RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where the server's memory is full,
  // FAILED_PRECONDITION (STATES_TAKEN_OVER: owner) of a script that another server fences off (redis_claim.h),
  // UNAVAILABLE (TIER_UNAVAILABLE) elsewhere. A server that is no master any more is of no use after that.
  absl::Status CheckReply(const redisReply& reply);

  // Append, Flush, Receive, CheckReply.
  absl::StatusOr<RedisReply> Call(const std::vector<std::string_view>& arguments);
  // Receives and drops all replies that are under way; the first error of theirs.
  absl::Status Drain();
  // Waits until so many replicas have what was written by this connection, which is written in any case. UNAVAILABLE
  // (TIER_UNAVAILABLE) where fewer said so within `timeout`. Nothing to do for 0.
  absl::Status WaitForReplicas(int replicas, absl::Duration timeout);

  // Whether a further command may be sent: nothing failed, no reply is missing, the server has not hung up.
  bool Reusable() const;
  bool failed() const { return failed_; }
  int64_t pending() const { return pending_; }
  const RedisEndpoint& endpoint() const { return endpoint_; }

 private:
  RedisConnection(redisContext* context, const RedisEndpoint& endpoint, absl::Duration command_timeout);
  absl::Status Fail(std::string_view what);

  redisContext* const context_;
  const RedisEndpoint endpoint_;
  const absl::Duration command_timeout_;
  std::deque<std::string> owned_;  // what queued_ points to of the commands' own bytes
  std::vector<iovec> queued_;
  std::vector<char> buffer_;
  int64_t pending_ = 0;  // replies
  bool failed_ = false;
};

// Connections that wait for their next use; of an endpoint with Sentinels, to the master that they name.
class RedisPool {
 public:
  RedisPool(RedisEndpoint endpoint, absl::Duration connect_timeout, absl::Duration command_timeout)
      : endpoint_(std::move(endpoint)), connect_timeout_(connect_timeout), command_timeout_(command_timeout) {}

  // What `use` answers of a connection, or UNAVAILABLE where there is none.
  template <typename Use>
  auto Run(Use use) -> decltype(use(std::declval<RedisConnection&>())) {
    GDN_ASSIGN_OR_RETURN(std::unique_ptr<RedisConnection> connection, Take());
    auto result = use(*connection);
    Return(std::move(connection));
    return result;
  }
  const RedisEndpoint& endpoint() const { return endpoint_; }

 private:
  absl::StatusOr<std::unique_ptr<RedisConnection>> Take();
  void Return(std::unique_ptr<RedisConnection> connection);

  const RedisEndpoint endpoint_;
  const absl::Duration connect_timeout_;
  const absl::Duration command_timeout_;
  absl::Mutex mu_;
  std::vector<std::unique_ptr<RedisConnection>> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
