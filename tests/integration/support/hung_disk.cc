#include "tests/integration/support/hung_disk.h"

#include <sys/types.h>

#include <algorithm>

#include "absl/base/const_init.h"
#include "absl/synchronization/mutex.h"

extern "C" ssize_t __real_pread(int fd, void* to, size_t bytes, off_t offset);
extern "C" int __real_fsync(int fd);

namespace gdn {
namespace {

absl::Mutex mu(absl::kConstInit);
bool hung = false;
int64_t waiting = 0;
int64_t most = 0;

void WaitWhileHung() {
  absl::MutexLock lock(&mu);
  if (!hung) return;
  most = std::max(most, ++waiting);
  const auto goes_on = [] { return !hung; };
  mu.Await(absl::Condition(&goes_on));
  --waiting;
}

}  // namespace

HungDisk::HungDisk() {
  absl::MutexLock lock(&mu);
  hung = true;
  most = 0;
}

HungDisk::~HungDisk() { Release(); }

void HungDisk::Release() {
  absl::MutexLock lock(&mu);
  hung = false;
}

int64_t HungDisk::most_waiting() const {
  absl::MutexLock lock(&mu);
  return most;
}

}  // namespace gdn

extern "C" ssize_t __wrap_pread(int fd, void* to, size_t bytes, off_t offset) {
  gdn::WaitWhileHung();
  return __real_pread(fd, to, bytes, offset);
}

extern "C" int __wrap_fsync(int fd) {
  gdn::WaitWhileHung();
  return __real_fsync(fd);
}
