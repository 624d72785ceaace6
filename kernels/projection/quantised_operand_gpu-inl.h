// Device code: OperandMover for quantised weights, which are decoded once per tile on their way to LDS.
//
// The format is a run-time value (AnyFormat), so that one kernel serves all, or a constant (OneFormat). On gfx906 a
// branch of a format ends by waiting for its loads, so that a kernel of any format takes twice as long as one of one.
// Thread safety: all lanes of the team make the same calls; the caller places the barriers.
//
//   QuantisedMover<AnyFormat, /*kVector=*/true, DType::kBF16, T> mover(p, m, lane, first_row, first_output);
//   mover.Load(feature);
//   mover.Store(lds, at);
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/gpu/device.h"
#include "kernels/projection/operand_tile_gpu-inl.h"
#include "kernels/projection/packed_weights_gpu-inl.h"

namespace gdn::gpu {

// Raw bits of eight neighbouring weights and of their scale, as LoadPackedEight loads and DecodeEight reads them.
struct RawEight {
  PackedEight bits;
  ScaleWords scales;
};

// Loads the bits of weights [feature, feature + 8) of a row; `feature` is a multiple of eight, and they exist.
template <WeightFormat kFormat>
__device__ __forceinline__ PackedEight LoadEightBits(const PackedRow& row, uint32_t feature) {
  PackedEight bits{};
  if constexpr (HasByteWeights(kFormat)) {
    const uint64_t q = row.LoadWords(0, feature / 16, 16, feature % 16);
    bits = {static_cast<uint32_t>(q), static_cast<uint32_t>(q >> 32)};
  } else if constexpr (LowBits(kFormat) == 4) {
    bits.q = row.LoadWord(0, feature / 32, 16, feature % 32 / 2);
  } else {
    bits.q = row.LoadWord(0, feature / 64, 16, feature % 64 / 16 * 4);
  }
  if constexpr (HighBits(kFormat) == 1) {
    bits.more = row.LoadWord(row.high, feature / 64, 8, feature % 64 / 32 * 4);
  } else if constexpr (HighBits(kFormat) == 2) {
    bits.more = row.LoadWord(row.high, feature / 64, 16, feature % 64 / 16 * 4);
  }
  return bits;
}

// Does the same with their scales; all bits are zero if `feature` is past the last of `features`.
template <WeightFormat kFormat>
__device__ __forceinline__ RawEight LoadPackedEight(const PackedRow& row, int32_t feature, int32_t features) {
  RawEight raw{};
  if (feature >= features) return raw;
  raw.bits = LoadEightBits<kFormat>(row, static_cast<uint32_t>(feature));
  raw.scales = LoadScales<kFormat>(row, static_cast<uint32_t>(feature / 32));
  return raw;
}

template <WeightFormat kFormat>
__device__ __forceinline__ void DecodeEight(const RawEight& raw, int32_t feature, float (&w)[kWeightVector]) {
  using Decoder = PackedDecoder<kFormat>;
  const EightPlace at{feature / 64, feature / 32 % 2, feature / 8 % 4};
  Decoder::Decode(EightOf<kFormat>(raw.bits.q, raw.bits.more, at.eight), Decoder::Of(raw.scales, at), w);
}

// Calls function(std::integral_constant<WeightFormat, format>()); `format` must be quantised.
template <typename Function>
__device__ __forceinline__ void WithQuantisedFormat(WeightFormat format, const Function& function) {
  switch (format) {
    case WeightFormat::kQ8_0:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ8_0>());
    case WeightFormat::kQ4_0:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ4_0>());
    case WeightFormat::kQ4_K:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ4_K>());
    case WeightFormat::kQ5_K:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ5_K>());
    case WeightFormat::kQ6_K:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ6_K>());
    case WeightFormat::kQ4_1:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ4_1>());
    case WeightFormat::kQ5_0:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ5_0>());
    case WeightFormat::kQ5_1:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ5_1>());
    case WeightFormat::kIQ4_NL:
      return function(std::integral_constant<WeightFormat, WeightFormat::kIQ4_NL>());
    case WeightFormat::kQ2_K:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ2_K>());
    case WeightFormat::kQ3_K:
      return function(std::integral_constant<WeightFormat, WeightFormat::kQ3_K>());
    case WeightFormat::kIQ4_XS:
      return function(std::integral_constant<WeightFormat, WeightFormat::kIQ4_XS>());
    case WeightFormat::kIQ3_S:
      return function(std::integral_constant<WeightFormat, WeightFormat::kIQ3_S>());
    default:
      return function(std::integral_constant<WeightFormat, WeightFormat::kF8E4M3>());
  }
}

