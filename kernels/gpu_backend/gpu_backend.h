// The GPU backend: states, weights and activations in device memory, and one stream of work for the engine thread. The
// same class runs on AMD, on NVIDIA and on the host executor; the build of the GPU sources decides which.
//
// Inputs and outputs pass through page-locked staging memory; everything else stays on the device. Slots store the base
// as [HV, V, K] (K contiguous); kernels/slot_codec.h converts it to wire order.
// Thread safety: see Backend. Ownership: owns its stream, staging memory and workspace.
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

// Recording and replay of decode steps. kAuto: on if a measurement at startup shows that replays are more than 10%
// faster; off on the host executor.
enum class GpuGraphs : uint8_t { kAuto, kOn, kOff };
// Parses "auto", "on" or "off"; nullopt for other texts.
inline std::optional<GpuGraphs> ParseGpuGraphs(std::string_view text) {
  if (text == "auto") return GpuGraphs::kAuto;
  if (text == "on") return GpuGraphs::kOn;
  if (text == "off") return GpuGraphs::kOff;
  return std::nullopt;
}

struct GpuBackendOptions {
  int device = 0;  // from 0, among the devices that HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES leaves visible
  GpuGraphs graphs = GpuGraphs::kAuto;
  ProductMath math = ProductMath::kExact;
  bool matrix_units = true;  // use the device's, if it has any; else float32 FMAs, as gfx906 does
  // Bytes of the page-locked ring (a multiple of 1024), and initial bytes of the index array arena on the device, which
  // grows. 0: the defaults, 16 MiB and 1 MiB. Tests set small sizes to fill them soon.
  size_t pinned_ring_bytes = 0;
  size_t index_arena_bytes = 0;
};

// Counts of steps since the backend was made. GpuGraphCountsOf returns them, from any thread; all 0 if MakeGpuBackend
// did not make the backend.
struct GpuGraphCounts {
  int64_t plain = 0;     // replayable steps that were launched kernel by kernel
  int64_t recorded = 0;  // recordings made
  int64_t replayed = 0;
  int64_t refused = 0;  // recordings that failed; their steps are never recorded again
};
GpuGraphCounts GpuGraphCountsOf(Backend& backend);

// Makes a backend for one device. FAILED_PRECONDITION (DEVICE_UNSUPPORTED) if the device or driver is missing, or this
// build has no kernels for the device. RESOURCE_EXHAUSTED if device or page-locked memory is short.
absl::StatusOr<std::unique_ptr<Backend>> MakeGpuBackend(const GpuBackendOptions& options);

// Returns the name of this build's GPU backend: "gpu", also in a build without GPU kernels, or "host" if GPU sources
// run on the host executor.
std::string_view GpuBackendName();

// Returns the stream on which a backend from MakeGpuBackend issues its operators; the backend owns it. INVALID_ARGUMENT
// for any other backend.
absl::StatusOr<gpu::Stream> GpuStreamOf(Backend& backend);

// Runs `issue` in the order of another stream (a hipStream_t or cudaStream_t of the backend's device; null: its default
// stream). The work that `issue` issues runs after the work already in `stream` and before work given to it later. Does
// not wait; restores the thread's current device. Call from the one thread that issues operators. INVALID_ARGUMENT for
// a backend not from MakeGpuBackend, and for a stream that is being captured into a graph; then `issue` has not run and
// neither stream has changed.
absl::Status GpuIssueInOrderOf(Backend& backend, void* stream, absl::FunctionRef<absl::Status()> issue);

}  // namespace gdn
