// Int8 products of many rows: a tile of outputs is unpacked once, and all rows pass it.
//
// A vector lane is an output. A tile's codes lie [features / 4][outputs][4 features], in pieces of kPieceRuns runs that
// stay in the first-level cache with the rows that pass. Registers hold the sums of two vectors of outputs for kRows
// rows. Bound by the multiplications: eight, and three or four operations to scale them, for 32 features of a vector.

#include <algorithm>
#include <cstring>

#include "kernels/projection/int8_functions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/projection/projection_int8_tiles_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/projection/int8_inputs-inl.h"
#include "kernels/projection/int8_products-inl.h"
#include "kernels/projection/int8_weights-inl.h"

HWY_BEFORE_NAMESPACE();
GDN_BEFORE_INT8_PRODUCTS;
namespace gdn::HWY_NAMESPACE {

inline constexpr int kTileOutputs = static_cast<int>(kInt8TileOutputs);
inline constexpr int kTileVectors = 2;  // in registers at a time
inline constexpr int kGroups = kRun / 4;
inline constexpr int kPieceRuns = 16;  // of 32 outputs: 16 KB of codes
inline constexpr int kFloatsOfRun = kRun * kTileOutputs / 4;
static_assert(kTileOutputs % (kTileVectors * kFloatLanes) == 0);

// How products are computed. Formats that agree in it share the code.
template <class ItsProducts, int kItsHalves, bool kWithOffset>
struct TileMath {
  using Products = ItsProducts;
  static constexpr int kHalves = kItsHalves;
  static constexpr bool kHasOffset = kWithOffset;
};
template <class Format>
using TileOf = TileMath<ProductsFor<Format::kLargest>, Format::kHalves, Format::kHasOffset>;

// Rows whose sums registers hold: int32 and float32 sums, and the scaled first half if there are halves.
template <class Tile>
constexpr int RowsOf() {
  constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL;
  constexpr bool kPlain = Tile::kHalves == 1 && Tile::Products::kStartsAnywhere;
  if constexpr (kManyRegisters) return kPlain ? 6 : 4;
  return 4;
}

// 32-bit lanes that a row has in a block of x: its numbers, a start of products and a sum of numbers for each half, and
// its scale. A block of a tile of rows has the first lanes of all rows, then their second ones, and so on.
template <class Tile>
constexpr int LanesOfRow() {
  return kGroups * Tile::Products::kInputLanes + Tile::kHalves * (Tile::kHasOffset ? 2 : 1) + 1;
}

template <class Products, int kRows, int kSteps, int kStep = 0>
HWY_INLINE void AddSteps(const uint8_t* codes, const int32_t* x, typename Products::Sums (&sums)[kTileVectors][kRows]) {
  if constexpr (kStep < kSteps) {
    IntVec w[kTileVectors];
    HWY_UNROLL(2) for (int v = 0; v < kTileVectors; ++v) {
      w[v] = hn::LoadU(IntTag(), reinterpret_cast<const int32_t*>(codes) + v * kFloatLanes);
    }
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
      IntVec inputs[Products::kInputLanes];
      HWY_UNROLL(2) for (int i = 0; i < Products::kInputLanes; ++i) { inputs[i] = hn::Set(IntTag(), x[i * kRows + r]); }
      HWY_UNROLL(2) for (int v = 0; v < kTileVectors; ++v) { Products::template Add<kStep>(sums[v][r], w[v], inputs); }
    }
    AddSteps<Products, kRows, kSteps, kStep + 1>(codes + kTileOutputs * 4, x + Products::kInputLanes * kRows, sums);
  }
}

