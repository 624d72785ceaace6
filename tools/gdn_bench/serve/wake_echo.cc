#include "tools/gdn_bench/serve/wake_echo.h"

#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace gdn::bench {
namespace {

absl::Status Expect(ssize_t bytes, const char* call) {
  if (bytes == sizeof(uint64_t)) return absl::OkStatus();
  const char* const why = bytes < 0 ? std::strerror(errno) : "the descriptor is not an eventfd";
  return absl::UnavailableError(absl::StrCat("the echo of wake-ups: ", call, ": ", why));
}

// The watching thread adds this to the descriptor's count when the other process has ended; a reply adds 1.
constexpr uint64_t kEnded = uint64_t{1} << 32;

absl::Status Wake(int fd, uint64_t count = 1) { return Expect(write(fd, &count, sizeof(count)), "write"); }

absl::Status SleepOn(int fd) {
  uint64_t count = 0;
  GDN_RETURN_IF_ERROR(Expect(read(fd, &count, sizeof(count)), "read"));
  if (count < kEnded) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(Wake(fd, kEnded));  // for the next call
  return absl::UnavailableError("the other process of the echo of wake-ups has ended");
}

class WakeCaller final : public Caller {
 public:
  explicit WakeCaller(const WakeEcho& echo) : echo_(echo) {}

  absl::Status Call() override {
    GDN_RETURN_IF_ERROR(Wake(echo_.request_fd()));
    return SleepOn(echo_.reply_fd());
  }
  int64_t request_bytes() const override { return 0; }
  int64_t response_bytes() const override { return 0; }

 private:
  const WakeEcho& echo_;
};

}  // namespace

WakeEcho::WakeEcho(OwnedFd request, OwnedFd reply, ChildProcess child)
    : request_(std::move(request)), reply_(std::move(reply)), child_(std::move(child)) {
  watch_ = std::thread([pid = child_.pid(), fd = reply_.get()] {
    siginfo_t end = {};
    while (waitid(P_PID, static_cast<id_t>(pid), &end, WEXITED | WNOWAIT) != 0 && errno == EINTR) continue;
    static_cast<void>(Wake(fd, kEnded));  // it has room, and nobody else may fill it
  });
}

WakeEcho::~WakeEcho() {
  child_.End(SIGTERM);
  watch_.join();
}

absl::StatusOr<std::unique_ptr<WakeEcho>> WakeEcho::Start(const std::string& self, const std::string& log_file) {
  OwnedFd request(eventfd(0, 0)), reply(eventfd(0, 0));  // the child inherits them
  if (!request.valid() || !reply.valid()) {
    return absl::UnavailableError(absl::StrCat("no eventfd for the echo of wake-ups: ", std::strerror(errno)));
  }
  GDN_ASSIGN_OR_RETURN(
      ChildProcess child,
      ChildProcess::Start({self, "wake_echo", absl::StrCat("--wake_fds=", request.get(), ",", reply.get())}, log_file));
  return std::unique_ptr<WakeEcho>(new WakeEcho(std::move(request), std::move(reply), std::move(child)));
}

absl::Status RunWakeEcho(int request_fd, int reply_fd) {
  for (;;) {
    GDN_RETURN_IF_ERROR(SleepOn(request_fd));
    GDN_RETURN_IF_ERROR(Wake(reply_fd));
  }
}

std::unique_ptr<Caller> MakeWakeCaller(const WakeEcho& echo) { return std::make_unique<WakeCaller>(echo); }

}  // namespace gdn::bench
