#include "kernels/gpu_backend/launch_streams.h"

#include <utility>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/threads/steady_clock.h"
#include "kernels/host_copy/host_copy.h"

namespace gdn::gpu {
namespace {

constexpr size_t kSmallBytes = size_t{128} << 10;
// Waking a thread up takes tens of microseconds, which a short step would wait for in vain.
constexpr absl::Duration kPollTime = absl::Microseconds(500);
constexpr int kLooksPerEvent = 64;  // a look at the flags takes far less time than asking the runtime for the event

}  // namespace

LaunchStreams::~LaunchStreams() {
  static_cast<void>(Synchronize());  // nobody is left to hear of a failure
  if (in_.has_value()) DestroyStream(*in_);
  if (out_.has_value()) DestroyStream(*out_);
  if (order_ != nullptr) DestroyEvent(order_);
  absl::MutexLock lock(&mu_);
  for (LaunchFence* const fence : idle_) Destroy(fence);
}

void LaunchStreams::Destroy(LaunchFence* fence) {
  DestroyEvent(fence->event);
  if (fence->flags != nullptr) PinnedFree(fence->flags);
  delete fence;
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
  if (bytes <= kSmallBytes) return HostCopyGpu(device, host, bytes, /*flags=*/nullptr, /*number=*/0, operators_);
  const Stream& stream = Beside(in_);
  GDN_RETURN_IF_ERROR(CopyToDevice(device, host, bytes, stream));
  return &stream == &operators_ ? absl::OkStatus() : Order(stream, operators_);
}

absl::Status LaunchStreams::Out(void* host, const void* device, size_t bytes) {
  if (bytes <= kSmallBytes) {
    GDN_RETURN_IF_ERROR(QueueLast(nullptr));
    last_ = {.to = host, .from = device, .bytes = bytes};
    return absl::OkStatus();
  }
  const Stream& stream = Beside(out_);
  if (&stream != &operators_) {
    GDN_RETURN_IF_ERROR(Order(operators_, stream));
    out_used_ = true;
  }
  return CopyToHost(host, device, bytes, stream);
}

absl::Status LaunchStreams::QueueLast(LaunchFence* fence) {
  if (!last_.has_value()) return absl::OkStatus();
  const Copy copy = *std::exchange(last_, std::nullopt);
  const bool flagged = fence != nullptr && fence->flags != nullptr;
  if (flagged) {
    fence->blocks = HostCopyBlocks(copy.bytes);
    ++fence->number;
  }
  return HostCopyGpu(copy.to, copy.from, copy.bytes, flagged ? fence->flags : nullptr, flagged ? fence->number : 0,
                     operators_);
}

LaunchFence* LaunchStreams::TakeFence() {
  {
    absl::MutexLock lock(&mu_);
    if (!idle_.empty()) {
      LaunchFence* const fence = idle_.back();
      idle_.pop_back();
      fence->blocks = 0;
      return fence;
    }
  }
  const absl::StatusOr<Event> event = MakeEvent();
  if (!event.ok()) return nullptr;
  constexpr size_t kMostFlags = HostCopyBlocks(kSmallBytes);
  const absl::StatusOr<void*> memory = PinnedMalloc(kMostFlags * sizeof(uint32_t));
  auto* const flags = memory.ok() ? static_cast<uint32_t*>(*memory) : nullptr;
  for (size_t i = 0; flags != nullptr && i < kMostFlags; ++i) flags[i] = 0;
  return new LaunchFence{.event = *event, .flags = flags};
}

absl::StatusOr<LaunchFence*> LaunchStreams::MakeFence() {
  LaunchFence* const fence = TakeFence();
  const bool out_used = std::exchange(out_used_, false);
  if (fence == nullptr) {
    GDN_RETURN_IF_ERROR(Synchronize());
    return nullptr;
  }
  absl::Status status = QueueLast(out_used ? nullptr : fence);
  if (status.ok() && out_used) status = Order(operators_, *out_);
  if (status.ok()) status = RecordEvent(fence->event, out_used ? *out_ : operators_);
  if (status.ok()) return fence;
  static_cast<void>(SynchronizeStream(operators_));  // the copy may still store to the flags
  Destroy(fence);
  return status;
}

absl::Status LaunchStreams::WaitFence(LaunchFence* fence) {
  absl::Status status;
  const SteadyTime end = SteadyNow() + kPollTime;
  for (int looks = 0;; ++looks) {
    if (fence->blocks > 0) {
      if (HostCopyHasEnded(fence->flags, fence->blocks, fence->number)) break;
      if (looks % kLooksPerEvent != 0) continue;
    }
    const absl::StatusOr<bool> done = EventIsDone(fence->event);
    if (done.ok() && *done) break;
    // Also where the poll fails: a lost device may still be at work in the callers' memory.
    if (!done.ok() || SteadyNow() >= end) {
      status = done.status();
      status.Update(WaitForEvent(fence->event));
      break;
    }
  }
  absl::MutexLock lock(&mu_);
  idle_.push_back(fence);
  return status;
}

absl::Status LaunchStreams::Synchronize() {
  absl::Status status = QueueLast(nullptr);
  status.Update(SynchronizeStream(operators_));
  if (in_.has_value()) status.Update(SynchronizeStream(*in_));
  if (out_.has_value()) status.Update(SynchronizeStream(*out_));
  return status;
}

}  // namespace gdn::gpu
