// The GPU backend: states, weights and activations in device memory, one stream of work for the engine thread. The same
// class runs on AMD, on NVIDIA and on the host executor; which one is decided when the GPU sources are built.
//
// The host is touched for inputs and outputs only, through page-locked staging memory. Slots keep their base as [HV, V,
// K] (K contiguous); kernels/slot_codec.h turns it to wire order.
// Thread safety: see Backend. Ownership: owns the stream, staging memory and workspace; they go with it.
//
//   GDN_ASSIGN_OR_RETURN(auto backend, MakeGpuBackend({.device = 0}));
//   GDN_ASSIGN_OR_RETURN(gpu::Stream stream, GpuStreamOf(*backend));  // for kernels beside the backend's operators
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// Whether decode steps are recorded and replayed: kAuto where that is clearly quicker by a measurement at the start.
enum class GpuGraphs : uint8_t { kAuto, kOn, kOff };
// "auto", "on" or "off".
inline std::optional<GpuGraphs> ParseGpuGraphs(std::string_view text) {
  if (text == "auto") return GpuGraphs::kAuto;
  if (text == "on") return GpuGraphs::kOn;
  if (text == "off") return GpuGraphs::kOff;
  return std::nullopt;
}

struct GpuBackendOptions {
  int device = 0;  // among those that HIP_VISIBLE_DEVICES leaves
  GpuGraphs graphs = GpuGraphs::kAuto;
  // Bytes of the ring of page-locked memory (a multiple of 1024) and of the arena for index arrays on the device, which
  // grows; 0: the defaults. Tests make them small, so that they are soon full.
  size_t pinned_ring_bytes = 0;
  size_t index_arena_bytes = 0;
};

// Of one backend since it was made; all 0 for a backend that is not made here.
struct GpuGraphCounts {
  int64_t plain = 0;     // steps that could have been replayed, and were launched
  int64_t recorded = 0;  // recordings made
  int64_t replayed = 0;
  int64_t refused = 0;  // recordings that failed; their steps are launched for good
};
GpuGraphCounts GpuGraphCountsOf(Backend& backend);

// FAILED_PRECONDITION (DEVICE_UNSUPPORTED) where there is no such device, no driver, or no kernels for it in this
// build.
absl::StatusOr<std::unique_ptr<Backend>> MakeGpuBackend(const GpuBackendOptions& options);

// What this build's GPU sources run on: "gpu", or "host" for the executor. The name of their backend.
std::string_view GpuBackendName();

// The stream of a backend made here. INVALID_ARGUMENT for any other backend.
absl::StatusOr<gpu::Stream> GpuStreamOf(Backend& backend);

// Runs `issue` for a thread and a stream that are somebody else's: what it issues runs behind what `stream` has (a
// hipStream_t or cudaStream_t of the backend's device; null: its default stream) and before what that is given next,
// and the thread's device is afterwards what it was. Nothing waits. Of the one thread at a time that issues operators.
// INVALID_ARGUMENT for a backend that was not made here and for a stream that is captured into a graph; `issue` has not
// run then, and nothing was given to either stream.
absl::Status GpuIssueInOrderOf(Backend& backend, void* stream, absl::FunctionRef<absl::Status()> issue);

}  // namespace gdn
