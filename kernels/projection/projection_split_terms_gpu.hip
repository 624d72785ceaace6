// Splits matrices into bfloat16 terms for projection_matrix_units_gpu.hip: bf16_terms_gpu.h.
//
// Threads: one for eight neighbouring features of a row. Bound by memory bandwidth.

#include "base/status_macros.h"
#include "kernels/gpu/bf16_terms.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/typed_elements.h"
#include "kernels/projection/bf16_terms_gpu.h"
#include "kernels/projection/packed_weights_gpu-inl.h"
#include "kernels/projection/quantised_operand_gpu-inl.h"

namespace gdn::gpu {
namespace {

constexpr int kThreads = 256;

struct SplitArgs {
  RowsToSplit from;
  PackedPlanes planes;  // of quantised formats
  bool vector;          // of plain ones: AllowsRaw4
  uint32_t eights;      // a row's
  uint16_t* to;
  int64_t plane;
  int terms;
};

// Eight features of a plain row; zeros past the last.
[[maybe_unused]] __device__ __forceinline__ void LoadEightPlain(const SplitArgs& p, int64_t row, int32_t feature,
                                                                float (&w)[8]) {
  const auto dtype = static_cast<DType>(p.from.format);
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const int64_t at = row * p.from.stride + feature + i;
    Unpack4(WidenRaw4(LoadRaw4(p.from.data, dtype, at, p.from.features - feature - i, p.vector), dtype), w + i);
  }
}

[[maybe_unused]] __device__ __forceinline__ void LoadEightQuantised(const SplitArgs& p, int64_t row, int32_t feature,
                                                                    float (&w)[8]) {
  const auto output = static_cast<int32_t>(row);
  const PackedMatrix matrix{static_cast<const char*>(p.from.data), p.from.fp8_scales};
  const PackedRow packed = PackedRowOf(matrix, p.planes, output / kPackedRows, output, p.from.features);
  WithQuantisedFormat(p.from.format, [&](auto format) {
    constexpr WeightFormat kFormat = decltype(format)::value;
    DecodeEight<kFormat>(LoadPackedEight<kFormat>(packed, feature, p.from.features), feature, w);
  });
}

template <int kWave, bool kQuantised>
__global__ __launch_bounds__(kThreads) void SplitKernel(SplitArgs p) {
  BeginEarly();
  const uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t row = index / p.eights;
  if (row >= p.from.rows) return;
  const auto feature = static_cast<int32_t>(index % p.eights * 8);
  float w[8];
  if constexpr (kQuantised) {
    LoadEightQuantised(p, p.from.first + row, feature, w);
  } else {
    LoadEightPlain(p, p.from.first + row, feature, w);
  }
  uint32_t words[kMostTerms][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Terms low = TermsOfValue(w[2 * i]);
    const Terms high = TermsOfValue(w[2 * i + 1]);
#pragma unroll
    for (int t = 0; t < kMostTerms; ++t) words[t][i] = low.bits[t] | high.bits[t] << 16;
  }
  uint16_t* const to = p.to + int64_t{index} * 8;
  const auto store = [&](int term, const uint32_t(&four)[4]) {
    Store4(reinterpret_cast<float*>(to + term * p.plane),
           {BitsToFloat(four[0]), BitsToFloat(four[1]), BitsToFloat(four[2]), BitsToFloat(four[3])});
  };
  if (p.terms == 1) {  // of BF16: of two terms that are zero, or of one that is not finite
    const uint32_t all[4] = {words[0][0] | words[2][0], words[0][1] | words[2][1], words[0][2] | words[2][2],
                             words[0][3] | words[2][3]};
    return store(0, all);
  }
#pragma unroll
  for (int t = 0; t < kMostTerms; ++t) store(t, words[t]);
}

}  // namespace

absl::StatusOr<Bf16Terms> LaunchSplit(const RowsToSplit& rows, float* to, const Stream& stream) {
  const uint32_t stride = TermsStride(rows.features);
  auto* const terms = reinterpret_cast<uint16_t*>(to);
  const Bf16Terms split{.data = terms, .stride = stride, .plane = rows.rows * stride, .terms = TermsOf(rows.format)};
  const bool quantised = !IsPlain(rows.format);
  const SplitArgs args{.from = rows,
                       .planes = quantised ? PackedPlanesOf(rows.format, rows.features) : PackedPlanes{},
                       .vector = !quantised && rows.features % 4 == 0 &&
                                 AllowsRaw4(rows.data, static_cast<DType>(rows.format), rows.stride),
                       .eights = stride / 8,
                       .to = terms,
                       .plane = split.plane,
                       .terms = split.terms};
  GDN_RETURN_IF_ERROR(WithWaveWidth(stream, "projection_split", [&](auto wave) -> absl::Status {
    if constexpr (wave() == 32) {
      return Launch("projection_split", quantised ? SplitKernel<wave(), true> : SplitKernel<wave(), false>,
                    {.x = CeilDivide(rows.rows * args.eights, kThreads), .early = true}, kThreads, stream, args);
    } else {
      return absl::InternalError("matrix units need waves of 32");
    }
  }));
  return split;
}

}  // namespace gdn::gpu
