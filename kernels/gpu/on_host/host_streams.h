// Sets how the host executor's streams run: synchronously in the calling thread, or asynchronously like a device's.
//
// Synchronous is the default: all work is done when a call returns. Asynchronously, each stream is a queue with its own
// thread, at a pace drawn from a seed, so that real races between host and device occur: a page-locked buffer is read
// when its copy runs, and work on two streams is unordered unless the program orders it. AddressSanitizer reports
// memory that is freed under work in flight; without it, freed memory is poisoned and watched, and a copy from or to it
// fails the device. A failed kernel is reported by a later call, and fails the device for good. ThreadSanitizer is told
// only the orders that runtime.h promises, so it finds races that do not show in a run. $GDN_HOST_STREAMS_SEED, a
// number, makes a program's streams asynchronous, with $GDN_HOST_DEVICES devices (default 1). Work must be given to a
// stream by a thread whose current device is the stream's, and copies must use that device's memory.
//
// Thread safety: as kernels/gpu/runtime.h. Ownership: streams made after Configure belong to the new devices; older
// ones do not change.
//
//   HostStreams::Configure({.asynchronous = true, .seed = 7, .fail_at = 3});
//   ... MakeGpuBackend({}) ...
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gpu/stream.h"

namespace gdn::gpu {

enum class StreamPace : uint8_t {
  kEager,     // work runs as soon as it is allowed to
  kShuffled,  // after yields and short sleeps of random lengths
  kLazy,      // work runs only once a host thread or another stream waits for it or for later work
};

struct HostStreamsOptions {
  bool asynchronous = false;
  uint64_t seed = 1;
  // Number of the operation that fails, counted from 0 over launches, copies, event records and stream waits. All later
  // operations of that device fail too. Negative: none.
  int64_t fail_at = -1;
  // Number of devices, at least 1, which run and fail independently in one address space; fail_at counts on device
  // fail_device.
  int devices = 1;
  int fail_device = 0;
  // Paces of the first streams made; later streams draw theirs from the seed.
  std::vector<StreamPace> paces = {};
};

class HostStreams {
 public:
  // Replaces the devices by new ones, none of which has failed. Streams and memory of the old ones stay valid.
  static void Configure(const HostStreamsOptions& options);
  // Restores the devices that the environment variables describe, as before any Configure.
  static void ConfigureFromEnvironment();
  // Number of operations (as fail_at counts them) given to this device's streams so far; 0 if streams are synchronous.
  static int64_t operations(int device = 0);
  // Lets the operation fail that comes after `more` others that are still to be given to this device's streams, as
  // HostStreamsOptions::fail_at does. Returns its number. Streams must be asynchronous. For tests whose preparation
  // takes now more operations and now fewer.
  static int64_t FailAfter(int64_t more, int device = 0);
  // Blocks until all streams, also destroyed ones, have run what they were given.
  static void Drain();
};

namespace simt {
// Called by simt.h: runs `launch` in the stream's order, or at once if the stream has no handle. Only records it while
// the calling thread records that stream; only counts the kernel's code as loaded while LoadingOnly is active.
absl::Status EnqueueLaunch(const Stream& stream, const char* name, std::function<absl::Status()> launch);

// For runtime.h's graphs. The calling thread's launches on `stream` between BeginRecording and EndRecording are kept
// and not run; other threads and streams go on as usual. Calls that are no launches are refused (RefuseWhileRecording).
// BeginRecording: FAILED_PRECONDITION if the thread records already; that recording's end then fails too.
struct RecordedLaunch {
  const char* name;
  std::function<absl::Status()> run;
};
using Recording = std::vector<RecordedLaunch>;
absl::Status BeginRecording(const Stream& stream);
// Ends the calling thread's recording and returns its launches. FAILED_PRECONDITION if something that cannot be
// recorded was called meanwhile, or if the thread does not record that stream.
absl::StatusOr<Recording> EndRecording(const Stream& stream);
// FAILED_PRECONDITION if the calling thread is recording, whose EndRecording then fails too; OK otherwise. `call` names
// what cannot be recorded.
absl::Status RefuseWhileRecording(const char* call);
}  // namespace simt

}  // namespace gdn::gpu
