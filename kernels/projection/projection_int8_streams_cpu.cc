// Int8 products of few rows: weights are read once, as few long streams, and unpacked in registers.
//
// Four outputs go side by side, one of each stream. A vector has neighbouring features of one output. The products of
// kStepRuns runs are added up to a vector that has, for each run, a lane for each output. Bound by reading the weights.

#include <algorithm>
#include <cstring>

#include "kernels/projection/int8_functions.h"
#include "kernels/projection/projection_paths.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/projection/projection_int8_streams_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/projection/int8_inputs-inl.h"
#include "kernels/projection/int8_products-inl.h"
#include "kernels/projection/int8_weights-inl.h"

HWY_BEFORE_NAMESPACE();
GDN_BEFORE_INT8_PRODUCTS;
namespace gdn::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Without vectors there is nothing to add up across them: tiles do as well.
int64_t MostStreamedRows(const ProjectionParams& /*params*/) { return 0; }
int64_t StreamsFloats(const ProjectionParams& /*params*/) { return 0; }
void RoundStreams(const ProjectionParams& /*params*/, float* /*packed*/) {}
void ProjectStreams(const ProjectionParams& /*params*/, const float* /*packed*/, int64_t /*begin*/, int64_t /*end*/,
                    float* /*y*/, int64_t /*y_stride*/) {}

#else

static_assert(kQuantizedStreams == kQuad);
inline constexpr int kStepRuns = kFloatLanes / kQuad;
// Rows in registers at a time.
inline constexpr int kStreamedRows = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL ? 4 : 2;

using QuadTag = hn::FixedTag<float, kQuad>;
using QuadVec = hn::Vec<QuadTag>;

// How a format's rows are read: a unit of whole blocks at a time.
template <class Format>
struct StreamOf {
  using Products = ProductsFor<Format::kLargest>;
  static constexpr int kUnitRuns = Format::kRuns == 1 ? 4 : Format::kRuns;
  static constexpr int kUnitBlocks = kUnitRuns / Format::kRuns;
  static_assert(kUnitRuns % kStepRuns == 0);

  using PlacesOfFactors = FactorsTo<kQuad, kUnitRuns * kQuad>;
  struct Factors {
    alignas(64) float scales[Format::kHalves * kUnitRuns * kQuad];
    alignas(64) float offsets[Format::kHalves * kUnitRuns * kQuad];
  };
};

// Places of a row of x, in 32-bit lanes. Runs are padded to whole units, with zeros.
template <class Format>
struct StreamedRow {
  using Stream = StreamOf<Format>;
  explicit StreamedRow(int64_t cols)
      : padded((cols / kRun + Stream::kUnitRuns - 1) / Stream::kUnitRuns * Stream::kUnitRuns),
        starts(padded * (kRun / 4) * Stream::Products::kInputLanes),
        sums(starts + padded * Format::kHalves * kQuad),
        scales(sums + (Format::kHasOffset ? padded * Format::kHalves * kQuad : 0)),
        lanes(scales + padded) {}

  const int64_t padded;  // runs
  // The numbers, as vectors meet them, begin at 0. Starts of products and sums of numbers follow, [half][run][quad],
  // the same for each of the quad. Scales come last.
  const int64_t starts, sums, scales, lanes;
};

// Reads the factors of a unit of four outputs.
template <class Format>
HWY_INLINE void PrepareUnit(QuadBlocks at, typename StreamOf<Format>::Factors& factors) {
  using Stream = StreamOf<Format>;
  using To = typename Stream::PlacesOfFactors;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if constexpr (Format::kRuns == 1) {
    FourBlockFactors<Format>(at, To{factors.scales, factors.offsets});
    return;
  }
#endif
  constexpr int64_t kBlockBytes = BlockBytes(Format());
  HWY_UNROLL(4) for (int block = 0; block < Stream::kUnitBlocks; ++block) {
    const uint8_t* const blocks[kQuad] = {at[0] + block * kBlockBytes, at[1] + block * kBlockBytes,
                                          at[2] + block * kBlockBytes, at[3] + block * kBlockBytes};
    const int64_t first = block * Format::kRuns * kQuad;
    Format::Factors(blocks, To{factors.scales + first, factors.offsets + first});
  }
}

