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

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct GpuBackendOptions {
  int device = 0;  // among those that HIP_VISIBLE_DEVICES leaves
};

// FAILED_PRECONDITION (DEVICE_UNSUPPORTED) where there is no such device, no driver, or no kernels for it in this
// build.
absl::StatusOr<std::unique_ptr<Backend>> MakeGpuBackend(const GpuBackendOptions& options);

// What this build's GPU sources run on: "gpu", or "host" for the executor. The name of their backend.
std::string_view GpuBackendName();

// The stream of a backend made here. INVALID_ARGUMENT for any other backend.
absl::StatusOr<gpu::Stream> GpuStreamOf(Backend& backend);

}  // namespace gdn
