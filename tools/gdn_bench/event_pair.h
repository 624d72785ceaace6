// Two events on a stream: how long the device took for what was launched between them.
//
// Thread safety: one thread at a time. Ownership: owns the events; the stream must outlive it.
//
//   GDN_RETURN_IF_ERROR(events->Begin());
//   GDN_RETURN_IF_ERROR(StreamCopyGpu(src, dst, floats, stream));
//   GDN_ASSIGN_OR_RETURN(double seconds, events->EndSeconds());
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gpu/runtime.h"
#include "kernels/gpu/stream.h"

namespace gdn::bench {

class EventPair {
 public:
  static absl::StatusOr<std::unique_ptr<EventPair>> Make(const gpu::Stream& stream);
  ~EventPair();
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;

  absl::Status Begin() { return gpu::RecordEvent(begin_, stream_); }
  // Waits for what was launched since Begin().
  absl::StatusOr<double> EndSeconds();

 private:
  explicit EventPair(const gpu::Stream& stream) : stream_(stream) {}

  const gpu::Stream stream_;
  gpu::Event begin_ = nullptr;
  gpu::Event end_ = nullptr;
};

}  // namespace gdn::bench
