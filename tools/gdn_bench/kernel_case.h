// One thing that `gdn_bench kernel` times: what it costs at the least, and how to run it.
//
// Thread safety: plain values; a prepared case is for one thread. Ownership: `run` keeps alive whatever memory it works
// on.
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
#include "tools/gdn_bench/cost.h"

namespace gdn::bench {

struct PreparedCase {
  Cost cost;                     // of one step
  int64_t steps = 1;             // of one run(): once around the slots or weights it rotates over
  double working_set_bytes = 0;  // what one run() touches
  // Issues the work and returns; waiting for it is the caller's. Host arrays that change from run to run come round
  // after L (kLogCapacity) of them, unless every_run_differs.
  std::function<absl::Status()> run;
  bool every_run_differs = false;  // no recording of one run stands for the next
};

// Where a case is prepared. The backend must outlive the prepared case.
struct CaseSetting {
  Backend& backend;
  int64_t rotation_bytes = 0;       // that a memory-bound case takes turns over, so that none of it is found in a cache
  DType state_dtype = DType::kF32;  // of the states' bases
};

struct KernelCase {
  std::string name;  // "decode_deferred/B=8"
  std::function<absl::StatusOr<PreparedCase>(const CaseSetting&)> prepare;
};

// Dimensions of a Qwen3-Next layer: H = 16, HV = 32, K = V = 128, and for the layer W = 4, D = 2048.
LayerDims BenchOperatorDims();
LayerDims BenchLayerDims();

// A GPU's list has the batches that it takes to fill one.
enum class CaseList { kCpu, kGpu };

// decode_deferred, decode_in_place, prefill_scan, prefill_chunk; projection_*; layer_*: in the order they are reported.
std::vector<KernelCase> OperatorCases(CaseList list);
std::vector<KernelCase> ProjectionCases(CaseList list);
std::vector<KernelCase> LayerCases(CaseList list);

// Single ones of LayerCases, of any size.
KernelCase LayerDecodeCase(int32_t batch);
KernelCase LayerPrefillCase(int32_t sequences, int32_t tokens_each);

// A layer's decode as the server launches it, two launches under way: BF16 rows and index arrays that no launch has had
// before go to the device in one copy from page-locked memory, and BF16 outputs come back.
KernelCase ServedDecodeCase(const LayerDims& dims, int32_t batch);

// What memory-bound cases rotate over is kColdFactor last-level caches, and at most this.
inline constexpr int64_t kLargestRotation = int64_t{768} << 20;

// Backend memory filled with `count` numbers in [low, high), rounded to `dtype`; the same ones on every run. Memory
// that was never written would be read from one cached page of zeros.
absl::StatusOr<std::shared_ptr<DeviceBuffer>> RandomBuffer(Backend& backend, int64_t count, float low, float high,
                                                           DType dtype = DType::kF32);

// A pool of `slots` slots of random state with logs that may be folded at once (their log decays are not positive).
struct RandomStatePool {
  std::shared_ptr<DeviceBuffer> memory;
  StatePoolView view;
};
inline constexpr int32_t kBenchMaxDraft = 8;
absl::StatusOr<RandomStatePool> MakeStatePool(Backend& backend, const LayerDims& dims, int32_t slots, DType base_dtype,
                                              int32_t max_draft = kBenchMaxDraft);

}  // namespace gdn::bench
