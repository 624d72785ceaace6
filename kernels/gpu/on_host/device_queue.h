// The asynchronous device of host_streams.h: streams with one thread each, points in them, and the device's failure.
//
// Thread safety: any thread. Ownership: a point keeps the parts of its stream that it needs, so either may be destroyed
// first; a destroyed stream's thread first runs what is queued, and nobody waits for that.
//
//   auto device = HostDevice::Make(options);
//   HostStream* stream = device->MakeStream();
//   GDN_RETURN_IF_ERROR(stream->Enqueue("copy", [=] { std::memcpy(to, from, bytes); return absl::OkStatus(); }));
//   GDN_RETURN_IF_ERROR(stream->Synchronize());
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/gpu/on_host/device_memory.h"
#include "kernels/gpu/on_host/host_streams.h"

namespace gdn::gpu::simt {

using Work = std::function<absl::Status()>;
using Clock = std::chrono::steady_clock;

class HostDevice;
class HostStream;

// A point of a stream: reached when all work up to and including `ticket` has run. Tickets count a stream's work from
// 1.
struct StreamPoint {
  std::shared_ptr<HostStream> stream;
  int64_t ticket = 0;
  Clock::time_point time;  // when the stream reached the point; valid from then on
};

class HostStream : public std::enable_shared_from_this<HostStream> {
 public:
  HostStream(std::shared_ptr<HostDevice> device, uint64_t seed, StreamPace pace);

  // Enqueue queues work for the stream's thread, in order; `what` names it in errors and must be a literal. Record
  // queues a point. WaitsFor makes later work wait for the point. Synchronize blocks until all queued work has run.
  // Once the device has failed, all four return its failure.
  absl::Status Enqueue(const char* what, Work work);
  absl::StatusOr<std::shared_ptr<StreamPoint>> Record();
  absl::Status WaitsFor(std::shared_ptr<const StreamPoint> point);
  absl::Status Synchronize();
  HostDevice& device() { return *device_; }

  // Start starts the stream's thread: call once, before any work. HasEnded is true once a destroyed stream's thread
  // runs nothing more. Join blocks until then.
  void Start();
  bool HasEnded();
  void Join();

 private:
  friend class HostDevice;

  struct Operation {
    const char* what;
    int64_t number;  // index among the device's counted operations; negative if this one is not counted
    Work work;
  };

  // Queues work and returns its ticket. `counted`: as one of the device's operations, which options can make fail.
  absl::StatusOr<int64_t> Push(const char* what, Work work, bool counted = true);
  absl::StatusOr<std::shared_ptr<StreamPoint>> Mark(const char* what, bool counted);
  void Run();
  bool RunNext();  // false if no more work will come
  bool MayRun() const;
  void Delay();

  const std::shared_ptr<HostDevice> device_;
  const uint64_t seed_;
  const StreamPace pace_;
  std::mt19937_64 random_;  // used by the stream's thread only

  // Guarded by the device's mutex.
  std::deque<std::unique_ptr<Operation>> queue_;
  int64_t pushed_ = 0;
  int64_t passed_ = 0;
  int64_t demanded_ = 0;  // somebody waits for tickets up to this one
  int polls_ = 0;
  bool closing_ = false;
  bool ended_ = false;

  std::thread thread_;
};

class HostDevice : public std::enable_shared_from_this<HostDevice> {
 public:
  explicit HostDevice(const HostStreamsOptions& options) : options_(options), fail_at_(options.fail_at) {}
  ~HostDevice();

  HostStream* MakeStream();
  // Destroys the stream without waiting. Its thread ends when it has run what was queued; points of it stay usable.
  void DestroyStream(HostStream* stream);

  absl::Status status();
  int64_t operations();
  int64_t FailAfter(int64_t more);
  void Drain();

  // Blocks until the stream has reached the point; makes a lazy stream run the work before it. Returns the device's
  // failure if it has failed.
  absl::Status WaitFor(const StreamPoint& point);
  absl::StatusOr<bool> IsDone(const StreamPoint& point);

  // Frees memory when all work that is queued now on the device's streams has run. Poisons it if there is any, and
  // fails the device if the memory was written meanwhile.
  void FreeLater(std::shared_ptr<Allocation> memory);

 private:
  friend class HostStream;

  struct Freed {
    std::shared_ptr<Allocation> memory;
    // Streams that may use the memory, each with the last ticket that may.
    std::vector<std::pair<std::shared_ptr<HostStream>, int64_t>> users;
  };

  // Returns OK if the operation may run; an error if the device has failed, or if this operation is the one to fail.
  absl::Status MayStart(const HostStream::Operation& operation);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitTicket(HostStream& stream, int64_t ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SweepFreed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const HostStreamsOptions options_;

  absl::Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int64_t operations_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t fail_at_ ABSL_GUARDED_BY(mu_);  // number of the operation that fails; negative: none
  uint64_t streams_made_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<HostStream>> streams_ ABSL_GUARDED_BY(mu_);  // streams whose threads run
  std::vector<Freed> freed_ ABSL_GUARDED_BY(mu_);
};

// Number of devices that HostStreams has set up, at least one. DeviceNumber returns device `device`, the first if there
// is no such number, and null if streams run synchronously.
int HostDeviceCount();
std::shared_ptr<HostDevice> DeviceNumber(int device);
// Returns the calling thread's device, as DeviceNumber: that of its last SetCurrentDevice, else the first.
std::shared_ptr<HostDevice> CurrentDevice();
void SetCurrentDevice(int device);
int CurrentDeviceNumber();
// Returns the device that owns the memory, if it is still set up. Otherwise, and for memory that any device may use,
// the calling thread's.
std::shared_ptr<HostDevice> DeviceOf(const Allocation& memory);
// UNAVAILABLE (DEVICE_FAILED) if there are several devices and the stream's is not the calling thread's, so that the
// thread may not give work to it. `what` names the work for the message.
absl::Status CheckDeviceOf(HostStream& stream, const char* what);

}  // namespace gdn::gpu::simt
