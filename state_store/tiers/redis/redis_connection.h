// A connection to a Redis server that pipelines commands and sends large values without copying them.
//
// hiredis connects and parses replies. This class sends, without SIGPIPE and without copies of values.
// Thread safety: a connection is for one thread at a time; a RedisPool is safe from any thread. Ownership: the pieces
// of a `value` that is passed to Append must live until Flush returns.
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
#include "state_store/tiers/redis/redis_endpoint.h"

struct redisContext;
struct redisReply;

namespace gdn {

struct RedisReplyDeleter {
  void operator()(redisReply* reply) const;
};
using RedisReply = std::unique_ptr<redisReply, RedisReplyDeleter>;

// Return the text of a reply, or of an element of an array reply; "" if that is not a string. Valid as long as the
// reply.
std::string_view ReplyText(const redisReply& reply);
std::string_view ReplyText(const redisReply& reply, size_t index);

class RedisConnection {
 public:
  // Connects, authenticates and selects the endpoint's database; not for an endpoint with Sentinels (RedisPool).
  // UNAVAILABLE (TIER_UNAVAILABLE). A command fails if it makes no progress for `command_timeout`.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Connect(const RedisEndpoint& endpoint,
                                                                  absl::Duration connect_timeout,
                                                                  absl::Duration command_timeout);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Queues a command with these arguments. If `value` is not empty, its pieces end to end are one further argument.
  // Arguments and pieces of 4 KiB or more are not copied: they must live until Flush returns.
  void Append(const std::vector<std::string_view>& arguments, const std::vector<std::string_view>& value = {});
  // Sends the queued commands, and blocks until that is done. UNAVAILABLE (TIER_UNAVAILABLE) if the connection is
  // broken or makes no progress.
  absl::Status Flush();
  // Waits for the next reply, in the order of the commands, which may be an error reply (see CheckReply). UNAVAILABLE
  // (TIER_UNAVAILABLE) if the connection is broken or makes no progress.
  absl::StatusOr<RedisReply> Receive();
  // Converts an error reply to a status: RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if the server's memory is full,
  // FAILED_PRECONDITION (STATES_TAKEN_OVER: owner) if a fenced script was refused (redis_fence.h), else UNAVAILABLE
  // (TIER_UNAVAILABLE). If the server is not a master any more, the connection counts as broken afterwards.
  absl::Status CheckReply(const redisReply& reply);

  // Sends one command and returns its reply: Append, Flush, Receive and CheckReply, with their errors.
  absl::StatusOr<RedisReply> Call(const std::vector<std::string_view>& arguments);
  // Receives and drops all outstanding replies. Returns the first error among them.
  absl::Status Drain();
  // Waits until so many replicas have all writes of this connection. UNAVAILABLE (TIER_UNAVAILABLE) if fewer confirm
  // within `timeout`; the writes remain on the master. Does nothing for 0 replicas.
  absl::Status WaitForReplicas(int replicas, absl::Duration timeout);

  // True if another command may be sent: nothing has failed, no reply is outstanding, and the server has not hung up.
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
  std::deque<std::string> owned_;  // copies of arguments and protocol bytes that queued_ points to
  std::vector<iovec> queued_;
  std::vector<char> buffer_;
  int64_t pending_ = 0;  // number of outstanding replies
  bool failed_ = false;
};

// A pool of idle connections. If the endpoint has Sentinels, the connections go to the master that the Sentinels name.
class RedisPool {
 public:
  RedisPool(RedisEndpoint endpoint, absl::Duration connect_timeout, absl::Duration command_timeout)
      : endpoint_(std::move(endpoint)), connect_timeout_(connect_timeout), command_timeout_(command_timeout) {}

  // Calls use(connection) on this thread and returns its result, a Status or StatusOr. A broken connection is not kept.
  // UNAVAILABLE (TIER_UNAVAILABLE) if no connection can be made, or no Sentinel names a master.
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