// Which formats a kernel takes: With calls function(std::integral_constant<WeightFormat, format>()).
struct AnyFormat {
  template <typename Function>
  __device__ __forceinline__ static void With(WeightFormat format, const Function& function) {
    WithQuantisedFormat(format, function);
  }
};
template <WeightFormat kFormat>
struct OneFormat {
  template <typename Function>
  __device__ __forceinline__ static void With(WeightFormat /*format*/, const Function& function) {
    function(std::integral_constant<WeightFormat, kFormat>());
  }
};

// Moves tiles of x and of quantised weights to LDS, with the interface of OperandMover. kX: F32, or BF16 for either
// 16-bit dtype of x.
template <typename Formats, bool kVector, DType kX, typename T>
class QuantisedMover {
 public:
  __device__ __forceinline__ QuantisedMover(const ProjectionArgs& p, const ProjectionMatrix& m, int lane,
                                            int64_t first_row, int32_t first_output)
      : x_(p, lane, first_row, kX == DType::kF32 ? DType::kF32 : p.x_dtype),
        weights_{static_cast<const char*>(m.weight), m.scales},
        outputs_(m.outputs),
        planes_(p.planes),
        format_(p.format),
        features_(p.features),
        output_(lane / T::kVectors),
        vector_(lane % T::kVectors * kWeightVector),
        first_output_(first_output) {}

  // Loads features [feature, feature + kDepth) of the lane's rows and outputs into registers; zeros past the last.
  __device__ __forceinline__ void Load(int32_t feature) {
    feature_ = feature + vector_;
    x_.Load(feature);
    Formats::With(format_, [&](auto format) { LoadWeights<decltype(format)::value>(); });
  }

  template <typename Lds>
  __device__ __forceinline__ void Store(Lds& lds, int at) const {
    x_.Store(lds, at);
    Formats::With(format_, [&](auto format) { StoreWeights<decltype(format)::value>(lds, at); });
  }

 private:
  static constexpr int kOutputStep = T::kLanes / T::kVectors;

  template <WeightFormat kFormat>
  __device__ __forceinline__ void LoadWeights() {
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      const int32_t wanted = first_output_ + output_ + i * kOutputStep;
      const int32_t output = wanted < outputs_ ? wanted : outputs_ - 1;
      const PackedRow row = PackedRowOf(weights_, planes_, output / kPackedRows, output, features_);
      w_[i] = LoadPackedEight<kFormat>(row, feature_, features_);
    }
  }
  template <WeightFormat kFormat, typename Lds>
  __device__ __forceinline__ void StoreWeights(Lds& lds, int at) const {
#pragma unroll
    for (int i = 0; i < T::kWLoads; ++i) {
      const int w = at + T::template WAt<kOutputStep>(vector_, output_, i * kOutputStep);
      float wide[kWeightVector];
      DecodeEight<kFormat>(w_[i], feature_, wide);
#pragma unroll
      for (int j = 0; j < kWeightVector; ++j) lds[w + j * T::kOutputs] = wide[j];
    }
  }

  XMover<kVector, kX, T> x_;
  const PackedMatrix weights_;
  const int32_t outputs_;
  const PackedPlanes planes_;  // made on the host: otherwise each format's would occupy registers of its own
  const WeightFormat format_;
  const int32_t features_;
  const int output_, vector_;
  const int32_t first_output_;
  RawEight w_[T::kWLoads];
  int32_t feature_ = 0;  // first feature of what w_ holds
};

// Host code: calls function(QuantisedWeights()) for a quantised format, or for a plain one as WithWeights, and returns
// its result.
struct QuantisedWeights {};
template <typename Function>
auto WithAnyWeights(const WeightMatrix& weight, Function&& function) {
  if (!IsPlain(weight.format)) return function(QuantisedWeights());
  return WithWeights(weight, std::forward<Function>(function));
}

}  // namespace gdn::gpu
