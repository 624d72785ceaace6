#include "kernels/gpu_backend/launch_streams.h"
#include "base/threads/steady_clock.h"

#include "absl/time/time.h"
#include "base/status_macros.h"

namespace gdn::gpu {
namespace {

constexpr size_t kSmallBytes = size_t{128} << 10;
// Waking a thread up takes tens of microseconds, which a short step would wait for in vain.
constexpr absl::Duration kPollTime = absl::Microseconds(500);

}  // namespace

LaunchStreams::~LaunchStreams() {
  static_cast<void>(Synchronize());  // nobody is left to hear of a failure
  if (in_.has_value()) DestroyStream(*in_);
  if (out_.has_value()) DestroyStream(*out_);
  if (order_ != nullptr) DestroyEvent(order_);
  absl::MutexLock lock(&mu_);
  for (const Event event : idle_) DestroyEvent(event);
}

const Stream& LaunchStreams::Beside(std::optional<Stream>& stream) {
  if (!stream.has_value()) {
    if (const absl::StatusOr<Stream> made = MakeStream(device_); made.ok()) stream = *made;
  }
  return stream.has_value() ? *stream : operators_;
}

absl::Status LaunchStreams::Order(const Stream& first, const Stream& waiting) {
  if (order_ == nullptr) {
    const absl::StatusOr<Event> made = MakeEvent();
    if (!made.ok()) return SynchronizeStream(first);
    order_ = *made;
  }
  GDN_RETURN_IF_ERROR(RecordEvent(order_, first));
  return StreamWaitsFor(waiting, order_);
}

absl::Status LaunchStreams::In(void* device, const void* host, size_t bytes) {
  if (bytes <= kSmallBytes) return CopyToDevice(device, host, bytes, operators_);
  const Stream& stream = Beside(in_);
  GDN_RETURN_IF_ERROR(CopyToDevice(device, host, bytes, stream));
  return &stream == &operators_ ? absl::OkStatus() : Order(stream, operators_);
}

absl::Status LaunchStreams::Out(void* host, const void* device, size_t bytes) {
  if (bytes <= kSmallBytes) return CopyToHost(host, device, bytes, operators_);
  const Stream& stream = Beside(out_);
  if (&stream != &operators_) {
    GDN_RETURN_IF_ERROR(Order(operators_, stream));
    out_used_ = true;
  }
  return CopyToHost(host, device, bytes, stream);
}

absl::StatusOr<Event> LaunchStreams::TakeEvent() {
  {
    absl::MutexLock lock(&mu_);
    if (!idle_.empty()) {
      const Event event = idle_.back();
      idle_.pop_back();
      return event;
    }
  }
  return MakeEvent();
}

absl::StatusOr<Event> LaunchStreams::MakeFence() {
  const absl::StatusOr<Event> taken = TakeEvent();
  if (!taken.ok()) {
    out_used_ = false;
    GDN_RETURN_IF_ERROR(Synchronize());
    return Event(nullptr);
  }
  const Event event = *taken;
  absl::Status status;
  if (out_used_) status = Order(operators_, *out_);
  if (status.ok()) status = RecordEvent(event, out_used_ ? *out_ : operators_);
  out_used_ = false;
  if (status.ok()) return event;
  DestroyEvent(event);
  return status;
}

absl::Status LaunchStreams::WaitFence(Event fence) {
  absl::Status status;
  for (const SteadyTime end = SteadyNow() + kPollTime;;) {
    const absl::StatusOr<bool> done = EventIsDone(fence);
    if (done.ok() && *done) break;
    // Also where the poll fails: a lost device may still be at work in the callers' memory.
    if (!done.ok() || SteadyNow() >= end) {
      status = done.status();
      status.Update(WaitForEvent(fence));
      break;
    }
  }
  absl::MutexLock lock(&mu_);
  idle_.push_back(fence);
  return status;
}

absl::Status LaunchStreams::Synchronize() {
  absl::Status status = SynchronizeStream(operators_);
  if (in_.has_value()) status.Update(SynchronizeStream(*in_));
  if (out_.has_value()) status.Update(SynchronizeStream(*out_));
  return status;
}

}  // namespace gdn::gpu
