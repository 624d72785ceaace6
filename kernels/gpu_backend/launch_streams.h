// Streams and fences of a launch's copies: a stream for each direction beside the operators' stream.
//
// Copies up to 128 KiB use the operators' stream, because ordering two streams takes longer, and a kernel makes them
// (host_copy.h). All copies use it if the runtime has no stream left; without an event MakeFence waits. So a launch
// that has begun does not fail for want of them.
// A fence is an event. If the launch's last copy out is a small one, the host need not ask the runtime for the event:
// it sees in its own memory that the copy has ended.
// Thread safety: WaitFence from any thread, the rest from the thread that issues. Ownership: owns its streams and
// fences; the operators' stream must outlive it.
//
//   GDN_RETURN_IF_ERROR(streams.In(device, host, bytes));
//   ...operators...
//   GDN_RETURN_IF_ERROR(streams.Out(host, device, bytes));
//   GDN_ASSIGN_OR_RETURN(LaunchFence* const fence, streams.MakeFence());
//   GDN_RETURN_IF_ERROR(streams.WaitFence(fence));
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {

// The end of a launch.
struct LaunchFence {
  Event event = nullptr;
  uint32_t* flags = nullptr;  // page-locked, for the blocks of the last copy; null if there was no memory
  int64_t blocks = 0;         // of the last copy, if the fence passes when that has ended; else 0
  uint32_t number = 0;        // what the blocks store to their flags; another one each time
};

class LaunchStreams {
 public:
  LaunchStreams(int device, const Stream& operators) : device_(device), operators_(operators) {}
  LaunchStreams(const LaunchStreams&) = delete;
  ~LaunchStreams();

  // In queues a launch's copy to the device (Backend::StageIn), before operators issued later; Out its copy to host
  // memory (Backend::StageOut), after operators issued before. `host` is page-locked. `host` and `device` are in use
  // until a later fence passes.
  absl::Status In(void* device, const void* host, size_t bytes);
  absl::Status Out(void* host, const void* device, size_t bytes);
  // Returns a fence after everything issued, which WaitFence must get exactly once. If no event can be made, waits
  // instead and returns null, which WaitFence does not take.
  absl::StatusOr<LaunchFence*> MakeFence();
  absl::Status WaitFence(LaunchFence* fence);
  absl::Status Synchronize();

 private:
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
  };

  // Makes later work of `waiting` wait for the work that `first` has now. Blocks only if no event can be made.
  absl::Status Order(const Stream& first, const Stream& waiting);
  // Returns the stream, made at first use, or the operators' stream if none can be made.
  const Stream& Beside(std::optional<Stream>& stream);
  // Queues the copy that is held back, if there is one. It stores to the flags of `fence`, unless that is null.
  absl::Status QueueLast(LaunchFence* fence);
  // Returns an idle fence, or a new one; null if no event can be made.
  LaunchFence* TakeFence();
  static void Destroy(LaunchFence* fence);

  const int device_;
  const Stream operators_;
  std::optional<Stream> in_, out_;  // made when first used
  Event order_ = nullptr;
  bool out_used_ = false;     // out_ has been used since the last fence
  std::optional<Copy> last_;  // the last small copy out, held back until it is known if a fence follows

  absl::Mutex mu_;
  std::vector<LaunchFence*> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn::gpu
