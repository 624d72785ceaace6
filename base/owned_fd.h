// A file descriptor that is closed with its owner.
//
// Thread safety: one thread at a time. Ownership: owns the descriptor, unless Release gives it away.
//
//   const OwnedFd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
//   if (!fd.valid()) return errno;
#pragma once

#include <unistd.h>

#include <utility>

namespace gdn {

class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    OwnedFd(std::move(other)).Close();
    return *this;
  }
  ~OwnedFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() && { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

}  // namespace gdn
