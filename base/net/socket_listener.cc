#include "base/net/socket_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/net/ip_network.h"
#include "base/string_cat.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

constexpr int kAcceptsInARow = 64;    // of one socket, before the others have their turn
constexpr int kTryAgainMillis = 100;  // after descriptors or memory were used up
// Those that have closed are looked for no more often while connections are refused: it takes a system call for each.
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);

std::string ErrorText(int error) { return std::strerror(error); }

std::set<std::string> NetworksOf(const std::vector<std::string>& addresses) {
  std::set<std::string> networks;
  for (const std::string& address : addresses) {
    if (const auto network = NetworkOf(address); network.has_value()) networks.insert(*network);
  }
  return networks;
}

bool IsSameSocket(int fd, ino_t inode) {
  struct stat found {};
  return fstat(fd, &found) == 0 && found.st_ino == inode;
}

OwnedFd OpenReserve() { return OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

absl::StatusOr<std::unique_ptr<SocketListener>> SocketListener::Start(std::vector<ListeningSocket> sockets,
                                                                      ConnectionLimits limits,
                                                                      OnConnection on_connection) {
  std::unique_ptr<SocketListener> listener(
      new SocketListener(std::move(sockets), std::move(limits), std::move(on_connection)));
  if (!listener->wake_.valid()) return absl::UnavailableError(StrCat("no eventfd: ", ErrorText(errno)));
  listener->thread_ = std::thread([raw = listener.get()] { raw->Run(); });
  return listener;
}

SocketListener::SocketListener(std::vector<ListeningSocket> sockets, ConnectionLimits limits,
                               OnConnection on_connection)
    : limits_(std::move(limits)),
      proxies_(NetworksOf(limits_.proxies)),
      on_connection_(std::move(on_connection)),
      sockets_(std::move(sockets)),
      reserve_(OpenReserve()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void SocketListener::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  static_cast<void>(!write(wake_.get(), &one, sizeof(one)));
  thread_.join();
  sockets_.clear();
}

std::string SocketListener::Trouble() const {
  absl::MutexLock lock(&mu_);
  if (!trouble_.empty()) return trouble_;
  if (limits_.connections == 0 || static_cast<int64_t>(open_.size()) < limits_.connections) return "";
  ForgetClosedLocked();
  if (static_cast<int64_t>(open_.size()) < limits_.connections) return "";
  return StrCat("all ", limits_.connections, " connections are taken");
}

int64_t SocketListener::connections() const {
  absl::MutexLock lock(&mu_);
  ForgetClosedLocked();
  return static_cast<int64_t>(open_.size());
}

int64_t SocketListener::refused() const {
  absl::MutexLock lock(&mu_);
  return refused_;
}

void SocketListener::Run() {
  NameThisThread("gdn-accept");
  std::vector<pollfd> waits = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const ListeningSocket& socket : sockets_) {
    waits.push_back({.fd = socket.fd.get(), .events = POLLIN, .revents = 0});
  }
  bool again = false;
  for (;;) {
    // While descriptors are used up, the sockets would be ready all the time: only the time is waited for then.
    const nfds_t count = again ? 1 : waits.size();
    const int ready = poll(waits.data(), count, again ? kTryAgainMillis : -1);
    if (ready < 0 && errno != EINTR) again = true;  // for want of memory
    if (waits[0].revents != 0) return;
    if (ready < 0) continue;
    bool all = true;
    for (size_t i = 0; i < sockets_.size(); ++i) {
      if (again || waits[i + 1].revents != 0) all = Accept(sockets_[i]) && all;
    }
    again = !all;
  }
}

bool SocketListener::Accept(const ListeningSocket& socket) {
  for (int i = 0; i < kAcceptsInARow; ++i) {
    sockaddr_storage peer = {};
    socklen_t length = sizeof(peer);
    OwnedFd fd(accept4(socket.fd.get(), reinterpret_cast<sockaddr*>(&peer), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK) break;
      if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
        return OutOfDescriptors(socket, error);
      }
      continue;  // of this connection, as ECONNABORTED, EINTR and what its network has met
    }
    std::string name = NetworkOf(peer);
    if (proxies_.contains(name)) name.clear();
    if (Admit(fd.get(), name)) on_connection_(std::move(fd), socket.origin);
  }
  if (!reserve_.valid()) reserve_ = OpenReserve();
  absl::MutexLock lock(&mu_);
  trouble_.clear();
  return true;
}

bool SocketListener::OutOfDescriptors(const ListeningSocket& socket, int error) {
  {
    absl::MutexLock lock(&mu_);
    trouble_ = StrCat("connections cannot be accepted: ", ErrorText(error));
  }
  // With the reserve given up, one that waits can be taken, and closed.
  reserve_ = OwnedFd();
  OwnedFd waits(accept4(socket.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (waits.valid()) {  // counted before its client hears of it
    absl::MutexLock lock(&mu_);
    ++refused_;
  }
  waits = OwnedFd();
  reserve_ = OpenReserve();
  return false;
}

bool SocketListener::Admit(int fd, const std::string& peer) {
  struct stat made {};
  if (fstat(fd, &made) != 0) return false;
  absl::MutexLock lock(&mu_);
  if (const auto old = open_.find(fd); old != open_.end()) ForgetLocked(old);  // its number is another's now
  if (!HasRoomLocked(peer) && SteadyNow() >= next_look_) {
    ForgetClosedLocked();
    next_look_ = SteadyNow() + kLookEvery;
  }
  if (!HasRoomLocked(peer)) {
    ++refused_;
    return false;
  }
  open_[fd] = {.inode = made.st_ino, .peer = peer};
  ++of_peer_[peer];
  return true;
}

bool SocketListener::HasRoomLocked(const std::string& peer) const {
  if (limits_.connections > 0 && static_cast<int64_t>(open_.size()) >= limits_.connections) return false;
  if (peer.empty() || limits_.connections_per_peer == 0) return true;
  const auto held = of_peer_.find(peer);
  return held == of_peer_.end() || held->second < limits_.connections_per_peer;
}

void SocketListener::ForgetLocked(std::map<int, Connection>::iterator closed) const {
  const auto held = of_peer_.find(closed->second.peer);
  if (--held->second == 0) of_peer_.erase(held);
  open_.erase(closed);
}

void SocketListener::ForgetClosedLocked() const {
  for (auto next = open_.begin(); next != open_.end();) {
    const auto connection = next++;
    if (!IsSameSocket(connection->first, connection->second.inode)) ForgetLocked(connection);
  }
}

}  // namespace gdn