// Returns codes of vector `part` (0 or 1) of the step that begins with `run` of a unit.
template <class Format>
HWY_INLINE IntVec StepCodes(const uint8_t* unit, int run, int part) {
  constexpr int64_t kBlockBytes = BlockBytes(Format());
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const int first = run + 2 * part;
  if constexpr (Format::kRuns == 1) {
    return IntVec{Format::PairCodes(unit + first * kBlockBytes, unit + (first + 1) * kBlockBytes)};
  } else {
    return IntVec{Format::PairCodes(unit, first)};
  }
#else
  CodeVec codes[kRunVectors];
  const int one = kStepRuns == 2 ? run + part : run;
  if constexpr (Format::kRuns == 1) {
    Format::Codes(unit + one * kBlockBytes, 0, codes);
  } else {
    Format::Codes(unit, one, codes);
  }
  return hn::BitCast(IntTag(), codes[kStepRuns == 2 ? 0 : part]);
#endif
}

// Returns in each 128 bits the sums of the four outputs' 128 bits there.
HWY_INLINE IntVec SumQuads(const IntVec (&outputs)[kQuad]) {
  const IntTag d;
  const hn::Repartition<uint64_t, IntTag> d64;
  const IntVec ab =
      hn::Add(hn::InterleaveLower(d, outputs[0], outputs[1]), hn::InterleaveUpper(d, outputs[0], outputs[1]));
  const IntVec ce =
      hn::Add(hn::InterleaveLower(d, outputs[2], outputs[3]), hn::InterleaveUpper(d, outputs[2], outputs[3]));
  const auto ab64 = hn::BitCast(d64, ab);
  const auto ce64 = hn::BitCast(d64, ce);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, ab64, ce64)),
                 hn::BitCast(d, hn::InterleaveUpper(d64, ab64, ce64)));
}

// Return the sums of the first and of the second halves of a step's runs, [run][output], from those of its two vectors.
HWY_INLINE IntVec FirstHalves(const IntVec (&parts)[2]) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return IntVec{_mm512_shuffle_i32x4(parts[0].raw, parts[1].raw, 0x88)};
#else
  if constexpr (kStepRuns == 1) return parts[0];
  return hn::ConcatLowerLower(IntTag(), parts[1], parts[0]);
#endif
}
HWY_INLINE IntVec SecondHalves(const IntVec (&parts)[2]) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return IntVec{_mm512_shuffle_i32x4(parts[0].raw, parts[1].raw, 0xdd)};
#else
  if constexpr (kStepRuns == 1) return parts[1];
  return hn::ConcatUpperUpper(IntTag(), parts[1], parts[0]);
#endif
}

// Returns the scaled sums of a step's runs, [run][output], for a row of x whose places for the step are given.
template <class Format>
HWY_INLINE FloatVec ScaleStep(const IntVec (&parts)[2], const float* scales, const float* offsets, int64_t half_stride,
                              const int32_t* starts, const int32_t* sums, int64_t x_half_stride) {
  const FloatTag d;
  const IntTag di;
  IntVec halves[2] = {FirstHalves(parts), SecondHalves(parts)};
  if constexpr (Format::kHalves == 1) halves[0] = hn::Add(halves[0], halves[1]);
  FloatVec scaled = hn::Zero(d);
  HWY_UNROLL(2) for (int half = 0; half < Format::kHalves; ++half) {
    IntVec total = halves[half];
    if constexpr (Format::kZero != 0) total = hn::Add(total, hn::LoadU(di, starts + half * x_half_stride));
    const FloatVec scale = hn::LoadU(d, scales + half * half_stride);
    const FloatVec product = hn::ConvertTo(d, total);
    scaled = half == 0 ? hn::Mul(scale, product) : hn::MulAdd(scale, product, scaled);
  }
  HWY_UNROLL(2) for (int half = 0; Format::kHasOffset && half < Format::kHalves; ++half) {
    scaled = hn::MulAdd(hn::LoadU(d, offsets + half * half_stride),
                        hn::BitCast(d, hn::LoadU(di, sums + half * x_half_stride)), scaled);
  }
  return scaled;
}