// Adds `runs` runs to the sums of kTileVectors vectors of outputs and kRows rows, or sets them if `first`.
template <class Tile, int kRows>
HWY_NOINLINE void MultiplyTile(const uint8_t* codes, const float* scales, const float* offsets, const int32_t* x,
                               int64_t runs, bool first, float* sums) {
  using Products = typename Tile::Products;
  constexpr int kHalves = Tile::kHalves;
  constexpr int kSteps = kGroups / kHalves;
  const FloatTag d;
  FloatVec totals[kTileVectors][kRows];
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2) for (int v = 0; v < kTileVectors; ++v) {
      totals[v][r] = first ? hn::Zero(d) : hn::LoadU(d, sums + r * kTileOutputs + v * kFloatLanes);
    }
  }
  for (int64_t run = 0; run < runs; ++run) {
    const int32_t* starts = x + kGroups * Products::kInputLanes * kRows;
    const int32_t* input_sums = starts + kHalves * kRows;
    const int32_t* input_scales = input_sums + (Tile::kHasOffset ? kHalves * kRows : 0);
    FloatVec scaled[kTileVectors][kRows];
    HWY_UNROLL(2) for (int half = 0; half < kHalves; ++half) {
      typename Products::Sums products[kTileVectors][kRows];
      HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
        const IntVec start =
            Products::kStartsAnywhere ? hn::Set(IntTag(), starts[half * kRows + r]) : hn::Zero(IntTag());
        HWY_UNROLL(2) for (int v = 0; v < kTileVectors; ++v) products[v][r] = Products::Start(start);
      }
      AddSteps<Products, kRows, kSteps>(codes, x, products);
      codes += kSteps * kTileOutputs * 4;
      x += kSteps * Products::kInputLanes * kRows;
      FloatVec scale[kTileVectors], offset[kTileVectors];
      HWY_UNROLL(2) for (int v = 0; v < kTileVectors; ++v) {
        scale[v] = hn::LoadU(d, scales + v * kFloatLanes);
        if constexpr (Tile::kHasOffset) offset[v] = hn::LoadU(d, offsets + v * kFloatLanes);
      }
      scales += kTileOutputs;
      HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(2) for (int v = 0; v < kTileVectors; ++v) {
          IntVec total = Products::template Total<kSteps>(products[v][r]);
          if constexpr (!Products::kStartsAnywhere) {
            total = hn::Add(total, hn::Set(IntTag(), starts[half * kRows + r]));
          }
          const FloatVec product = hn::ConvertTo(d, total);
          scaled[v][r] = half == 0 ? hn::Mul(scale[v], product) : hn::MulAdd(scale[v], product, scaled[v][r]);
        }
      }
    }
    if constexpr (Tile::kHasOffset) {
      HWY_UNROLL(2) for (int half = 0; half < kHalves; ++half, offsets += kTileOutputs) {
        HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
          const FloatVec sum = hn::BitCast(d, hn::Set(IntTag(), input_sums[half * kRows + r]));
          HWY_UNROLL(2) for (int v = 0; v < kTileVectors; ++v) {
            scaled[v][r] = hn::MulAdd(hn::LoadU(d, offsets + v * kFloatLanes), sum, scaled[v][r]);
          }
        }
      }
    }
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
      const FloatVec input_scale = hn::BitCast(d, hn::Set(IntTag(), input_scales[r]));
      HWY_UNROLL(2) for (int v = 0; v < kTileVectors; ++v) {
        totals[v][r] = hn::MulAdd(input_scale, scaled[v][r], totals[v][r]);
      }
    }
    x = input_scales + kRows;
  }
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2) for (int v = 0; v < kTileVectors; ++v) {
      hn::StoreU(totals[v][r], d, sums + r * kTileOutputs + v * kFloatLanes);
    }
  }
}

// The same for a tile of `rows` rows, at most kRows, and all its outputs.
template <class Tile, int kRows>
HWY_INLINE void MultiplyRows(const uint8_t* codes, const float* scales, const float* offsets, const int32_t* x,
                             int64_t rows, int64_t runs, bool first, float* sums) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return MultiplyRows<Tile, kRows - 1>(codes, scales, offsets, x, rows, runs, first, sums);
    }
  }
  for (int output = 0; output < kTileOutputs; output += kTileVectors * kFloatLanes) {
    MultiplyTile<Tile, kRows>(codes + output * 4, scales + output, offsets + output, x, runs, first, sums + output);
  }
}

// Stores codes of a run of four rows: group g of four features to `to` + g * kTileOutputs * 4.
template <class D = CodeTag>
HWY_INLINE void StoreQuad(const hn::Vec<D> (&rows)[kQuad][kRunVectors], uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < kRun; ++i) {
    for (int r = 0; r < kQuad; ++r) to[i / 4 * kTileOutputs * 4 + r * 4 + i % 4] = hn::GetLane(rows[r][i]);
  }
