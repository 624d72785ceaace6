// How the host executor's streams run: at once in the calling thread, or behind it as a device's do.
//
// At once is the default: all has happened when a call returns. Asynchronously each stream is a queue with a thread of
// its own, at a pace drawn from a seed, so that what a host and a device may do to each other happens: a page-locked
// buffer is read when its copy runs, and work on two streams is in no order that nobody asked for. Memory that is freed
// under work in flight is AddressSanitizer's to report; without it, freed memory is poisoned and watched, and a copy
// from or to it fails the device. A kernel that fails is heard of at a later call, and fails the device for good.
// ThreadSanitizer is told of those orders only that the seam promises, so it sees what an interleaving does not show.
// $GDN_HOST_STREAMS_SEED, a number, makes a program's streams asynchronous; there are $GDN_HOST_DEVICES of them then,
// or one. What is given to a stream has to come from a thread whose device is the stream's, and to copy that device's
// memory.
//
// Thread safety: as kernels/gpu/runtime.h. Ownership: streams made after Configure are the new devices'; older ones
// stay what they are.
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
  kEager,     // work runs as soon as it may
  kShuffled,  // after yields and short sleeps of random lengths
  kLazy,      // only once a host thread or another stream waits for it, or for what comes after it
};

struct HostStreamsOptions {
  bool asynchronous = false;
  uint64_t seed = 1;
  // The operation that fails, counted from 0 over launches, copies, records of events and waits of streams; all that
  // runs after it fails too. Negative: none.
  int64_t fail_at = -1;
  // Devices that fail and run independently, of one address space; and whose operation it is that fails.
  int devices = 1;
  int fail_device = 0;
  // Of the first streams made; those beyond have one drawn from the seed.
  std::vector<StreamPace> paces = {};
};

class HostStreams {
 public:
  // Plugs in other devices, none of which has failed.
  static void Configure(const HostStreamsOptions& options);
  // As the environment says, as before any Configure.
  static void ConfigureFromEnvironment();
  // Given to this device's streams so far.
  static int64_t operations(int device = 0);
  // Waits until all streams have run what they were given.
  static void Drain();
};

namespace simt {
// For simt.h: runs `launch` in the stream's order, at once where the stream has no handle. Only remembers it where the
// calling thread records that stream.
absl::Status EnqueueLaunch(const Stream& stream, const char* name, std::function<absl::Status()> launch);

// For runtime.h's graphs: launches, and nothing else, between Begin and End, by one thread.
struct RecordedLaunch {
  const char* name;
  std::function<absl::Status()> run;
};
using Recording = std::vector<RecordedLaunch>;
absl::Status BeginRecording(const Stream& stream);
// What was recorded; FAILED_PRECONDITION where something was asked for meanwhile that cannot be.
absl::StatusOr<Recording> EndRecording(const Stream& stream);
// FAILED_PRECONDITION where the calling thread records; then the recording is of no use.
absl::Status RefuseWhileRecording(const char* call);
}  // namespace simt

}  // namespace gdn::gpu
