// A case of `gdn_bench kernel`: its least cost, and how to run it.
//
// Thread safety: plain values; a prepared case is for one thread. Ownership: `run` keeps its memory alive.
//
//   for (const KernelCase& c : OperatorCases(CaseList::kCpu)) {
//     GDN_ASSIGN_OR_RETURN(PreparedCase p, c.prepare(machine.setting()));
//     GDN_RETURN_IF_ERROR(p.run());  // and backend.Synchronize()
//   }
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
#include "kernels/projection/random_weights.h"
#include "tools/gdn_bench/cost.h"

namespace gdn::bench {

struct PreparedCase {
  Cost cost;                     // least cost of one step
  int64_t steps = 1;             // number of steps of one run(), which rotates once over all slots or weights
  double working_set_bytes = 0;  // bytes that one run() touches
  // Issues the work and returns; the caller must wait for it. Host arrays that change from run to run repeat after
  // L (kLogCapacity) runs, unless every_run_differs.
  std::function<absl::Status()> run;
  bool every_run_differs = false;  // true: a recorded graph of one run cannot replace another run
};

// The backend and parameters that a case is prepared for. The backend must outlive the prepared case.
struct CaseSetting {
  Backend& backend;
  int64_t rotation_bytes = 0;       // bytes that a memory-bound case rotates over, so that no run finds them in a cache
  DType state_dtype = DType::kF32;  // dtype of the states' bases
};

struct KernelCase {
  std::string name;  // "decode_deferred/B=8"
  std::function<absl::StatusOr<PreparedCase>(const CaseSetting&)> prepare;
};

// Dimensions of a Qwen3-Next layer: H = 16, HV = 32, K = V = 128, and for the layer W = 4, D = 2048.
LayerDims BenchOperatorDims();
LayerDims BenchLayerDims();

// kGpu has all cases of kCpu, larger batches and prefills that fill a GPU, and decodes as the server launches them.
enum class CaseList { kCpu, kGpu };

// Return cases in the report's order: the delta rule's (decode_* and prefill_*), the projections' (projection_*), and
// whole layers' (layer_*).
// `math`: that of the backend, which is how layers multiply; other cases say themselves how they do.
std::vector<KernelCase> OperatorCases(CaseList list);
std::vector<KernelCase> ProjectionCases(CaseList list);
std::vector<KernelCase> LayerCases(CaseList list, ProductMath math);

// Make single cases as in LayerCases, of any size.
KernelCase LayerDecodeCase(int32_t batch);
KernelCase LayerPrefillCase(int32_t sequences, int32_t tokens_each);

// A layer's decode as the server launches it, with two launches in flight: new BF16 rows and index arrays are copied to
// the device in one copy from page-locked memory, and BF16 outputs are copied back.
KernelCase ServedDecodeCase(const LayerDims& dims, int32_t batch);

// Memory-bound cases rotate over kColdFactor times the last-level cache, but over at most this many bytes.
inline constexpr int64_t kLargestRotation = int64_t{768} << 20;

// Returns backend memory with `count` numbers from `low` to `high`, rounded to `dtype`, the same on every run. Errors
// of the backend. (Memory that was never written would be read from one cached page of zeros.)
absl::StatusOr<std::shared_ptr<DeviceBuffer>> RandomBuffer(Backend& backend, int64_t count, float low, float high,
                                                           DType dtype = DType::kF32);

// Returns random weights. Those of BF16 are none that keep a matrix from being multiplied as fp16 numbers: tiny beside
// their row's largest.
RandomWeights BenchWeights(WeightFormat format, int64_t rows, int64_t cols, uint32_t seed);
// Returns backend memory with `copies` copies of the matrix, as CopyWeightsIn places them, WeightBytes apart.
absl::StatusOr<std::shared_ptr<DeviceBuffer>> WeightBuffer(Backend& backend, const WeightMatrix& weights,
                                                           int64_t copies);

// Slots of random states, with logs that can be folded (their log decays are not positive). MakeStatePool makes `slots`
// of them, with bases of `base_dtype`. Errors of the backend.
struct RandomStatePool {
  std::shared_ptr<DeviceBuffer> memory;
  StatePoolView view;
};
inline constexpr int32_t kBenchMaxDraft = 8;
absl::StatusOr<RandomStatePool> MakeStatePool(Backend& backend, const LayerDims& dims, int32_t slots, DType base_dtype,
                                              int32_t max_draft = kBenchMaxDraft);

}  // namespace gdn::bench
