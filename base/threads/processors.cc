#include "base/threads/processors.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"

namespace gdn {
namespace {

// A mask wider than a cpu_set_t makes the call fail; then every processor counts.
int AffinityProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Processors' worth of time the control group grants, rounded up; `otherwise` where there is no limit.
int QuotaProcessors(int otherwise) {
  std::string quota_text;
  double quota = 0.0;
  double period = 0.0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota_text >> period) {
    if (!absl::SimpleAtod(quota_text, &quota)) return otherwise;  // "max"
  } else {
    std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (!(v1_quota >> quota) || !(v1_period >> period)) return otherwise;
  }
  if (quota <= 0.0 || period <= 0.0) return otherwise;  // -1: no limit
  return std::min(otherwise, static_cast<int>((quota + period - 1.0) / period));
}

}  // namespace

int AvailableProcessors() {
  const int processors = std::max(1, AffinityProcessors());
  return std::max(1, QuotaProcessors(processors));
}

}  // namespace gdn
