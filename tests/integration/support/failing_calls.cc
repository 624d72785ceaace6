#include "tests/integration/support/failing_calls.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/base/const_init.h"
#include "absl/synchronization/mutex.h"

// std::thread::_M_start_thread(std::unique_ptr<_State>, void (*)())
#define GDN_START_THREAD(prefix) \
  prefix##_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE

extern "C" {
int __real_memfd_create(const char* name, unsigned int flags);
int __real_posix_fallocate(int fd, off_t offset, off_t bytes);
int __real_fcntl(int fd, int command, ...);
int __real_eventfd(unsigned int first, int flags);
void* __real_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_epoll_ctl(int epoll, int operation, int fd, epoll_event* event);
int __real_epoll_create1(int flags);
int __real_socket(int domain, int type, int protocol);
int __real_connect(int fd, const sockaddr* address, socklen_t length);
int __real_accept4(int fd, sockaddr* address, socklen_t* length, int flags);
ssize_t __real_sendmsg(int fd, const msghdr* message, int flags);
ssize_t __real_recvmsg(int fd, msghdr* message, int flags);
void* __real_calloc(size_t count, size_t bytes);
void* __real_malloc(size_t bytes);
void GDN_START_THREAD(__real_)(void* thread, void* state, void (*depend)());
}

namespace gdn {
namespace {

absl::Mutex mu(absl::kConstInit);
bool active = false;
int64_t counted = 0, to_fail = -1;
constexpr size_t kLongestName = 31;
char named[kLongestName + 1] = "";   // the name that counts; "" all do
char failed[kLongestName + 1] = "";  // no std::string: malloc itself is among the calls

bool Fails(const char* name) {
  if (!__atomic_load_n(&active, __ATOMIC_RELAXED)) return false;
  absl::MutexLock lock(&mu);
  if (!active) return false;
  if (named[0] != 0 && std::string_view(named) != name) return false;
  if (counted++ != to_fail) return false;
  failed[std::string_view(name).copy(failed, kLongestName)] = 0;
  return true;
}

int Error(int code) {
  errno = code;
  return -1;
}

}  // namespace

void FailingCalls::Fail(int64_t number, const std::string& name) {
  absl::MutexLock lock(&mu);
  counted = 0;
  to_fail = number;
  failed[0] = 0;
  named[name.copy(named, kLongestName)] = 0;
  __atomic_store_n(&active, true, __ATOMIC_RELAXED);
}

std::optional<std::string> FailingCalls::Stop() {
  absl::MutexLock lock(&mu);
  __atomic_store_n(&active, false, __ATOMIC_RELAXED);
  return failed[0] == 0 ? std::nullopt : std::optional<std::string>(failed);
}

}  // namespace gdn

extern "C" {

int __wrap_memfd_create(const char* name, unsigned int flags) {
  return gdn::Fails("memfd_create") ? gdn::Error(EMFILE) : __real_memfd_create(name, flags);
}
int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes) {
  return gdn::Fails("posix_fallocate") ? ENOSPC : __real_posix_fallocate(fd, offset, bytes);
}
int __wrap_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);  // an int comes in the same register
  va_end(arguments);
  return gdn::Fails("fcntl") ? gdn::Error(EPERM) : __real_fcntl(fd, command, argument);
}
int __wrap_eventfd(unsigned int first, int flags) {
  return gdn::Fails("eventfd") ? gdn::Error(EMFILE) : __real_eventfd(first, flags);
}
void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (!gdn::Fails("mmap")) return __real_mmap(at, bytes, protection, flags, fd, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}
int __wrap_epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  // Taking a descriptor out needs no memory.
  const bool fails = operation == EPOLL_CTL_ADD && gdn::Fails("epoll_ctl");
  return fails ? gdn::Error(ENOSPC) : __real_epoll_ctl(epoll, operation, fd, event);
}
int __wrap_epoll_create1(int flags) {
  return gdn::Fails("epoll_create1") ? gdn::Error(EMFILE) : __real_epoll_create1(flags);
}
int __wrap_socket(int domain, int type, int protocol) {
  return gdn::Fails("socket") ? gdn::Error(EMFILE) : __real_socket(domain, type, protocol);
}
int __wrap_connect(int fd, const sockaddr* address, socklen_t length) {
  return gdn::Fails("connect") ? gdn::Error(ECONNREFUSED) : __real_connect(fd, address, length);
}
int __wrap_accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  return gdn::Fails("accept4") ? gdn::Error(EMFILE) : __real_accept4(fd, address, length, flags);
}
ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags) {
  return gdn::Fails("sendmsg") ? gdn::Error(ENOBUFS) : __real_sendmsg(fd, message, flags);
}
ssize_t __wrap_recvmsg(int fd, msghdr* message, int flags) {
  return gdn::Fails("recvmsg") ? gdn::Error(ENOMEM) : __real_recvmsg(fd, message, flags);
}
void* __wrap_calloc(size_t count, size_t bytes) { return gdn::Fails("calloc") ? nullptr : __real_calloc(count, bytes); }
void* __wrap_malloc(size_t bytes) { return gdn::Fails("malloc") ? nullptr : __real_malloc(bytes); }
void GDN_START_THREAD(__wrap_)(void* thread, void* state, void (*depend)()) {
  if (gdn::Fails("thread")) throw std::system_error(EAGAIN, std::generic_category());
  GDN_START_THREAD(__real_)(thread, state, depend);
}
}
