// One accumulator vector an output element: lane l sums features l, l + N, l + 2N, ... in order, and one reduction ends
// it. Tiles of kTileOutputs x kTileRows elements share the loads of W and x; the tile an element falls into does not
// touch its sum. Where x has many rows, features come in parts, and accumulators lie in memory between two parts. Then
// a tile's part of x stays in the first-level cache while W passes.

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/common/parallel.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/projection/projection_paths.h"
#include "kernels/projection/quantized_functions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/projection/projection_row_stable_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/common/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

// Storage types of the weights; the enum alone cannot tell two 16-bit types apart at compile time.
struct StoredF32 {
  using Bits = float;
};
struct StoredBF16 {
  using Bits = uint16_t;
};
struct StoredF16 {
  using Bits = uint16_t;
};

// A vector of N weights as float32. Exact: every BF16 and F16 value is a float32 value.
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(StoredF32, D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(StoredBF16, D d, const uint16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(StoredF16, D d, const uint16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> half;
  return hn::PromoteTo(d, hn::BitCast(half, hn::LoadU(d16, p)));
}

// Rows from which the library GEMM is faster. With 32 registers it never was, up to the longest prefill segment (100
// GFLOP/s a core against 95 at 512 rows, 110 against 70 at 64); with 16 it is from about 40 rows on (70 GFLOP/s against
// 95 at most).
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr int64_t kTileRows = 6;
constexpr int64_t kTileOutputs = 4;  // 24 accumulators, 4 of W and one of x: 29 of 32 registers
constexpr int64_t kGemmFromRows = 1024;
#else
constexpr int64_t kTileRows = 4;
constexpr int64_t kTileOutputs = 3;  // 12, 3 and one: all 16
constexpr int64_t kGemmFromRows = 40;
#endif

// Features that a tile of rows multiplies at a time, a multiple of every vector's lanes: so its part of x takes at most
// 12 KB.
constexpr int64_t kPartFeatures = 512;

HWY_INLINE int64_t PaddedColumns(int64_t cols) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  return (cols + lanes - 1) / lanes * lanes;
}

// Copies x, widened, as the tiles read it: tile by tile of tile_rows rows (the last may have fewer), in one vector by
// vector the same columns of each row, zero-padded to whole vectors. Rows a power of two apart would fight for the same
// cache sets.
template <class Stored>
HWY_INLINE void PackStored(const ProjectionParams& params, int64_t tile_rows, float* packed) {
  using Bits = typename Stored::Bits;
  const hn::ScalableTag<float> d;
  const auto* x = static_cast<const Bits*>(params.x.data);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const int64_t cols = params.weight.cols;
  for (int64_t first = 0; first < params.rows; first += tile_rows) {
    const int64_t rows = HWY_MIN(tile_rows, params.rows - first);
    for (int64_t c = 0; c < cols; c += lanes) {
      const int64_t count = HWY_MIN(lanes, cols - c);
      for (int64_t r = 0; r < rows; ++r, packed += lanes) {
        const Bits* from = x + (first + r) * params.x_stride + c;
        if (count == lanes) {
          hn::StoreU(LoadWide(Stored(), d, from), d, packed);
        } else {
          HWY_ALIGN Bits tail[hn::MaxLanes(d)] = {};  // a vector load would read past x's end
          std::memcpy(tail, from, count * sizeof(Bits));
          hn::StoreU(LoadWide(Stored(), d, tail), d, packed);
        }
      }
    }
  }
}

// `tile_rows`: 0 for ProjectRows' own.
void PackRows(const ProjectionParams& params, int64_t tile_rows, float* packed) {
  if (tile_rows == 0) tile_rows = kTileRows;
  switch (params.x.dtype) {
    case DType::kF32:
      return PackStored<StoredF32>(params, tile_rows, packed);
    case DType::kBF16:
      return PackStored<StoredBF16>(params, tile_rows, packed);
    case DType::kF16:
      return PackStored<StoredF16>(params, tile_rows, packed);
  }
}

// Asks for the same columns of the tile after this one. Several short streams that each begin anew on a page every few
// hundred vectors leave the hardware's prefetcher behind: without this one row reads W at two thirds of the speed, and
// two rows of BF16 at half. The address may lie past the matrix, hence the integer.
HWY_INLINE void PrefetchToL2(const void* base, int64_t bytes) {
  constexpr int kRead = 0;
  constexpr int kKeepInL2 = 2;
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(base) + bytes), kRead, kKeepInL2);
}

// Features [begin, end) of a tile's sums; begin is a multiple of a vector's lanes, and so is end unless it is cols.
// Between the parts the accumulators lie in `kept`. Null if there is one part.
struct FeaturePart {
  int64_t begin, end;
  float* kept;
};

