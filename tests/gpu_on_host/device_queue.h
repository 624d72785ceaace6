// The asynchronous device of host_streams.h: streams with a thread each, points in them, and the failure of all.
//
// Thread safety: any thread. Ownership: a point keeps what it needs of its stream, so either may go first; a stream's
// thread runs what is queued before it ends, and nobody waits for that.
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
#include "gpu_on_host/device_memory.h"
#include "gpu_on_host/host_streams.h"

namespace gdn::gpu::simt {

using Work = std::function<absl::Status()>;
using Clock = std::chrono::steady_clock;

class HostDevice;
class HostStream;

// A point of a stream: its work up to and with `ticket`.
struct StreamPoint {
  std::shared_ptr<HostStream> stream;
  int64_t ticket = 0;
  Clock::time_point time;  // when the stream came there
};

class HostStream : public std::enable_shared_from_this<HostStream> {
 public:
  HostStream(std::shared_ptr<HostDevice> device, uint64_t seed, StreamPace pace);

  // All calls report the device's failure.
  absl::Status Enqueue(const char* what, Work work);
  absl::StatusOr<std::shared_ptr<StreamPoint>> Record();
  absl::Status WaitsFor(std::shared_ptr<const StreamPoint> point);
  absl::Status Synchronize();
  HostDevice& device() { return *device_; }

  // For who made it, and who waits for its end.
  void Start();
  bool HasEnded();
  void Join();

 private:
  friend class HostDevice;

  struct Operation {
    const char* what;
    int64_t number;  // of the device's operations; negative where it is not one of them
    Work work;
  };

  // Queues work; its ticket.
  absl::StatusOr<int64_t> Push(const char* what, Work work, bool counted = true);
  absl::StatusOr<std::shared_ptr<StreamPoint>> Mark(const char* what, bool counted);
  void Run();
  bool RunNext();  // false where there is nothing more to come
  bool MayRun() const;
  void Delay();

  const std::shared_ptr<HostDevice> device_;
  const uint64_t seed_;
  const StreamPace pace_;
  std::mt19937_64 random_;  // of the thread

  // Guarded by the device's mutex.
  std::deque<std::unique_ptr<Operation>> queue_;
  int64_t pushed_ = 0;
  int64_t passed_ = 0;
  int64_t demanded_ = 0;  // somebody waits for what has tickets up to this one
  int polls_ = 0;
  bool closing_ = false;
  bool ended_ = false;

  std::thread thread_;
};

class HostDevice : public std::enable_shared_from_this<HostDevice> {
 public:
  explicit HostDevice(const HostStreamsOptions& options) : options_(options) {}
  ~HostDevice();

  HostStream* MakeStream();
  // Its thread ends once it has run what it was given.
  void DestroyStream(HostStream* stream);

  absl::Status status();
  int64_t operations();
  void Drain();

  // Blocks until the stream came to the point, and has whatever leads there run.
  absl::Status WaitFor(const StreamPoint& point);
  absl::StatusOr<bool> IsDone(const StreamPoint& point);

  // Frees it once all that the streams have been given by now has run; fails the device where it was written meanwhile.
  void FreeLater(std::shared_ptr<Allocation> memory);

 private:
  friend class HostStream;

  struct Freed {
    std::shared_ptr<Allocation> memory;
    std::vector<std::pair<std::shared_ptr<HostStream>, int64_t>> users;  // and the last ticket that may use it
  };

  // Not OK where the device has failed, or this is what shall fail.
  absl::Status MayStart(const HostStream::Operation& operation);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitTicket(HostStream& stream, int64_t ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SweepFreed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const HostStreamsOptions options_;

  absl::Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int64_t operations_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t streams_made_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<HostStream>> streams_ ABSL_GUARDED_BY(mu_);  // whose threads run
  std::vector<Freed> freed_ ABSL_GUARDED_BY(mu_);
};

// Those plugged in by HostStreams, at least one; null where streams run at once.
int HostDeviceCount();
std::shared_ptr<HostDevice> DeviceNumber(int device);
// The calling thread's, as the last SetCurrentDevice of it says; the first where none does.
std::shared_ptr<HostDevice> CurrentDevice();
void SetCurrentDevice(int device);
int CurrentDeviceNumber();
// Whose memory it is, where that is still plugged in; the calling thread's for what any may use.
std::shared_ptr<HostDevice> DeviceOf(const Allocation& memory);
// UNAVAILABLE (DEVICE_FAILED) where `what` is not the thread's to give to the stream: its device is another.
absl::Status CheckDeviceOf(HostStream& stream, const char* what);

}  // namespace gdn::gpu::simt
