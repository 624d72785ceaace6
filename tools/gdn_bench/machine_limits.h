// How fast this machine can move bytes and multiply, measured again whenever it is asked, so that a kernel's time can
// stand beside a limit taken at the same moment.
//
// Thread safety: one thread at a time. Ownership: owns its threads and two buffers well above the last-level cache.
//
//   GDN_ASSIGN_OR_RETURN(auto limits, MachineLimits::Make(threads));
//   MachineRates rates = limits->Measure();
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "base/thread_pool.h"

namespace gdn::bench {

struct MachineRates {
  double read_bytes_per_s = 0;    // reading only
  double copy_bytes_per_s = 0;    // non-temporal copy; bytes read plus bytes written
  double update_bytes_per_s = 0;  // in place; bytes read plus bytes written
  double flops_per_s = 0;         // float32 multiply-adds, two operations each

  // For bytes that are written as well as read, the faster way to do both.
  double read_write_bytes_per_s() const {
    return copy_bytes_per_s > update_bytes_per_s ? copy_bytes_per_s : update_bytes_per_s;
  }
};

class MachineLimits {
 public:
  // `threads` as the kernels use. RESOURCE_EXHAUSTED where the buffers cannot be had; INTERNAL where the multiply-add
  // loop does not give the right number or does not take twice as long for twice the work (so a compiler cannot have
  // removed it).
  static absl::StatusOr<std::unique_ptr<MachineLimits>> Make(int threads);
  ~MachineLimits();
  MachineLimits(const MachineLimits&) = delete;
  MachineLimits& operator=(const MachineLimits&) = delete;

  // One pass of each loop: tens of milliseconds.
  MachineRates Measure();

  size_t buffer_bytes() const { return buffer_bytes_; }

 private:
  MachineLimits(int threads, size_t buffer_bytes);
  absl::Status CheckMultiplyAdds();
  double MultiplyAddSeconds(int64_t iterations_per_task);

  ThreadPool pool_;
  const size_t buffer_bytes_;
  float* first_ = nullptr;
  float* second_ = nullptr;
};

}  // namespace gdn::bench
