#include "state_store/tiers/redis/redis_connection.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kReceiveBytes = 256 * 1024;
// Bytes. Shorter arguments are copied into the command, because an iovec for each would cost more.
constexpr size_t kCopiedArgument = 4096;
// Most idle connections. Further ones are closed after use.
constexpr size_t kMaxIdle = 8;

std::string_view View(const redisReply& reply) { return {reply.str == nullptr ? "" : reply.str, reply.len}; }

}  // namespace

void RedisReplyDeleter::operator()(redisReply* reply) const { freeReplyObject(reply); }

std::string_view ReplyText(const redisReply& reply) {
  return reply.type == REDIS_REPLY_STRING ? std::string_view(reply.str, reply.len) : std::string_view();
}

std::string_view ReplyText(const redisReply& reply, size_t index) {
  if (reply.type != REDIS_REPLY_ARRAY || index >= reply.elements) return {};
  return ReplyText(*reply.element[index]);
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Connect(const RedisEndpoint& endpoint,
                                                                          absl::Duration connect_timeout,
                                                                          absl::Duration command_timeout) {
  const timeval wait = absl::ToTimeval(connect_timeout);
  redisContext* context = endpoint.unix_path.empty()
                              ? redisConnectWithTimeout(endpoint.host.c_str(), endpoint.port, wait)
                              : redisConnectUnixWithTimeout(endpoint.unix_path.c_str(), wait);
  if (context == nullptr) return RedisUnavailable(endpoint, "no memory to connect");
  std::unique_ptr<RedisConnection> connection(new RedisConnection(context, endpoint, command_timeout));
  if (context->err != 0) return connection->Fail(StrCat("cannot connect: ", context->errstr));
  if (redisSetTimeout(context, absl::ToTimeval(command_timeout)) != REDIS_OK) {
    return connection->Fail(StrCat("cannot set a time limit: ", context->errstr));
  }
  if (endpoint.unix_path.empty()) redisEnableKeepAlive(context);

  GDN_ASSIGN_OR_RETURN(const std::string password, ReadRedisPassword(endpoint));
  if (!password.empty()) {
    std::vector<std::string_view> auth = {"AUTH"};
    if (!endpoint.user.empty()) auth.emplace_back(endpoint.user);
    auth.emplace_back(password);
    GDN_RETURN_IF_ERROR(connection->Call(auth).status());
  }
  if (endpoint.db != 0) GDN_RETURN_IF_ERROR(connection->Call({"SELECT", std::to_string(endpoint.db)}).status());
  GDN_RETURN_IF_ERROR(connection->Call({"PING"}).status());
  return connection;
}

RedisConnection::RedisConnection(redisContext* context, const RedisEndpoint& endpoint, absl::Duration command_timeout)
    : context_(context), endpoint_(endpoint), command_timeout_(command_timeout) {}

RedisConnection::~RedisConnection() { redisFree(context_); }

absl::Status RedisConnection::Fail(std::string_view what) {
  failed_ = true;
  return RedisUnavailable(endpoint_, what);
}

void RedisConnection::Append(const std::vector<std::string_view>& arguments,
                             const std::vector<std::string_view>& value) {
  // RESP: *COUNT, then $LENGTH and the bytes of each argument, all ended by CRLF.
  std::string text = StrCat("*", arguments.size() + (value.empty() ? 0 : 1), "\r\n");
  const auto queue_text = [this, &text] {
    owned_.push_back(std::exchange(text, std::string()));
    queued_.push_back({owned_.back().data(), owned_.back().size()});
  };
  const auto queue = [&](std::string_view bytes) {
    if (bytes.size() < kCopiedArgument) {
      text.append(bytes);
      return;
    }
    queue_text();
    queued_.push_back({const_cast<char*>(bytes.data()), bytes.size()});  // the bytes are only read
  };
  for (std::string_view argument : arguments) {
    StrAppend(&text, "$", argument.size(), "\r\n");
    queue(argument);
    text.append("\r\n");
  }
  if (!value.empty()) {
    size_t size = 0;
    for (std::string_view piece : value) size += piece.size();
    StrAppend(&text, "$", size, "\r\n");
    for (std::string_view piece : value) queue(piece);
    text.append("\r\n");
  }
  queue_text();
  ++pending_;
}

absl::Status RedisConnection::Flush() {
  size_t next = 0;
  while (!failed_ && next < queued_.size()) {
    msghdr message{};
    message.msg_iov = &queued_[next];
    message.msg_iovlen = std::min<size_t>(queued_.size() - next, IOV_MAX);
    const ssize_t sent = sendmsg(context_->fd, &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return Fail(StrCat("took nothing for ", absl::FormatDuration(command_timeout_)));
      }
      return Fail(StrCat("the connection broke while sending: ", std::strerror(errno)));
    }
    auto left = static_cast<size_t>(sent);
    while (next < queued_.size() && left >= queued_[next].iov_len) left -= queued_[next++].iov_len;
    if (left > 0) {
      queued_[next].iov_base = static_cast<char*>(queued_[next].iov_base) + left;
      queued_[next].iov_len -= left;
    }
  }
  queued_.clear();
  owned_.clear();
  return failed_ ? Fail("the connection is broken") : absl::OkStatus();
}