#else
  const hn::Repartition<uint32_t, D> d32;
  const hn::Repartition<uint64_t, D> d64;
  const hn::FixedTag<uint64_t, 2> quad;
  constexpr int64_t kApart = kTileOutputs * 4;
  HWY_UNROLL(2) for (int v = 0; v < kRunVectors; ++v) {
    const auto a = hn::BitCast(d32, rows[0][v]);
    const auto b = hn::BitCast(d32, rows[1][v]);
    const auto c = hn::BitCast(d32, rows[2][v]);
    const auto e = hn::BitCast(d32, rows[3][v]);
    const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d32, a, b));
    const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
    const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(d32, c, e));
    const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d32, c, e));
    const decltype(ab_low) groups[4] = {
        hn::InterleaveLower(d64, ab_low, ce_low), hn::InterleaveUpper(d64, ab_low, ce_low),
        hn::InterleaveLower(d64, ab_high, ce_high), hn::InterleaveUpper(d64, ab_high, ce_high)};
    HWY_UNROLL(4) for (int g = 0; g < 4; ++g) {
      auto* at = reinterpret_cast<uint64_t*>(to + (v * (kGroups / kRunVectors) + g) * kApart);
      if constexpr (kRunVectors == 1) {
        hn::StoreU(hn::LowerHalf(quad, groups[g]), quad, at);
        hn::StoreU(hn::UpperHalf(quad, groups[g]), quad, at + 4 * kApart / 8);
      } else {
        hn::StoreU(groups[g], quad, at);
      }
    }
  }
#endif
}

// Asks for the bytes that UnpackTile reads next of its rows, which lie `ahead` bytes further. Short pieces of many rows
// leave the hardware's prefetcher behind. The address may lie past the matrix, hence the integer.
HWY_INLINE void PrefetchPiece(const uint8_t* row, int64_t ahead, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(
        reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(ahead + i)),
        /*rw=*/0, /*locality=*/2);
  }
}

// Unpacks runs [first_run, first_run + runs), whole blocks, of `count` outputs from `output` on. What lies behind them
// in the tile is left as it is, up to a multiple of four.
template <class Format>
HWY_NOINLINE void UnpackTile(const WeightMatrix& weight, int64_t output, int64_t count, int64_t first_run, int64_t runs,
                             uint8_t* codes, float* scales, float* offsets) {
  const int64_t row_bytes = RowBytes(weight.format, weight.cols);
  constexpr int64_t kBlockBytes = BlockBytes(Format());
  const int64_t piece_at = first_run / Format::kRuns * kBlockBytes;
  const int64_t piece_bytes = runs / Format::kRuns * kBlockBytes;
  const auto* data = static_cast<const uint8_t*>(weight.data) + piece_at;
  const bool last = piece_at + piece_bytes == row_bytes;  // then the next tile's first piece follows
  const int64_t ahead = last ? kTileOutputs * row_bytes - piece_at : piece_bytes;
  for (int64_t quad = 0; quad < count; quad += kQuad) {
    const uint8_t* rows[kQuad];
    for (int64_t r = 0; r < kQuad; ++r) rows[r] = data + (output + std::min(quad + r, count - 1)) * row_bytes;
    HWY_UNROLL(4) for (int r = 0; r < kQuad; ++r) PrefetchPiece(rows[r], ahead, piece_bytes);
    for (int64_t block = 0; block < runs; block += Format::kRuns) {
      const int64_t factors = block * Format::kHalves * kTileOutputs + quad;
      Format::Factors(rows,
                      FactorsTo<Format::kHalves * kTileOutputs, kTileOutputs>{scales + factors, offsets + factors});
      for (int run = 0; run < Format::kRuns; ++run) {
        CodeVec quads[kQuad][kRunVectors];
        HWY_UNROLL(4) for (int r = 0; r < kQuad; ++r) Format::Codes(rows[r], run, quads[r]);
        StoreQuad(quads, codes + (block + run) * kRun * kTileOutputs + quad * 4);
      }
      HWY_UNROLL(4) for (int r = 0; r < kQuad; ++r) rows[r] += kBlockBytes;
    }
  }
}

template <class Format>
void ProjectTileOf(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, int64_t output,
                   float* sums, float* scratch) {
  using Tile = TileOf<Format>;
  constexpr int kRows = RowsOf<Tile>();
  constexpr int kLanesOfRow = LanesOfRow<Tile>();
  const WeightMatrix& weight = params.weight;
  const int64_t count = std::min<int64_t>(kTileOutputs, weight.rows - output);
  const int64_t runs = weight.cols / kRun;
  auto* codes = reinterpret_cast<uint8_t*>(scratch);
  float* scales = scratch + kPieceRuns * kFloatsOfRun;
  float* offsets = scales + kPieceRuns * Format::kHalves * kTileOutputs;
  for (int64_t run = 0; run < runs; run += kPieceRuns) {
    const int64_t piece = std::min<int64_t>(kPieceRuns, runs - run);
    UnpackTile<Format>(weight, output, count, run, piece, codes, scales, offsets);
    for (int64_t row = begin; row < end; row += kRows) {
      const int64_t rows = std::min<int64_t>(kRows, end - row);
      const auto* x = reinterpret_cast<const int32_t*>(packed) + (row * runs + run * rows) * kLanesOfRow;
      MultiplyRows<Tile, kRows>(codes, scales, offsets, x, rows, piece, run == 0, sums + (row - begin) * kTileOutputs);
    }
  }
}

