// Streams and events of a launch's copies and fences: a stream for each direction beside the operators' stream.
//
// Copies up to 128 KiB use the operators' stream: ordering two streams takes longer. So do all copies if the runtime
// has no stream left; without an event MakeFence waits. So a launch that has begun does not fail for want of them.
// Thread safety: WaitFence from any thread, the rest from the thread that issues. Ownership: owns its streams and
// events; the operators' stream must outlive it.
//
//   GDN_RETURN_IF_ERROR(streams.In(device, host, bytes));
//   ...operators...
//   GDN_RETURN_IF_ERROR(streams.Out(host, device, bytes));
//   GDN_ASSIGN_OR_RETURN(const Event fence, streams.MakeFence());
//   GDN_RETURN_IF_ERROR(streams.WaitFence(fence));
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {

class LaunchStreams {
 public:
  LaunchStreams(int device, const Stream& operators) : device_(device), operators_(operators) {}
  LaunchStreams(const LaunchStreams&) = delete;
  ~LaunchStreams();

  // In queues a launch's copy to the device (Backend::StageIn), before operators issued later; Out its copy to host
  // memory (Backend::StageOut), after operators issued before. `host` is page-locked and in use until a later fence
  // passes.
  absl::Status In(void* device, const void* host, size_t bytes);
  absl::Status Out(void* host, const void* device, size_t bytes);
  // Returns a fence after everything issued, which WaitFence must get exactly once. If no event can be made, waits
  // instead and returns null, which WaitFence does not take.
  absl::StatusOr<Event> MakeFence();
  absl::Status WaitFence(Event fence);
  absl::Status Synchronize();

 private:
  // Makes later work of `waiting` wait for the work that `first` has now. Blocks only if no event can be made.
  absl::Status Order(const Stream& first, const Stream& waiting);
  // Returns the stream, made at first use, or the operators' stream if none can be made.
  const Stream& Beside(std::optional<Stream>& stream);
  absl::StatusOr<Event> TakeEvent();

  const int device_;
  const Stream operators_;
  std::optional<Stream> in_, out_;  // made when first used
  Event order_ = nullptr;
  bool out_used_ = false;  // out_ has been used since the last fence

  absl::Mutex mu_;
  std::vector<Event> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn::gpu