// y[r][o], once the part is the last, for kOutputs rows of W from `w` on and kRows adjacent rows of a packed tile of
// tile_rows.
template <int kOutputs, int kRows, class Stored, typename Bits = typename Stored::Bits>
HWY_NOINLINE void ProjectTile(const Bits* w, int64_t cols, const float* x, int64_t tile_rows, const FeaturePart& part,
                              float* y, int64_t y_stride) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = HWY_MIN(part.end, cols - cols % lanes);
  V sums[kOutputs][kRows];
  // The accumulators stay in registers only if every loop over them is unrolled, which -O2 does not do by itself.
  const auto multiply_add = [&sums, d](const V* ws, const float* xs) HWY_ATTR {
    const int64_t n = static_cast<int64_t>(hn::Lanes(d));
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
      const V xv = hn::LoadU(d, xs + r * n);
      HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) sums[o][r] = hn::MulAdd(ws[o], xv, sums[o][r]);
    }
  };
  if (part.begin == 0) {
    HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) {
      HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) sums[o][r] = hn::Zero(d);
    }
  } else {
    HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) {
      HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) sums[o][r] = hn::Load(d, part.kept + (o * kRows + r) * lanes);
    }
  }
  x += part.begin * tile_rows;
  V ws[kOutputs];
  for (int64_t c = part.begin; c < whole; c += lanes, x += tile_rows * lanes) {
    HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) {
      ws[o] = LoadWide(Stored(), d, w + o * cols + c);
      PrefetchToL2(w, ((o + kOutputs) * cols + c) * static_cast<int64_t>(sizeof(Bits)));
    }
    multiply_add(ws, x);
  }
  if (part.end != cols) {
    HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) {
      HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) hn::Store(sums[o][r], d, part.kept + (o * kRows + r) * lanes);
    }
    return;
  }
  if (whole != cols) {
    HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) {
      HWY_ALIGN Bits tail[hn::MaxLanes(d)] = {};  // a vector load from the matrix would read past its end
      std::memcpy(tail, w + o * cols + whole, (cols - whole) * sizeof(Bits));
      ws[o] = LoadWide(Stored(), d, tail);
    }
    multiply_add(ws, x);
  }
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) y[r * y_stride + o] = hn::GetLane(hn::SumOfLanes(d, sums[o][r]));
  }
}

// A packed tile of `rows` rows, kRows at most, against kTileOutputs rows of W.
template <class Stored, int kRows = kTileRows, typename Bits = typename Stored::Bits>
HWY_INLINE void ProjectRowsOfTile(const Bits* w, int64_t cols, const float* x, int64_t rows, const FeaturePart& part,
                                  float* y, int64_t y_stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return ProjectRowsOfTile<Stored, kRows - 1>(w, cols, x, rows, part, y, y_stride);
  }
  ProjectTile<kTileOutputs, kRows, Stored>(w, cols, x, rows, part, y, y_stride);
}

// Output features [begin, end), row r's to y + r * y_stride. Few rows stay in the second-level cache while W passes
// once, in long streams. Of more rows W stays there, and each tile of them passes once.
template <class Stored>
HWY_INLINE void ProjectBlock(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, float* y,
                             int64_t y_stride) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const int64_t cols = params.weight.cols;
  const auto* weight = static_cast<const typename Stored::Bits*>(params.weight.data);
  constexpr int64_t kKept = kTileOutputs * kTileRows * hn::MaxLanes(hn::ScalableTag<float>());
  HWY_ALIGN float kept[kMostOutputsPerTask / kTileOutputs * kKept];  // of a tile of rows
  const int64_t tiled_end = end - (end - begin) % kTileOutputs;
  const auto project = [&](int64_t o, int64_t row, int64_t from, int64_t to) HWY_ATTR {
    ProjectRowsOfTile<Stored>(
        weight + o * cols, cols, packed + row * PaddedColumns(cols), HWY_MIN(kTileRows, params.rows - row),
        {from, to, kept + (o - begin) / kTileOutputs * kKept}, y + row * y_stride + (o - begin), y_stride);
  };
  constexpr int64_t kFewTiles = sizeof(typename Stored::Bits) == 2 ? 8 : 4;  // of rows
  if (params.rows <= kFewTiles * kTileRows) {
    for (int64_t o = begin; o < tiled_end; o += kTileOutputs) {
      for (int64_t row = 0; row < params.rows; row += kTileRows) project(o, row, 0, cols);
    }
  } else {
    for (int64_t row = 0; row < params.rows; row += kTileRows) {
      for (int64_t c = 0; c < cols; c += kPartFeatures) {
        for (int64_t o = begin; o < tiled_end; o += kTileOutputs) project(o, row, c, HWY_MIN(c + kPartFeatures, cols));
      }
    }
  }
  // The last few outputs one by one: real layers have none, so they get no tiles of their own.
  for (int64_t o = tiled_end; o < end; ++o) {
    for (int64_t row = 0; row < params.rows; ++row) {
      const int64_t tile = row - row % kTileRows;
      ProjectTile<1, 1, Stored>(weight + o * cols, cols, packed + tile * PaddedColumns(cols) + (row - tile) * lanes,
                                HWY_MIN(kTileRows, params.rows - tile), {0, cols, nullptr},
                                y + row * y_stride + (o - begin), y_stride);
    }
  }
}

