// The sequence GEMM path of the CPU projection: oneDNN, over fixed tiles.

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/projection/projection_paths.h"

namespace gdn {
namespace {

constexpr int64_t kOutputsPerTile = 256;

// Holds oneDNN at the calling thread while in scope: tiles are spread over our own pool, so no OpenMP team is ever
// started and the result cannot depend on a thread count.
class SingleOpenMpThread {
 public:
  SingleOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleOpenMpThread() { omp_set_num_threads(before_); }
  SingleOpenMpThread(const SingleOpenMpThread&) = delete;
  SingleOpenMpThread& operator=(const SingleOpenMpThread&) = delete;

 private:
  int before_;
};

absl::Status GemmError(dnnl_status_t status) {
  if (status == dnnl_out_of_memory) {
    return absl::ResourceExhaustedError(
        "Projection: oneDNN's sgemm had no memory; free memory or send fewer tokens a call");
  }
  return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                   absl::StrCat("Projection: oneDNN's sgemm failed with status ", static_cast<int>(status)));
}

}  // namespace

absl::Status ProjectSequenceGemm(const ProjectionParams& params, ThreadPool& pool) {
  const WeightMatrix& weight = params.weight;
  const bool widen = weight.format != WeightFormat::kF32;
  const int64_t tile_outputs = std::min(kOutputsPerTile, weight.rows);
  GDN_ASSIGN_OR_RETURN(WorkerScratch scratch,
                       WorkerScratch::Make(pool.threads(), widen ? tile_outputs * weight.cols : 0));
  // oneDNN reads and writes float32.
  const bool narrow = params.y.dtype != DType::kF32;
  GDN_ASSIGN_OR_RETURN(WorkerScratch sums,
                       WorkerScratch::Make(pool.threads(), narrow ? params.rows * tile_outputs : 0));
  const bool widen_x = params.x.dtype != DType::kF32;
  GDN_ASSIGN_OR_RETURN(WorkerScratch wide_x,
                       WorkerScratch::Make(/*workers=*/1, widen_x ? params.rows * weight.cols : 0));
  const float* x = params.x.floats();
  int64_t x_stride = params.x_stride;
  if (widen_x) {
    x = wide_x.piece(0);
    x_stride = weight.cols;
    for (int64_t row = 0; row < params.rows; ++row) {
      WidenToFloat(params.x.dtype, params.x.From(row * params.x_stride).data, weight.cols,
                   wide_x.piece(0) + row * x_stride);
    }
  }

  std::atomic<dnnl_status_t> failure{dnnl_success};
  const int64_t tiles = (weight.rows + kOutputsPerTile - 1) / kOutputsPerTile;
  pool.ParallelFor(tiles, [&](int64_t tile, int worker) {
    const SingleOpenMpThread single_thread;
    const int64_t first = tile * kOutputsPerTile;
    const int64_t outputs = std::min(kOutputsPerTile, weight.rows - first);
    const float* w = scratch.piece(worker);
    if (widen) {
      WidenWeightRows(weight, first, outputs, scratch.piece(worker));
    } else {
      w = static_cast<const float*>(weight.data) + first * weight.cols;
    }
    // Row-major: y [rows, outputs] = 1 * x [rows, cols] w^T + 0 * y; with beta = 0 oneDNN does not read y.
    float* y = narrow ? sums.piece(worker) : params.y.floats() + first;
    const dnnl_status_t status = dnnl_sgemm('N', 'T', params.rows, outputs, weight.cols, 1.0f, x, x_stride, w,
                                            weight.cols, 0.0f, y, narrow ? tile_outputs : params.y_stride);
    if (status != dnnl_success) failure.store(status, std::memory_order_relaxed);
    if (narrow) NarrowRows(params, y, tile_outputs, first, first + outputs);
  });
  const dnnl_status_t status = failure.load(std::memory_order_relaxed);
  return status == dnnl_success ? absl::OkStatus() : GemmError(status);
}

std::string SequenceGemmId() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrCat("dnnl", version->major, ".", version->minor, ".", version->patch, "-isa",
                      absl::Hex(static_cast<unsigned>(dnnl_get_effective_cpu_isa())));
}

}  // namespace gdn
