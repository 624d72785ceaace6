#include "tests/state_store/tiers/redis_server_fixture.h"

#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/time/time.h"
#include "base/error.h"
#include "base/status_macros.h"

namespace gdn {

namespace {

// The folder below redis-server's own in which redis-server 7 keeps the parts of an append-only file.
constexpr char kDataFolder[] = "/appendonlydir";

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "redis-server for a test: %s\n", what.c_str());
  std::abort();
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Die("no free port");
  }
  close(fd);
  return ntohs(address.sin_port);
}

std::string Text(const redisReply& reply) {
  switch (reply.type) {
    case REDIS_REPLY_INTEGER:
      return std::to_string(reply.integer);
    case REDIS_REPLY_NIL:
      return "(nil)";
    case REDIS_REPLY_ARRAY: {
      std::string text;
      for (size_t i = 0; i < reply.elements; ++i) text += Text(*reply.element[i]) + "\n";
      return text;
    }
    default:
      return {reply.str, reply.len};
  }
}

}  // namespace

bool RedisServer::Installed() {
  for (const char* path : {"/usr/bin/redis-server", "/usr/local/bin/redis-server"}) {
    if (access(path, X_OK) == 0) return true;
  }
  return false;
}

RedisServer::RedisServer(RedisServerOptions options)
    : options_([&options] {
        options.tcp |= options.sentinel_of != 0;
        return std::move(options);
      }()),
      port_(options_.tcp ? FreePort() : 0) {}

// One alone decides, after 300 ms: a test's patience is short.
std::vector<std::string> RedisServer::SentinelArguments() const {
  const std::string file = folder_.path() + "/sentinel.conf";
  std::ofstream config(file);
  config << "port " << port_ << "\nbind 127.0.0.1\ndir " << folder_.path() << "\n"
         << "sentinel monitor " << kMasterName << " 127.0.0.1 " << options_.sentinel_of << " 1\n"
         << "sentinel down-after-milliseconds " << kMasterName << " 300\n"
         << "sentinel failover-timeout " << kMasterName << " 3000\n";
  return {"redis-server", file, "--sentinel"};
}

RedisServer::~RedisServer() { Kill(); }

void RedisServer::Start() {
  for (int tries = has_run_ || !options_.tcp ? 1 : 5;; port_ = FreePort()) {
    process_.reset();
    const absl::Status up = Launch(options_.sentinel_of != 0 ? SentinelArguments() : ServerArguments());
    if (up.ok()) break;
    if (--tries == 0) Die(up.ToString());
  }
  has_run_ = true;
}

std::vector<std::string> RedisServer::ServerArguments() const {
  std::vector<std::string> arguments = {"redis-server",
                                        "--dir",
                                        folder_.path(),
                                        "--save",
                                        "",
                                        "--port",
                                        std::to_string(port_),
                                        "--appendonly",
                                        options_.append_only ? "yes" : "no",
                                        "--daemonize",
                                        "no"};
  // By default Redis answers before it writes while a sync is under way, for up to two seconds.
  if (options_.append_only) arguments.insert(arguments.end(), {"--appendfsync", "always"});
  if (options_.tcp) {
    arguments.insert(arguments.end(), {"--bind", "127.0.0.1"});
  } else {
    arguments.insert(arguments.end(), {"--unixsocket", folder_.path() + "/socket"});
  }
  arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
  return arguments;
}

absl::Status RedisServer::Launch(std::vector<std::string> arguments) {
  GDN_ASSIGN_OR_RETURN(ChildProcess started, ChildProcess::Start(std::move(arguments), folder_.path() + "/log"));
  process_.emplace(std::move(started));
  std::string answer;
  const auto answers = [&] {
    answer = Command({"PING"});
    return answer == "PONG" || answer.starts_with("NOAUTH");
  };
  return WithPrefix(process_->WaitUntil(answers, absl::Minutes(1)), "redis-server for a test");
}

void RedisServer::Stop() { process_->Signal(SIGSTOP); }
void RedisServer::Continue() { process_->Signal(SIGCONT); }

void RedisServer::Kill() {
  if (process_.has_value()) process_->Signal(SIGKILL);
}

void RedisServer::CopyDataTo(const std::string& folder) const {
  std::filesystem::create_directories(folder);
  std::filesystem::copy(folder_.path() + kDataFolder, folder + kDataFolder, std::filesystem::copy_options::recursive);
}

void RedisServer::RestartWith(const std::string& folder) {
  Kill();
  process_.reset();
  std::filesystem::remove_all(folder_.path() + kDataFolder);
  std::filesystem::copy(folder + kDataFolder, folder_.path() + kDataFolder, std::filesystem::copy_options::recursive);
  if (const absl::Status up = Launch(ServerArguments()); !up.ok()) Die(up.ToString());
}

std::string RedisServer::endpoint() const {
  return options_.tcp ? "127.0.0.1:" + std::to_string(port_) : "unix:" + folder_.path() + "/socket";
}

std::string RedisServer::CommandAs(const std::string& password, const std::vector<std::string>& arguments) const {
  redisContext* context =
      options_.tcp ? redisConnect("127.0.0.1", port_) : redisConnectUnix((folder_.path() + "/socket").c_str());
  if (context == nullptr) return "(no memory)";
  std::string answer = context->errstr;
  if (context->err == 0 && !password.empty()) {
    if (void* const reply = redisCommand(context, "AUTH %s", password.c_str()); reply != nullptr)
      freeReplyObject(reply);
  }
  if (context->err == 0) {
    std::vector<const char*> argv;
    std::vector<size_t> sizes;
    for (const std::string& argument : arguments) {
      argv.push_back(argument.data());
      sizes.push_back(argument.size());
    }
    auto* reply =
        static_cast<redisReply*>(redisCommandArgv(context, static_cast<int>(argv.size()), argv.data(), sizes.data()));
    answer = reply == nullptr ? context->errstr : Text(*reply);
    if (reply != nullptr) freeReplyObject(reply);
  }
  redisFree(context);
  return answer;
}

}  // namespace gdn