void ProjectRows(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, float* y,
                 int64_t y_stride) {
  switch (WidenedDType(params.weight.format)) {
    case DType::kF32:
      return ProjectBlock<StoredF32>(params, packed, begin, end, y, y_stride);
    case DType::kBF16:
      return ProjectBlock<StoredBF16>(params, packed, begin, end, y, y_stride);
    case DType::kF16:
      return ProjectBlock<StoredF16>(params, packed, begin, end, y, y_stride);
  }
}

int64_t ChosenGemmFromRows() { return kGemmFromRows; }

template <class Stored>
HWY_INLINE void Widen(const void* src, int64_t count, float* dst) {
  const auto* from = static_cast<const uint16_t*>(src);
  ForVectors(count, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(LoadWide(Stored(), d, from + i), d, dst + i); });
}

void WidenElements(bool bf16, const void* src, int64_t count, float* dst) {
  if (bf16) {
    Widen<StoredBF16>(src, count, dst);
  } else {
    Widen<StoredF16>(src, count, dst);
  }
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
namespace {

constexpr int64_t kMultiplyAddsPerWork = 8;
constexpr int64_t kMaxPadding = 64;  // floats; at least one vector of the widest target

// Rows of a matrix that are widened at a time: a multiple of every kTileOutputs, of some 1 MB, so that many rows of x
// pass seldom.
int64_t WidenedOutputs(int64_t cols) { return std::clamp<int64_t>(262144 / cols / 12 * 12, 12, kMostOutputsPerTask); }

// Rows of x from which widening 16-bit weights once costs less than to do it for each tile of rows.
constexpr int64_t kWidenFromRows = 96;

}  // namespace

HWY_EXPORT(ChosenGemmFromRows);
HWY_EXPORT(PackRows);
HWY_EXPORT(ProjectRows);
HWY_EXPORT(WidenElements);

namespace {

// A matrix as a float32 one, some rows at a time, in `scratch`.
void ProjectWidened(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, float* scratch,
                    float* y, int64_t y_stride) {
  const WeightMatrix& weight = params.weight;
  ProjectionParams widened = params;
  for (int64_t first = begin; first < end; first += WidenedOutputs(weight.cols)) {
    const int64_t count = std::min(WidenedOutputs(weight.cols), end - first);
    WidenWeightRows(weight, first, count, scratch);
    widened.weight = PlainMatrix(DType::kF32, scratch, count, weight.cols);
    HWY_DYNAMIC_DISPATCH(ProjectRows)(widened, packed, 0, count, y + (first - begin), y_stride);
  }
}

bool TakesGemm(const ProjectionParams& params) {
  return params.path == ProjectionPath::kSequenceGemm && params.rows >= HWY_DYNAMIC_DISPATCH(ChosenGemmFromRows)();
}

// How a projection's outputs are summed, and the scratch for it.
struct RowStablePlan {
  RowStablePlan(const ProjectionParams& params, int threads)
      : in_registers(DecodesInRegisters(params.weight, params.rows)),
        widen(IsPlain(params.weight.format)
                  ? params.weight.format != WeightFormat::kF32 && params.rows >= kWidenFromRows
                  : !in_registers),
        narrow(params.y.dtype != DType::kF32),
        outputs_per_task(in_registers ? StreamedOutputs(params.weight, threads)
                                      : OutputsPerTask(params.rows, params.weight.rows, threads)) {}

  int64_t PackedFloats(const ProjectionParams& params) const {
    return params.rows * (params.weight.cols + kMaxPadding);
  }
  // The next two are for one worker.
  int64_t SumFloats(const ProjectionParams& params) const { return narrow ? params.rows * outputs_per_task : 0; }
  int64_t WidenedFloats(const ProjectionParams& params) const {
    return widen ? std::min(WidenedOutputs(params.weight.cols), outputs_per_task) * params.weight.cols : 0;
  }

  const bool in_registers, widen, narrow;
  const int64_t outputs_per_task;
};

}  // namespace

int64_t ScratchFloats(const ProjectionParams& params, int threads) {
  if (params.rows == 0 || params.weight.rows == 0) return 0;
  if (TakesInt8Inputs(params.math, params.weight.format)) return Int8ScratchFloats(params, threads);
  if (TakesGemm(params)) return 0;
  const RowStablePlan plan(params, threads);
  return WorkerScratch::Floats(/*workers=*/1, plan.PackedFloats(params)) +
         WorkerScratch::Floats(threads, plan.SumFloats(params)) +
         WorkerScratch::Floats(threads, plan.WidenedFloats(params));
}

absl::Status ProjectionCpu(const ProjectionParams& params, ThreadPool& pool) {
  if (params.rows == 0 || params.weight.rows == 0) return absl::OkStatus();
  if (TakesInt8Inputs(params.math, params.weight.format)) return ProjectInt8(params, pool);
  if (TakesGemm(params)) return ProjectSequenceGemm(params, pool);
  const int64_t outputs = params.weight.rows;
  const int64_t cols = params.weight.cols;
  const RowStablePlan plan(params, pool.threads());
  GDN_ASSIGN_OR_RETURN(WorkerScratch packed, WorkerScratch::Make(/*workers=*/1, plan.PackedFloats(params)));
  GDN_ASSIGN_OR_RETURN(WorkerScratch sums, WorkerScratch::Make(pool.threads(), plan.SumFloats(params)));
  GDN_ASSIGN_OR_RETURN(WorkerScratch widened, WorkerScratch::Make(pool.threads(), plan.WidenedFloats(params)));
  HWY_DYNAMIC_DISPATCH(PackRows)(params, plan.in_registers ? QuantizedTileRows() : 0, packed.piece(0));
  const int64_t outputs_per_task = plan.outputs_per_task;
  const int64_t tasks = (outputs + outputs_per_task - 1) / outputs_per_task;
  ParallelForWork(pool, params.rows * outputs * cols / kMultiplyAddsPerWork, tasks, [&](int64_t task, int worker) {
    const int64_t begin = task * outputs_per_task;
    const int64_t end = std::min(outputs, begin + outputs_per_task);
    float* y = plan.narrow ? sums.piece(worker) : params.y.floats() + begin;
    const int64_t y_stride = plan.narrow ? outputs_per_task : params.y_stride;
    if (plan.in_registers) {
      ProjectQuantizedRows(params.weight, params.rows, packed.piece(0), begin, end, y, y_stride);
    } else if (plan.widen) {
      ProjectWidened(params, packed.piece(0), begin, end, widened.piece(worker), y, y_stride);
    } else {
      HWY_DYNAMIC_DISPATCH(ProjectRows)(params, packed.piece(0), begin, end, y, y_stride);
    }
    if (plan.narrow) NarrowRows(params, y, y_stride, begin, end);
  });
  return absl::OkStatus();
}

// Quantised rows are read as kStreams streams, each a part of the task's rows: longer ones the more rows a task has, as
// long as all threads have some. The streams begin at different places of their pages: the processor fetches ahead
// within a page, and streams that enter their pages together wait together.
int64_t StreamedOutputs(const WeightMatrix& weight, int threads) {
  constexpr int64_t kStreams = kQuantizedStreams;
  constexpr int64_t kPage = 4096;
  constexpr int64_t kFewest = 8;  // rows of a stream
  constexpr int64_t kMost = 128;
  constexpr int64_t kTasksOfThread = 4;
  const int64_t even = std::clamp(weight.rows / (kTasksOfThread * threads * kStreams), kFewest, kMost);
  for (int64_t rows = even; rows >= kFewest; --rows) {
    const int64_t into_page = rows * RowBytes(weight.format, weight.cols) % kPage;
    if (into_page >= kPage / 4 && into_page <= kPage - kPage / 4) return rows * kStreams;
  }
  return even * kStreams;
}

int64_t OutputsPerTask(int64_t rows, int64_t outputs, int threads) {
  constexpr int64_t kFewest = 36;  // a multiple of every kTileOutputs
  constexpr int64_t kFewRows = 24;
  constexpr int64_t kTasksOfThread = 4;
  if (rows <= kFewRows) return kFewest;
  return std::clamp(outputs / (kTasksOfThread * threads) / 12 * 12, kFewest, kMostOutputsPerTask);
}

int64_t SequenceGemmStableRows() { return HWY_DYNAMIC_DISPATCH(ChosenGemmFromRows)() - 1; }

void NarrowRows(const ProjectionParams& params, const float* sums, int64_t stride, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < params.rows; ++row) {
    ConvertFromFloat(sums + row * stride, static_cast<size_t>(end - begin), params.y.dtype,
                     params.y.From(row * params.y_stride + begin).data);
  }
}

void WidenToFloat(DType dtype, const void* src, int64_t count, float* dst) {
  HWY_DYNAMIC_DISPATCH(WidenElements)(dtype == DType::kBF16, src, count, dst);
}

}  // namespace gdn
#endif  // HWY_ONCE
