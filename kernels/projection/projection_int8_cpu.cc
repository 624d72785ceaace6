// The CPU projection of inputs that are rounded to int8: streams of weights for few rows, tiles of outputs for more.

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/common/parallel.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/projection/int8_functions.h"
#include "kernels/projection/projection_paths.h"

namespace gdn {
namespace {

constexpr int64_t kMultiplyAddsPerInt8Work = 32;
constexpr int64_t kElementsPerRoundingWork = 4;
// Rows that pass a tile of outputs at a time: their sums stay in the second-level cache.
constexpr int64_t kRowsOfPass = 64 * kInt8TileRows;
constexpr int64_t kRowsOfRounding = kInt8TileRows;

bool TakesStreams(const ProjectionParams& params) { return params.rows <= MostInt8StreamedRows(params); }

// How many floats of scratch a projection takes: a copy of x, and for each worker sums and a tile of weights.
struct Int8Plan {
  Int8Plan(const ProjectionParams& params, int threads) : streams(TakesStreams(params)) {
    if (streams) {
      outputs_of_task = StreamedOutputs(params.weight, threads);
      packed = Int8StreamsFloats(params);
      sums = params.y.dtype == DType::kF32 ? 0 : params.rows * outputs_of_task;
    } else {
      outputs_of_task = kInt8TileOutputs;
      packed = Int8TilesFloats(params);
      sums = std::min(params.rows, kRowsOfPass) * kInt8TileOutputs;
      tile = Int8TileScratchFloats();
    }
  }

  bool streams;
  int64_t outputs_of_task;
  int64_t packed;
  int64_t sums;  // of one worker, as is `tile`
  int64_t tile = 0;
};

// Stores sums of rows [begin, end).
void StoreRows(const ProjectionParams& params, const float* sums, int64_t begin, int64_t end, int64_t output) {
  ProjectionParams part = params;
  part.rows = end - begin;
  part.y = params.y.From(begin * params.y_stride);
  NarrowRows(part, sums, kInt8TileOutputs, output, std::min(output + kInt8TileOutputs, params.weight.rows));
}

}  // namespace

int64_t Int8ScratchFloats(const ProjectionParams& params, int threads) {
  const Int8Plan plan(params, threads);
  return WorkerScratch::Floats(/*workers=*/1, plan.packed) + WorkerScratch::Floats(threads, plan.sums) +
         WorkerScratch::Floats(threads, plan.tile);
}

absl::Status ProjectInt8(const ProjectionParams& params, ThreadPool& pool) {
  const int64_t outputs = params.weight.rows;
  const Int8Plan plan(params, pool.threads());
  GDN_ASSIGN_OR_RETURN(WorkerScratch packed, WorkerScratch::Make(/*workers=*/1, plan.packed));
  GDN_ASSIGN_OR_RETURN(WorkerScratch sums, WorkerScratch::Make(pool.threads(), plan.sums));
  GDN_ASSIGN_OR_RETURN(WorkerScratch tiles, WorkerScratch::Make(pool.threads(), plan.tile));
  float* x = packed.piece(0);
  const int64_t elements = params.rows * params.weight.cols;
  if (plan.streams) {
    RoundInt8Streams(params, x);
  } else {
    ParallelForRows(pool, elements / kElementsPerRoundingWork, params.rows, kRowsOfRounding,
                    [&](int64_t begin, int64_t end) { RoundInt8Tiles(params, begin, end, x); });
  }
  const int64_t tasks = (outputs + plan.outputs_of_task - 1) / plan.outputs_of_task;
  ParallelForWork(pool, elements * outputs / kMultiplyAddsPerInt8Work, tasks, [&](int64_t task, int worker) {
    const int64_t output = task * plan.outputs_of_task;
    if (plan.streams) {
      const int64_t end = std::min(outputs, output + plan.outputs_of_task);
      const bool narrow = plan.sums != 0;
      float* y = narrow ? sums.piece(worker) : params.y.floats() + output;
      const int64_t stride = narrow ? plan.outputs_of_task : params.y_stride;
      ProjectInt8Streams(params, x, output, end, y, stride);
      if (narrow) NarrowRows(params, y, stride, output, end);
      return;
    }
    for (int64_t begin = 0; begin < params.rows; begin += kRowsOfPass) {
      const int64_t end = std::min(params.rows, begin + kRowsOfPass);
      ProjectInt8Tile(params, x, begin, end, output, sums.piece(worker), tiles.piece(worker));
      StoreRows(params, sums.piece(worker), begin, end, output);
    }
  });
  return absl::OkStatus();
}

}  // namespace gdn
