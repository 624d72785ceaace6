#include "server/ring/ring_door.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/net/listening_socket.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

constexpr std::string_view kSocketPrefix = "gdn-ring-";
constexpr absl::Duration kPatience = absl::Seconds(2);  // for a visitor's token
constexpr size_t kMostVisitors = 64;                    // who wait at a time; then one makes room for the next

// True if nobody listens at the socket.
bool IsDeserted(const std::string& path) {
  const OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (!fd.valid() || path.size() >= sizeof(address.sun_path)) return false;
  path.copy(address.sun_path, path.size());
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 && errno == ECONNREFUSED;
}

void RemoveDeserted(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    struct stat found {};
    if (it->path().filename().string().starts_with(kSocketPrefix) && lstat(path.c_str(), &found) == 0 &&
        S_ISSOCK(found.st_mode) && found.st_uid == geteuid() && IsDeserted(path)) {
      unlink(path.c_str());
    }
  }
}

// Returns the user who has connected; users of other namespaces may share one number.
uid_t UserOf(int connection) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.uid : static_cast<uid_t>(-1);
}

// Sends the descriptors. False if that fails: then the client must not wait for them.
bool SendDescriptors(int to, const std::array<int, GDN_RING_FDS>& fds) {
  char byte = 0;
  iovec data = {&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(fds))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(fds));
  std::memcpy(CMSG_DATA(head), fds.data(), sizeof(fds));
  return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RingDoor>> RingDoor::Open(const std::string& folder) {
  RemoveDeserted(folder);
  std::string path = folder + "/" + std::string(kSocketPrefix) + RandomId();
  GDN_ASSIGN_OR_RETURN(ListeningSocket listening, ListenOnUnix(path));
  OwnedFd stop(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  // The token, not the file, says who may have a ring, so other users and containers may connect.
  if (!stop.valid() || chmod(path.c_str(), 0666) != 0) {
    const int error = errno;
    unlink(path.c_str());
    return absl::UnavailableError(std::string("the socket for rings: ") + std::strerror(error));
  }
  try {
    return std::unique_ptr<RingDoor>(new RingDoor(path, std::move(listening.fd), std::move(stop)));
  } catch (const std::system_error& error) {
    unlink(path.c_str());
    return absl::UnavailableError(std::string("no thread for the socket for rings: ") + error.what());
  }
}

RingDoor::RingDoor(std::string path, OwnedFd socket, OwnedFd stop)
    : path_(std::move(path)), socket_(std::move(socket)), stop_(std::move(stop)), thread_([this] { Run(); }) {}

RingDoor::~RingDoor() {
  const uint64_t one = 1;
  static_cast<void>(!write(stop_.get(), &one, sizeof(one)));  // an empty eventfd takes it
  thread_.join();
  unlink(path_.c_str());
}

std::string RingDoor::Offer(std::shared_ptr<Ring> ring) {
  std::string token = RandomId();  // 32 characters of 128 random bits
  absl::MutexLock lock(&mu_);
  offered_[token] = {.ring = std::move(ring), .until = SteadyNow() + kTokenLife};
  return token;
}

void RingDoor::TakeBack(const std::string& token) {
  std::shared_ptr<Ring> back;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  const auto found = offered_.find(token);
  if (found == offered_.end()) return;
  back = std::move(found->second.ring);
  offered_.erase(found);
}

std::shared_ptr<Ring> RingDoor::Redeem(const std::string& token) {
  absl::MutexLock lock(&mu_);
  const auto found = offered_.find(token);
  if (found == offered_.end()) return nullptr;
  Offered offered = std::move(found->second);
  offered_.erase(found);
  return SteadyNow() < offered.until ? std::move(offered.ring) : nullptr;
}

void RingDoor::Run() {
  NameThisThread("gdn-ring-door");
  for (;;) {
    std::vector<pollfd> polled = {{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                                  {.fd = socket_.get(), .events = POLLIN, .revents = 0}};
    for (const Visitor& visitor : visitors_) polled.push_back({.fd = visitor.fd.get(), .events = POLLIN, .revents = 0});
    poll(polled.data(), polled.size(), visitors_.empty() ? -1 : 100);
    if (polled[0].revents != 0) return;
    const SteadyTime now = SteadyNow();
    std::vector<Visitor> waiting;
    for (size_t i = 0; i < visitors_.size(); ++i) {
      const bool again = polled[i + 2].revents == 0 || Hear(visitors_[i]);
      if (again && now < visitors_[i].until) waiting.push_back(std::move(visitors_[i]));
    }
    visitors_ = std::move(waiting);
    if (polled[1].revents != 0) Accept();
  }
}

size_t RingDoor::MakesRoom(const std::vector<uid_t>& users) {
  const auto visitors_of = [&users](uid_t user) { return std::ranges::count(users, user); };
  // The first maximum is the oldest visitor of the user who has most.
  return static_cast<size_t>(std::ranges::max_element(users, {}, visitors_of) - users.begin());
}

void RingDoor::Accept() {
  // As many as may wait, so that visitors who say nothing cannot fill the queue behind which the others connect.
  for (size_t i = 0; i < kMostVisitors; ++i) {
    OwnedFd fd(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      // Without a free descriptor the visitor stays in the queue; poll would report it again at once.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) poll(nullptr, 0, /*timeout=*/100);
      return;
    }
    const uid_t user = UserOf(fd.get());
    Visitor visitor{.fd = std::move(fd), .user = user, .until = SteadyNow() + kPatience, .sent = {}};
    if (!Hear(visitor)) continue;
    if (visitors_.size() == kMostVisitors) {
      std::vector<uid_t> users;
      for (const Visitor& waiting : visitors_) users.push_back(waiting.user);
      visitors_.erase(visitors_.begin() + static_cast<std::ptrdiff_t>(MakesRoom(users)));
    }
    visitors_.push_back(std::move(visitor));
  }
}

bool RingDoor::Hear(Visitor& visitor) {
  std::array<char, GDN_RING_TOKEN_BYTES> part;
  const ssize_t got = recv(visitor.fd.get(), part.data(), part.size() - visitor.sent.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  visitor.sent.append(part.data(), static_cast<size_t>(got));
  if (visitor.sent.size() < part.size()) return true;
  const std::shared_ptr<Ring> ring = Redeem(visitor.sent);
  if (ring == nullptr) return false;
  if (SendDescriptors(visitor.fd.get(), ring->fds())) ring->KeepPeer(std::move(visitor.fd));
  return false;
}

}  // namespace gdn
