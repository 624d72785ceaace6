// Products with quantised weights that are decoded in registers, for the sources that are compiled once for
// each Highway target: projection_quantized_blocks32_cpu.cc and projection_quantized_blocks256_cpu.cc, which divide the
// formats between them to compile side by side. The guard toggles.
//
// A sum is projection_row_stable_cpu.cc's over the float32 weights: lane l adds features l, l + N, ... in order.
#if defined(GDN_KERNELS_PROJECTION_PROJECTION_QUANTIZED_CPU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_PROJECTION_PROJECTION_QUANTIZED_CPU_INL_H_
#undef GDN_KERNELS_PROJECTION_PROJECTION_QUANTIZED_CPU_INL_H_
#else
#define GDN_KERNELS_PROJECTION_PROJECTION_QUANTIZED_CPU_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/projection/projection_paths.h"
#include "kernels/projection/quantized_weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

inline constexpr int kTileOutputs = kQuantizedStreams;

// The places of a quantised matrix's rows.
template <WeightFormat kFormat>
struct QuantizedRows {
  using Format = QuantizedFormat<kFormat>;
  static constexpr int64_t kWeights = Format::kGroups * Format::kPhases * kChunk;
  static constexpr int64_t kBytes = RowBytes(kFormat, kWeights);

  explicit QuantizedRows(const WeightMatrix& weight)
      : data(static_cast<const uint8_t*>(weight.data)),
        scales(weight.scales),
        row_bytes(RowBytes(kFormat, weight.cols)),
        row_scales(Fp8Blocks(weight.cols)) {}

  const uint8_t* Row(int64_t row) const { return data + row * row_bytes; }
  // A row's first scale; null if the blocks have their own.
  const float* Scale(int64_t row) const {
    return kFormat == WeightFormat::kF8E4M3 ? scales + row / kFp8Block * row_scales : nullptr;
  }
  static const float* ScaleAt(const float* first, int64_t col) {
    return kFormat == WeightFormat::kF8E4M3 ? first + col / kFp8Block : nullptr;
  }

  const uint8_t* data;
  const float* scales;
  int64_t row_bytes;
  int64_t row_scales;
};

template <class Format, int kPhase = 0>
HWY_INLINE void DecodePhases(const uint8_t* block, const typename Format::Shared& shared, int group, float* out) {
  if constexpr (kPhase < Format::kPhases) {
    FloatVec w[kChunkVectors];
    Format::template Decode<kPhase>(block, shared, group, w);
    HWY_UNROLL(32)
    for (int v = 0; v < kChunkVectors; ++v) hn::StoreU(w[v], FloatTag(), out + v * kFloatLanes);
    DecodePhases<Format, kPhase + 1>(block, shared, group, out + kChunk);
  }
}

template <WeightFormat kFormat>
void DequantizeRowsOf(const WeightMatrix& weight, int64_t first, int64_t count, float* out) {
  using Rows = QuantizedRows<kFormat>;
  using Format = typename Rows::Format;
  const Rows rows(weight);
  for (int64_t row = first; row < first + count; ++row) {
    const uint8_t* block = rows.Row(row);
    const float* scale = rows.Scale(row);
    for (int64_t c = 0; c < weight.cols; c += Rows::kWeights, block += Rows::kBytes) {
      typename Format::Shared shared[1];
      PrepareBlocks<Format>({block}, {Rows::ScaleAt(scale, c)}, shared);
      for (int group = 0; group < Format::kGroups; ++group, out += Format::kPhases * kChunk) {
        DecodePhases<Format>(block, shared[0], group, out);
      }
    }
  }
}

// As the float path's: the address may lie past the matrix, hence the integer.
HWY_INLINE void PrefetchBlock(const uint8_t* block, int64_t bytes) {
  constexpr int64_t kAhead = 2048;
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(block) + kAhead + i), /*rw=*/0,
                       /*locality=*/2);
  }
}

template <class Format, int kOutputs, int kRows, int kPhase = 0>
HWY_INLINE void MultiplyPhases(const uint8_t* const (&blocks)[kOutputs],
                               const typename Format::Shared (&shared)[kOutputs], int group, const float* x,
                               int64_t stride, FloatVec (&sums)[kOutputs][kRows]) {
  if constexpr (kPhase < Format::kPhases) {
    HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) {
      FloatVec w[kChunkVectors];
      Format::template Decode<kPhase>(blocks[o], shared[o], group, w);
      HWY_UNROLL(32) for (int v = 0; v < kChunkVectors; ++v) {
        HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
          sums[o][r] = hn::MulAdd(w[v], hn::LoadU(FloatTag(), x + (v * stride + r) * kFloatLanes), sums[o][r]);
        }
      }
    }
    MultiplyPhases<Format, kOutputs, kRows, kPhase + 1>(blocks, shared, group, x + stride * kChunk, stride, sums);
  }
}

// The same for the blocks that lie `ahead` bytes further, from column `col` on.
template <class Rows, int kOutputs>
HWY_INLINE void PrepareAt(const uint8_t* const (&blocks)[kOutputs], int64_t ahead,
                          const float* const (&first_scales)[kOutputs], int64_t col,
                          typename Rows::Format::Shared (&shared)[kOutputs]) {
  const uint8_t* at[kOutputs];
  const float* scales[kOutputs];
  HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) {
    at[o] = blocks[o] + ahead;
    scales[o] = Rows::ScaleAt(first_scales[o], col);
  }
  PrepareBlocks<typename Rows::Format>(at, scales, shared);
}