// Stores a run's numbers for one of `rows` rows, as ProductsFor reads them.
template <class Products>
HWY_INLINE void StoreNumbers(const int8_t* q, int64_t rows, int32_t* to) {
  for (int group = 0; group < kGroups; ++group, q += 4, to += rows * Products::kInputLanes) {
    if constexpr (Products::kInputLanes == 1) {
      std::memcpy(to, q, 4);
    } else {
      const int16_t lanes[4] = {q[0], q[2], q[1], q[3]};
      std::memcpy(to, lanes, 4);
      std::memcpy(to + rows, lanes + 2, 4);
    }
  }
}

template <class Format>
void RoundTilesOf(const ProjectionParams& params, int64_t begin, int64_t end, float* packed) {
  using Tile = TileOf<Format>;
  constexpr int kRows = RowsOf<Tile>();
  static_assert(kInt8TileRows % kRows == 0);
  constexpr int kLanesOfRow = LanesOfRow<Tile>();
  for (int64_t first = begin; first < end; first += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, end - first);
    int32_t* tile = reinterpret_cast<int32_t*>(packed) + first * (params.weight.cols / kRun) * kLanesOfRow;
    for (int64_t r = 0; r < rows; ++r) {
      RoundRow(params, first + r, [&](int64_t block, const RoundedBlock& rounded) HWY_ATTR {
        int32_t* to = tile + block * rows * kLanesOfRow + r;
        StoreNumbers<typename Tile::Products>(rounded.q, rows, to);
        to += kGroups * Tile::Products::kInputLanes * rows;
        const int32_t* half_sums = rounded.half_sums;
        const int32_t both = half_sums[0] + half_sums[1];
        for (int half = 0; half < Tile::kHalves; ++half, to += rows) {
          *to = -Format::kZero * (Tile::kHalves == 1 ? both : half_sums[half]);
        }
        for (int half = 0; Tile::kHasOffset && half < Tile::kHalves; ++half, to += rows) {
          const auto sum = static_cast<float>(Tile::kHalves == 1 ? both : half_sums[half]);
          std::memcpy(to, &sum, sizeof(sum));
        }
        std::memcpy(to, &rounded.scale, sizeof(rounded.scale));
      });
    }
  }
}

template <class Format>
int64_t TilesFloatsOf(const ProjectionParams& params) {
  return params.rows * (params.weight.cols / kRun) * LanesOfRow<TileOf<Format>>();
}

#undef GDN_FOR_INT8_FORMATS
#define GDN_FOR_INT8_FORMATS(Function, ...) \
  WithInt8Format(params.weight.format, [&](auto format) HWY_ATTR { return Function<decltype(format)>(__VA_ARGS__); })

int64_t TilesFloats(const ProjectionParams& params) { return GDN_FOR_INT8_FORMATS(TilesFloatsOf, params); }

void RoundTiles(const ProjectionParams& params, int64_t begin, int64_t end, float* packed) {
  GDN_FOR_INT8_FORMATS(RoundTilesOf, params, begin, end, packed);
}

void ProjectTile(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, int64_t output,
                 float* sums, float* scratch) {
  GDN_FOR_INT8_FORMATS(ProjectTileOf, params, packed, begin, end, output, sums, scratch);
}

int64_t TileScratchFloats() { return kPieceRuns * (kFloatsOfRun + 2 * 2 * kTileOutputs); }

}  // namespace gdn::HWY_NAMESPACE
GDN_AFTER_INT8_PRODUCTS;
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {

HWY_EXPORT(TilesFloats);
HWY_EXPORT(TileScratchFloats);
HWY_EXPORT(RoundTiles);
HWY_EXPORT(ProjectTile);

int64_t Int8TilesFloats(const ProjectionParams& params) { return HWY_DYNAMIC_DISPATCH(TilesFloats)(params); }

int64_t Int8TileScratchFloats() { return HWY_DYNAMIC_DISPATCH(TileScratchFloats)(); }

void RoundInt8Tiles(const ProjectionParams& params, int64_t begin, int64_t end, float* packed) {
  HWY_DYNAMIC_DISPATCH(RoundTiles)(params, begin, end, packed);
}

void ProjectInt8Tile(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, int64_t output,
                     float* sums, float* scratch) {
  HWY_DYNAMIC_DISPATCH(ProjectTile)(params, packed, begin, end, output, sums, scratch);
}

}  // namespace gdn
#endif  // HWY_ONCE
