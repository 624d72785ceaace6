// How fast a machine can move bytes and multiply, measured again whenever it is asked, so that a kernel's time can
// stand beside a limit taken at the same moment. On a CPU: cpu_limits.h; on a GPU: gpu_limits.h.
//
// Thread safety: one thread at a time. Ownership: an implementation owns buffers well above the last-level cache.
//
//   GDN_ASSIGN_OR_RETURN(auto limits, MakeCpuLimits(threads));
//   GDN_ASSIGN_OR_RETURN(MachineRates rates, limits->Measure());
#pragma once

#include "absl/status/statusor.h"

namespace gdn::bench {

struct MachineRates {
  double read_bytes_per_s = 0;    // reading only
  double copy_bytes_per_s = 0;    // from one buffer to another; bytes read plus bytes written
  double update_bytes_per_s = 0;  // in place; bytes read plus bytes written
  double flops_per_s = 0;         // float32 multiply-adds, two operations each

  // For bytes that are written as well as read, the faster way to do both.
  double read_write_bytes_per_s() const {
    return copy_bytes_per_s > update_bytes_per_s ? copy_bytes_per_s : update_bytes_per_s;
  }
};

class MachineLimits {
 public:
  virtual ~MachineLimits() = default;
  MachineLimits(const MachineLimits&) = delete;
  MachineLimits& operator=(const MachineLimits&) = delete;

  // One pass of each loop: milliseconds on a GPU, tens of them on a CPU. Errors of the device.
  virtual absl::StatusOr<MachineRates> Measure() = 0;

 protected:
  MachineLimits() = default;
};

}  // namespace gdn::bench