absl::StatusOr<RedisReply> RedisConnection::Receive() {
  if (failed_) return Fail("the connection is broken");
  while (true) {
    void* reply = nullptr;
    if (redisGetReplyFromReader(context_, &reply) != REDIS_OK) {
      return Fail(StrCat("an answer that is not Redis': ", context_->errstr));
    }
    if (reply != nullptr) {
      --pending_;
      return RedisReply(static_cast<redisReply*>(reply));
    }
    buffer_.resize(kReceiveBytes);
    const ssize_t got = recv(context_->fd, buffer_.data(), buffer_.size(), 0);
    if (got == 0) return Fail("the server closed the connection");
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return Fail(StrCat("no answer for ", absl::FormatDuration(command_timeout_)));
      }
      return Fail(StrCat("the connection broke while receiving: ", std::strerror(errno)));
    }
    if (redisReaderFeed(context_->reader, buffer_.data(), static_cast<size_t>(got)) != REDIS_OK) {
      return Fail(StrCat("an answer that is not Redis': ", context_->reader->errstr));
    }
  }
}

absl::Status RedisConnection::CheckReply(const redisReply& reply) {
  if (reply.type != REDIS_REPLY_ERROR) return absl::OkStatus();
  const std::string_view text = View(reply);
  if (text.starts_with("OOM")) {
    return RedisError(endpoint_, absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                      StrCat("its memory is full: raise its maxmemory, or delete sessions (", text, ")"));
  }
  if (constexpr std::string_view kFenced = "FENCED "; text.starts_with(kFenced)) {
    return WithMetadata(RedisError(endpoint_, absl::StatusCode::kFailedPrecondition, reason::kStatesTakenOver,
                                   "another server has the prefix"),
                        "owner", text.substr(kFenced.size()));
  }
  // Also if a command inside a script fails with this.
  if (text.find("READONLY") != std::string_view::npos || text.starts_with("MASTERDOWN")) {
    return Fail("it is a replica, and no master any more");
  }
  std::string_view advice;
  if (text.starts_with("NOAUTH")) advice = "it wants a password (--redis-password-file): ";
  if (text.starts_with("WRONGPASS") || text.starts_with("ERR AUTH") || text.starts_with("ERR invalid password")) {
    advice = "it refused the password of --redis-password-file: ";
  }
  return RedisUnavailable(endpoint_, StrCat(advice, text));
}

absl::StatusOr<RedisReply> RedisConnection::Call(const std::vector<std::string_view>& arguments) {
  Append(arguments);
  GDN_RETURN_IF_ERROR(Flush());
  GDN_ASSIGN_OR_RETURN(RedisReply reply, Receive());
  GDN_RETURN_IF_ERROR(CheckReply(*reply));
  return reply;
}

absl::Status RedisConnection::Drain() {
  absl::Status error;
  while (pending_ > 0) {
    GDN_ASSIGN_OR_RETURN(const RedisReply reply, Receive());
    error.Update(CheckReply(*reply));
  }
  return error;
}

absl::Status RedisConnection::WaitForReplicas(int replicas, absl::Duration timeout) {
  if (replicas == 0) return absl::OkStatus();
  const std::string wanted = std::to_string(replicas);
  GDN_ASSIGN_OR_RETURN(const RedisReply reply,
                       Call({"WAIT", wanted, std::to_string(absl::ToInt64Milliseconds(timeout))}));
  if (reply->type == REDIS_REPLY_INTEGER && reply->integer >= replicas) return absl::OkStatus();
  return RedisUnavailable(
      endpoint_, StrCat("what was written is with ", reply->integer, " replicas after ", absl::FormatDuration(timeout),
                        ", and --redis-wait-replicas wants ", wanted));
}

bool RedisConnection::Reusable() const {
  if (failed_ || pending_ > 0) return false;
  // There must be nothing to read. A byte, or the end of the stream, would mean that the server has hung up.
  pollfd state{.fd = context_->fd, .events = POLLIN, .revents = 0};
  return poll(&state, 1, 0) == 0;
}

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

// Connects as RedisConnection::Connect does. If the endpoint has Sentinels, connects to the server that the first
// usable answer names, and checks that this server calls itself a master. UNAVAILABLE (TIER_UNAVAILABLE) if no Sentinel
// answers and knows the name, or during a failover.
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

}  // namespace

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisPool::Take() {
  while (true) {
    std::unique_ptr<RedisConnection> connection;
    {
      absl::MutexLock lock(&mu_);
      if (idle_.empty()) break;
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    if (connection->Reusable()) return connection;
  }
  return ConnectToMaster(endpoint_, connect_timeout_, command_timeout_);
}

void RedisPool::Return(std::unique_ptr<RedisConnection> connection) {
  if (!connection->Reusable()) {
    if (!connection->failed()) return;
    // The idle connections are as old and to the same server. Each would take its time to fail, so all are closed.
    std::vector<std::unique_ptr<RedisConnection>> suspects;
    absl::MutexLock lock(&mu_);
    suspects.swap(idle_);
    return;
  }
  absl::MutexLock lock(&mu_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(connection));
}

}  // namespace gdn
