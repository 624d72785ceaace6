// A Redis may answer anything: the tier sends its own commands over a socket to a Redis that sends the input and hangs
// up. The first byte chooses the command.
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/files/temporary_folder.h"
#include "state_store/tiers/redis/redis_tier.h"
#include "tests/fuzz/fuzz_target.h"

namespace gdn {
namespace {

// Sends each connection what it is told to, and its end.
class Answerer {
 public:
  explicit Answerer(const std::string& folder) : path_(folder + "/redis"), listener_(Listen(path_)) {
    std::thread([this] { Serve(); }).detach();
  }
  const std::string& path() const { return path_; }
  void Say(std::string_view text) {
    absl::MutexLock lock(&mu_);
    text_ = text;
  }

 private:
  static int Listen(const std::string& path) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    GDN_FUZZ_CHECK(fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                       listen(fd, /*backlog=*/16) == 0,
                   path);
    return fd;
  }

  void Serve() {
    for (;;) {
      const int client = accept(listener_, nullptr, nullptr);
      if (client < 0) continue;
      std::string text = "+PONG\r\n";  // to the PING of whoever connects
      {
        absl::MutexLock lock(&mu_);
        text += text_;
      }
      size_t sent = 0;
      while (sent < text.size()) {
        const ssize_t more = send(client, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (more <= 0) break;
        sent += static_cast<size_t>(more);
      }
      shutdown(client, SHUT_WR);
      char dropped[4096];
      while (recv(client, dropped, sizeof(dropped), 0) > 0) {
      }
      close(client);
    }
  }

  const std::string path_;
  const int listener_;
  absl::Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
};

struct World {
  explicit World(const std::string& folder) : redis(folder) {}

  Answerer redis;
  // Its prefix is taken, as far as it knows.
  std::unique_ptr<RedisTier> MakeTier() {
    auto tier =
        RedisTier::Make({.endpoint = "unix:" + redis.path(), .command_timeout = absl::Seconds(10)}, fuzz::Memory());
    GDN_FUZZ_CHECK(tier.ok(), tier.status().ToString());
    redis.Say("*3\r\n:7\r\n$3\r\na b\r\n$1\r\na\r\n");
    GDN_FUZZ_CHECK((*tier)->NextIncarnation().ok(), "a prefix that cannot be taken");
    return *std::move(tier);
  }
};

World& TheWorld() {
  static const TemporaryFolder folder = *TemporaryFolder::Make();
  static auto* const world = [] {
    spdlog::set_level(spdlog::level::off);
    return new World(folder.path());
  }();
  return *world;
}

}  // namespace
}  // namespace gdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  World& world = TheWorld();
  const std::unique_ptr<RedisTier> tier = world.MakeTier();
  fuzz::Input input(data, size);
  const uint8_t command = input.Byte();
  world.redis.Say(input.Rest());
  const StateKey key{.principal = "", .id = "s", .checkpoint = ""};
  switch (command % 7) {
    case 0:
      fuzz::CheckRefusal(tier->Load(key).status());
      break;
    case 1:
      fuzz::CheckRefusal(tier->Describe(key).status());
      break;
    case 2:
      fuzz::CheckRefusal(tier->List().status());
      break;
    case 3:
      fuzz::CheckRefusal(tier->NextIncarnation().status());
      break;
    case 4:
      fuzz::CheckRefusal(tier->KeepSecret("secret").status());
      break;
    case 5:
      fuzz::CheckRefusal(tier->CheckClaim());
      break;
    default:
      fuzz::CheckRefusal(tier->Erase(key, /*all=*/true));
  }
  tier->usage();
  return 0;
}
