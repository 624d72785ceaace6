#include "base/server_process.h"

#include <malloc.h>

#include <algorithm>
#include <thread>

#include "absl/synchronization/mutex.h"

namespace gdn {

void SetUpServerProcess() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  mallopt(M_ARENA_MAX, static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
#endif
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace gdn
