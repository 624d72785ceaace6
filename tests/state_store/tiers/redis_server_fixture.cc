#include "tests/state_store/tiers/redis_server_fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's kill
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gdn {

namespace {

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

RedisServer::RedisServer(RedisServerOptions options) : options_(std::move(options)) {
  std::string pattern = (std::filesystem::temp_directory_path() / "gdn-redis-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) Die("no temporary folder");
  folder_ = pattern;
  if (options_.tcp) port_ = FreePort();
}

RedisServer::~RedisServer() {
  Kill();
  Collect();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void RedisServer::Start() {
  Collect();
  std::vector<std::string> arguments = {"redis-server",
                                        "--dir",
                                        folder_,
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
    arguments.insert(arguments.end(), {"--unixsocket", folder_ + "/socket"});
  }
  arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string log = folder_ + "/log";
  const pid_t process = fork();
  if (process < 0) Die("no process");
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // no server outlives its test
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  process_ = process;
  const absl::Time give_up = absl::Now() + absl::Minutes(1);
  while (true) {
    const std::string answer = Command({"PING"});
    if (answer == "PONG" || answer.starts_with("NOAUTH")) return;
    int status = 0;
    if (waitpid(process, &status, WNOHANG) == process) Die("it ended at once; see " + log);
    if (absl::Now() > give_up) Die("it does not answer: " + answer);
    absl::SleepFor(absl::Milliseconds(2));
  }
}

void RedisServer::Kill() {
  if (const pid_t process = process_; process > 0) kill(process, SIGKILL);
}

void RedisServer::Collect() {
  if (const pid_t process = process_.exchange(0); process > 0) waitpid(process, nullptr, 0);
}

std::string RedisServer::endpoint() const {
  return options_.tcp ? "127.0.0.1:" + std::to_string(port_) : "unix:" + folder_ + "/socket";
}

std::string RedisServer::Command(const std::vector<std::string>& arguments) const {
  redisContext* context =
      options_.tcp ? redisConnect("127.0.0.1", port_) : redisConnectUnix((folder_ + "/socket").c_str());
  if (context == nullptr) return "(no memory)";
  std::string answer = context->errstr;
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
