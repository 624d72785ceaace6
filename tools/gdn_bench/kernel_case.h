// One thing that `gdn_bench kernel` times: what it costs at the least, and how to run it.
//
// Thread safety: plain values; a prepared case is for one thread. Ownership: `run` keeps alive whatever memory it works
// on.
//
//   for (const KernelCase& c : AllKernelCases()) { GDN_ASSIGN_OR_RETURN(PreparedCase p, c.prepare(backend)); ...
//   p.run(); }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/layer_dims.h"
#include "kernels/backend.h"
#include "tools/gdn_bench/cost.h"

namespace gdn::bench {

struct PreparedCase {
  Cost cost;                     // of one step
  int64_t steps = 1;             // of one run(): once around the slots or weights it rotates over
  double working_set_bytes = 0;  // what one run() touches
  std::function<absl::Status()> run;
};

struct KernelCase {
  std::string name;  // "decode_deferred/B=8"
  std::function<absl::StatusOr<PreparedCase>(Backend&)> prepare;
};

// Dimensions of a Qwen3-Next layer: H = 16, HV = 32, K = V = 128, and for the layer W = 4, D = 2048.
LayerDims BenchOperatorDims();
LayerDims BenchLayerDims();

// decode_deferred, decode_in_place, prefill_scan, prefill_chunk; projection_*; layer_*: in the order they are reported.
std::vector<KernelCase> OperatorCases();
std::vector<KernelCase> ProjectionCases();
std::vector<KernelCase> LayerCases();

// Bytes that a memory-bound case rotates over: kColdFactor last-level caches, at most 768 MiB.
int64_t RotationBytes();

// Backend memory filled with `count` numbers in [low, high), rounded to `dtype`; the same ones on every run. Memory
// that was never written would be read from one cached page of zeros.
absl::StatusOr<std::shared_ptr<DeviceBuffer>> RandomBuffer(Backend& backend, int64_t count, float low, float high,
                                                           DType dtype = DType::kF32);

// A pool of `slots` slots of random state with logs that may be folded at once (their log decays are not positive).
struct RandomStatePool {
  std::shared_ptr<DeviceBuffer> memory;
  StatePoolView view;
};
absl::StatusOr<RandomStatePool> MakeStatePool(Backend& backend, const LayerDims& dims, int32_t slots);

}  // namespace gdn::bench