// The address may lie past the matrix, hence the integer.
HWY_INLINE void PrefetchUnit(const uint8_t* unit, int64_t bytes) {
  constexpr int64_t kAhead = 2048;
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(unit) + kAhead + i), /*rw=*/0,
                       /*locality=*/3);
  }
}

// Four outputs, counted from `first`. Only `count` of them are stored; the others may repeat one.
struct QuadOutputs {
  int64_t first;
  int64_t from_first[kQuad];
  int count;
};

// The units of four rows of weights. The last unit of formats with blocks of one run may be cut; it is then a copy,
// padded with zeros.
template <class Format>
class StreamedUnits {
 public:
  using Stream = StreamOf<Format>;
  static constexpr int64_t kBytes = BlockBytes(Format()) * Stream::kUnitBlocks;

  StreamedUnits(const WeightMatrix& weight, const QuadOutputs& outputs) {
    const int64_t row_bytes = RowBytes(weight.format, weight.cols);
    whole_units_ = row_bytes / kBytes;
    const int64_t whole_bytes = whole_units_ * kBytes;
    for (int o = 0; o < kQuad; ++o) {
      rows_[o] = static_cast<const uint8_t*>(weight.data) + (outputs.first + outputs.from_first[o]) * row_bytes;
      if constexpr (kMayBeCut) {
        if (whole_bytes == row_bytes) continue;
        std::memset(tails_[o], 0, kBytes);
        std::memcpy(tails_[o], rows_[o] + whole_bytes, static_cast<size_t>(row_bytes - whole_bytes));
      }
    }
  }

  HWY_INLINE const uint8_t* At(int64_t unit, int o) const {
    if constexpr (kMayBeCut) {
      if (unit == whole_units_) return tails_[o];
    }
    return rows_[o] + unit * kBytes;
  }
  // Reads the factors of a unit, and asks for the bytes of a later one.
  HWY_INLINE void Prepare(int64_t unit, typename Stream::Factors& factors) const {
    const uint8_t* const at[kQuad] = {At(unit, 0), At(unit, 1), At(unit, 2), At(unit, 3)};
    PrepareUnit<Format>(at, factors);
    HWY_UNROLL(4) for (int o = 0; o < kQuad; ++o) PrefetchUnit(at[o], kBytes);
  }

 private:
  static constexpr bool kMayBeCut = Stream::kUnitBlocks > 1;
  const uint8_t* rows_[kQuad];
  int64_t whole_units_;
  uint8_t tails_[kQuad][kMayBeCut ? kBytes : 1];
};

// Multiplies the step that begins with `run` of the row, which is `step` of its unit, and sets parts[r] to the sums of
// the two vectors of row r. x begins with the numbers of the first of kRows rows, which lie `row_lanes` apart.
template <class Format, int kRows>
HWY_INLINE void MultiplyStep(const StreamedUnits<Format>& units, int64_t unit, int step, int64_t run, const int32_t* x,
                             int64_t row_lanes, IntVec (&parts)[kRows][2]) {
  using Products = typename StreamOf<Format>::Products;
  HWY_UNROLL(2) for (int part = 0; part < 2; ++part) {
    IntVec sums[kRows][kQuad];
    HWY_UNROLL(4) for (int o = 0; o < kQuad; ++o) {
      const IntVec codes = StepCodes<Format>(units.At(unit, o), step, part);
      HWY_UNROLL(4) for (int r = 0; r < kRows; ++r) {
        const int32_t* numbers = x + r * row_lanes + (run * (kRun / 4) + part * kFloatLanes) * Products::kInputLanes;
        IntVec inputs[Products::kInputLanes];
        HWY_UNROLL(2) for (int i = 0; i < Products::kInputLanes; ++i) {
          inputs[i] = hn::LoadU(IntTag(), numbers + i * kFloatLanes);
        }
        auto products = Products::Start(hn::Zero(IntTag()));
        Products::template Add<0>(products, codes, inputs);
        sums[r][o] = Products::template Total<1>(products);
      }
    }
    HWY_UNROLL(4) for (int r = 0; r < kRows; ++r) parts[r][part] = SumQuads(sums[r]);
  }
}

