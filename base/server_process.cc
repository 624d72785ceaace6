#include "base/server_process.h"

#include <malloc.h>
#include <sys/resource.h>

#include <csignal>

#include <algorithm>

#include "absl/synchronization/mutex.h"
#include "base/standard_streams.h"
#include "base/threads/processors.h"

namespace gdn {

namespace {

// More would be no use, and what counts them all, as the system does in a copy of the process, would take its time.
constexpr rlim_t kMostDescriptors = rlim_t{1} << 20;

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostDescriptors));
  setrlimit(RLIMIT_NOFILE, &limit);  // where it is refused, the limit stays
}

// Each keeps some of what it has freed, and a server on a machine of many processors need not keep that of each.
constexpr int kMostHeaps = 8;

}  // namespace

int64_t DescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMostDescriptors));
}

void SetUpServerProcess() {
  OpenStandardStreams();
  std::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  std::signal(SIGXFSZ, SIG_IGN);
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  mallopt(M_ARENA_MAX, static_cast<int>(std::min(AvailableProcessors(), kMostHeaps)));
#endif
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace gdn