// y[r][o * apart] for kOutputs rows of weights, `apart` from one another from `first` on, and kRows neighbouring ones
// of x_rows rows of packed x.
template <WeightFormat kFormat, int kOutputs, int kRows>
HWY_NOINLINE void ProjectQuantizedTile(const WeightMatrix& weight, int64_t first, int64_t apart, const float* x,
                                       int64_t x_rows, float* y, int64_t y_stride) {
  using Rows = QuantizedRows<kFormat>;
  using Format = typename Rows::Format;
  const Rows rows(weight);
  const int64_t stride = kOutputs > 1 ? kRows : x_rows;  // known while compiling, where it matters
  FloatVec sums[kOutputs][kRows];
  const uint8_t* blocks[kOutputs];
  const float* first_scales[kOutputs];
  HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) {
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) sums[o][r] = hn::Zero(FloatTag());
    blocks[o] = rows.Row(first + o * apart);
    first_scales[o] = rows.Scale(first + o * apart);
  }
  // The next blocks are prepared before this one's products: what they share has to be in memory when it is asked for.
  typename Format::Shared shared[2][kOutputs];
  PrepareAt<Rows>(blocks, /*ahead=*/0, first_scales, /*col=*/0, shared[0]);
  for (int64_t c = 0, turn = 0; c < weight.cols; c += Rows::kWeights, turn ^= 1) {
    const int64_t next = c + Rows::kWeights;
    if (next < weight.cols) PrepareAt<Rows>(blocks, Rows::kBytes, first_scales, next, shared[turn ^ 1]);
    HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) PrefetchBlock(blocks[o], Rows::kBytes);
    for (int group = 0; group < Format::kGroups; ++group, x += stride * Format::kPhases * kChunk) {
      MultiplyPhases<Format, kOutputs, kRows>(blocks, shared[turn], group, x, stride, sums);
    }
    HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) blocks[o] += Rows::kBytes;
  }
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8) for (int o = 0; o < kOutputs; ++o) {
      y[r * y_stride + o * apart] = hn::GetLane(hn::SumOfLanes(FloatTag(), sums[o][r]));
    }
  }
}

// Rows of x for which a weight is decoded once. With sixteen registers two rows fill them.
inline constexpr int kTileRows = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL ? 4 : 2;

// The same for `rows` rows of a packed tile, all that it has.
template <WeightFormat kFormat, int kRows = kTileRows>
HWY_INLINE void ProjectTileRows(const WeightMatrix& weight, int64_t first, int64_t apart, const float* x, int64_t rows,
                                float* y, int64_t y_stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return ProjectTileRows<kFormat, kRows - 1>(weight, first, apart, x, rows, y, y_stride);
    }
  }
  ProjectQuantizedTile<kFormat, kTileOutputs, kRows>(weight, first, apart, x, kRows, y, y_stride);
}

// A tile's outputs are a quarter of all apart, so that each goes on where it ended: memory is read as four long
// streams, which it gives faster than many short ones. Rows of x after the first few find the weights in the cache; to
// decode them again costs less than to write them to memory as float32.
template <WeightFormat kFormat>
HWY_INLINE void ProjectRowsOf(const WeightMatrix& weight, int64_t rows, const float* x, int64_t begin, int64_t end,
                              float* y, int64_t y_stride) {
  const int64_t apart = (end - begin) / kTileOutputs;
  const auto for_tiles = [&](const auto& project) HWY_ATTR {
    for (int64_t row = 0; row < rows; row += kTileRows) {
      project(x + row * weight.cols, HWY_MIN(kTileRows, rows - row), y + row * y_stride);
    }
  };
  for (int64_t o = begin; o < begin + apart; ++o) {
    for_tiles([&](const float* tile, int64_t count, float* to)
                  HWY_ATTR { ProjectTileRows<kFormat>(weight, o, apart, tile, count, to + (o - begin), y_stride); });
  }
  for (int64_t o = begin + kTileOutputs * apart; o < end; ++o) {
    for_tiles([&](const float* tile, int64_t count, float* to) HWY_ATTR {
      for (int64_t r = 0; r < count; ++r) {
        ProjectQuantizedTile<kFormat, 1, 1>(weight, o, /*apart=*/0, tile + r * kFloatLanes, count,
                                            to + r * y_stride + (o - begin), y_stride);
      }
    });
  }
}

// Calls function(std::integral_constant<WeightFormat, format>()) if `format` is one of kFormats.
template <WeightFormat... kFormats, class Function>
HWY_INLINE void WithFormat(WeightFormat format, const Function& function) {
  (void)((format == kFormats && (function(std::integral_constant<WeightFormat, kFormats>()), true)) || ...);
}

// DequantizeRows and ProjectRows of quantized_functions.h for kFormats.
template <WeightFormat... kFormats>
HWY_INLINE void DequantizeFormats(const WeightMatrix& weight, int64_t first, int64_t count, float* out) {
  WithFormat<kFormats...>(weight.format,
                          [&](auto format) HWY_ATTR { DequantizeRowsOf<format>(weight, first, count, out); });
}
template <WeightFormat... kFormats>
HWY_INLINE void ProjectFormats(const WeightMatrix& weight, int64_t rows, const float* x, int64_t begin, int64_t end,
                               float* y, int64_t y_stride) {
  WithFormat<kFormats...>(
      weight.format, [&](auto format) HWY_ATTR { ProjectRowsOf<format>(weight, rows, x, begin, end, y, y_stride); });
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_PROJECTION_PROJECTION_QUANTIZED_CPU_INL_H_