// Computes four outputs for kRows rows of x. y begins with output `first` of the first row.
template <class Format, int kRows>
HWY_NOINLINE void MultiplyStreams(const WeightMatrix& weight, const QuadOutputs& outputs, const int32_t* x, float* y,
                                  int64_t y_stride) {
  using Stream = StreamOf<Format>;
  constexpr int kUnitRuns = Stream::kUnitRuns;
  const QuadTag d4;
  const StreamedRow<Format> places(weight.cols);
  const StreamedUnits<Format> units(weight, outputs);
  const int64_t runs = weight.cols / kRun;
  // The next unit's factors are prepared before this one's products: they have to be in memory when they are asked for.
  typename Stream::Factors factors[2];
  units.Prepare(0, factors[0]);
  QuadVec totals[kRows];
  HWY_UNROLL(4) for (int r = 0; r < kRows; ++r) totals[r] = hn::Zero(d4);
  for (int64_t unit = 0; unit * kUnitRuns < runs; ++unit) {
    if ((unit + 1) * kUnitRuns < runs) units.Prepare(unit + 1, factors[(unit + 1) % 2]);
    const typename Stream::Factors& own = factors[unit % 2];
    HWY_UNROLL(8) for (int step = 0; step < kUnitRuns; step += kStepRuns) {
      const int64_t run = unit * kUnitRuns + step;
      IntVec parts[kRows][2];
      MultiplyStep<Format>(units, unit, step, run, x, places.lanes, parts);
      HWY_UNROLL(4) for (int r = 0; r < kRows; ++r) {
        const int32_t* row = x + r * places.lanes;
        alignas(64) float scaled[kFloatLanes];
        hn::Store(ScaleStep<Format>(parts[r], own.scales + step * kQuad, own.offsets + step * kQuad, kUnitRuns * kQuad,
                                    row + places.starts + run * kQuad, row + places.sums + run * kQuad,
                                    places.padded * kQuad),
                  FloatTag(), scaled);
        const auto* scales = reinterpret_cast<const float*>(row + places.scales + run);
        HWY_UNROLL(4) for (int i = 0; i < kStepRuns; ++i) {
          // Not for padding: it would turn a sum of -0 into 0.
          if (Stream::kUnitBlocks > 1 && run + i >= runs) break;
          totals[r] = hn::MulAdd(hn::Set(d4, scales[i]), hn::Load(d4, scaled + i * kQuad), totals[r]);
        }
      }
    }
  }
  HWY_UNROLL(4) for (int r = 0; r < kRows; ++r) {
    float stored[kQuad];
    hn::StoreU(totals[r], d4, stored);
    for (int o = 0; o < outputs.count; ++o) y[r * y_stride + outputs.from_first[o]] = stored[o];
  }
}

template <class Format, int kRows = kStreamedRows>
HWY_INLINE void MultiplyRows(const WeightMatrix& weight, const QuadOutputs& outputs, int64_t rows, const int32_t* x,
                             float* y, int64_t y_stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return MultiplyRows<Format, kRows - 1>(weight, outputs, rows, x, y, y_stride);
  }
  MultiplyStreams<Format, kRows>(weight, outputs, x, y, y_stride);
}

template <class Format>
void ProjectStreamsOf(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, float* y,
                      int64_t y_stride) {
  const int64_t row_lanes = StreamedRow<Format>(params.weight.cols).lanes;
  const auto* x = reinterpret_cast<const int32_t*>(packed);
  const auto multiply = [&](const QuadOutputs& outputs) {
    for (int64_t row = 0; row < params.rows; row += kStreamedRows) {
      const int64_t rows = std::min<int64_t>(kStreamedRows, params.rows - row);
      MultiplyRows<Format>(params.weight, outputs, rows, x + row * row_lanes, y + row * y_stride, y_stride);
    }
  };
  const int64_t apart = (end - begin) / kQuad;
  for (int64_t o = 0; o < apart; ++o) multiply({begin, {o, o + apart, o + 2 * apart, o + 3 * apart}, kQuad});
  const int64_t rest = kQuad * apart;
  const int64_t last = end - begin - 1;
  if (rest <= last) {
    multiply(
        {begin, {rest, std::min(rest + 1, last), std::min(rest + 2, last), last}, static_cast<int>(last + 1 - rest)});
  }
}

template <class Format>
void RoundStreamsOf(const ProjectionParams& params, float* packed) {
  using Products = typename StreamOf<Format>::Products;
  const StreamedRow<Format> places(params.weight.cols);
  for (int64_t r = 0; r < params.rows; ++r) {
    int32_t* row = reinterpret_cast<int32_t*>(packed) + r * places.lanes;
    RoundRow(params, r, [&](int64_t block, const RoundedBlock& rounded) HWY_ATTR {
      if constexpr (Products::kInputLanes == 1) {
        std::memcpy(row + block * (kRun / 4), rounded.q, kRun);
      } else {
        // The bytes at even places of each vector, then those at odd ones.
        const int64_t first = block * kRun;
        for (int i = 0; i < kRun; ++i) {
          constexpr int64_t kVector = kFloatLanes * 4;
          const int64_t in_vector = (first + i) % kVector;
          const int64_t at = ((first + i) / kVector * 2 + in_vector % 2) * (kVector / 2) + in_vector / 2;
          reinterpret_cast<int16_t*>(row)[at] = rounded.q[i];
        }
      }
      const int32_t* half_sums = rounded.half_sums;
      const int32_t both = half_sums[0] + half_sums[1];
      for (int half = 0; half < Format::kHalves; ++half) {
        const int32_t sum = Format::kHalves == 1 ? both : half_sums[half];
        const auto converted = static_cast<float>(sum);
        const int64_t place = (half * places.padded + block) * kQuad;
        for (int i = 0; i < kQuad; ++i) {
          row[places.starts + place + i] = -Format::kZero * sum;
          if (Format::kHasOffset) std::memcpy(row + places.sums + place + i, &converted, sizeof(converted));
        }
      }
      std::memcpy(row + places.scales + block, &rounded.scale, sizeof(rounded.scale));
    });
  }
}

// Tiles multiply 8-bit codes slowly without VNNI: so streams may pass a second time, from a cache.
template <class Format>
int64_t MostStreamedRowsOf(const ProjectionParams& /*params*/) {
  return StreamOf<Format>::Products::kInputLanes > 1 ? 4 : kStreamedRows;
}

template <class Format>
int64_t StreamsFloatsOf(const ProjectionParams& params) {
  return params.rows * StreamedRow<Format>(params.weight.cols).lanes;
}

#undef GDN_FOR_INT8_FORMATS
#define GDN_FOR_INT8_FORMATS(Function, ...) \
  WithInt8Format(params.weight.format, [&](auto format) HWY_ATTR { return Function<decltype(format)>(__VA_ARGS__); })

int64_t MostStreamedRows(const ProjectionParams& params) { return GDN_FOR_INT8_FORMATS(MostStreamedRowsOf, params); }
int64_t StreamsFloats(const ProjectionParams& params) { return GDN_FOR_INT8_FORMATS(StreamsFloatsOf, params); }
void RoundStreams(const ProjectionParams& params, float* packed) {
  GDN_FOR_INT8_FORMATS(RoundStreamsOf, params, packed);
}
void ProjectStreams(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, float* y,
                    int64_t y_stride) {
  GDN_FOR_INT8_FORMATS(ProjectStreamsOf, params, packed, begin, end, y, y_stride);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace gdn::HWY_NAMESPACE
GDN_AFTER_INT8_PRODUCTS;
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {

HWY_EXPORT(MostStreamedRows);
HWY_EXPORT(StreamsFloats);
HWY_EXPORT(RoundStreams);
HWY_EXPORT(ProjectStreams);

int64_t MostInt8StreamedRows(const ProjectionParams& params) { return HWY_DYNAMIC_DISPATCH(MostStreamedRows)(params); }

int64_t Int8StreamsFloats(const ProjectionParams& params) { return HWY_DYNAMIC_DISPATCH(StreamsFloats)(params); }

void RoundInt8Streams(const ProjectionParams& params, float* packed) {
  HWY_DYNAMIC_DISPATCH(RoundStreams)(params, packed);
}

void ProjectInt8Streams(const ProjectionParams& params, const float* packed, int64_t begin, int64_t end, float* y,
                        int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(ProjectStreams)(params, packed, begin, end, y, y_stride);
}

}  // namespace gdn
#endif  // HWY_ONCE
