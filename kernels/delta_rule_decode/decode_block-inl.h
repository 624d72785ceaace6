// Passes over a head's base in a decode, shared by heads with one decay and heads with decays by key channel.
// DecodeBlock computes predictions, log entries and outputs of up to four tokens, from each token's prepared decays and
// dot products with the log's keys. FoldTiles folds the log into the base, once the keys are multiplied by their
// decays.
//
// A Highway per-target header: include it below foreach_target.h, in files compiled without contraction. Thread safety:
// free functions. Ownership: none; a TokenBlock points into the call's tensors.
//
//   TokenBlock block;
//   PrepareBlock(rule, token, /*count=*/2, hv, log, log_g, scratch, block);
//   DecodeBlock<2>(block, dims, base, log_u, u_stride);
//   FoldTiles({.entries = 7, .keys = keys, .u = u, .decay = decays, .decay_row = 1}, dims, base, base);

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_DELTA_RULE_DECODE_DECODE_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_DELTA_RULE_DECODE_DECODE_BLOCK_INL_H_
#undef GDN_KERNELS_DELTA_RULE_DECODE_DECODE_BLOCK_INL_H_
#else
#define GDN_KERNELS_DELTA_RULE_DECODE_DECODE_BLOCK_INL_H_
#endif

#include <bit>
#include <cstdint>

#include "base/layer_dims.h"
#include "hwy/highway.h"
#include "kernels/common/delta_rule.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

using OneLaneTag = hn::CappedTag<float, 1>;  // for columns that do not fill a vector

inline constexpr int32_t kMaxLogRows = kLogCapacity + kMaxDraftLimit;
inline constexpr int kMaxBlockTokens = 4;
// Most sums of a tile with k, (vectors of columns) x (tokens of a block); there are as many with q. All are in
// registers.
inline constexpr int kMaxTileSums = kManyRegisters ? 8 : 4;

// Up to kMaxBlockTokens tokens of one value head that share a pass over the base, with their data that does not depend
// on the column. Its tensors are not owned. G sums the log decays since the base; entry i < t is in the log.
struct TokenBlock {
  int32_t first_entry = 0;  // log entries before the block's first token
  HeadToken tokens[kMaxBlockTokens];
  float decay[kMaxBlockTokens];                   // exp(G_t); 1 if k and q already contain it
  float weight_k[kMaxBlockTokens][kLogCapacity];  // exp(G_t - G_i) (k_i . k_t), i < t: the first 12 bits
  float rest_k[kMaxBlockTokens][kLogCapacity];    // the remaining bits of weight_k
  float weight_q[kMaxBlockTokens][kLogCapacity];  // exp(G_t - G_i) (k_i . q_t), i <= t

  // Sets weight_k[token][entry] to the first 12 bits of `weight` and rest_k to the others. The state keeps a
  // prediction's error and repeating keys give equal weights, so rounding the weight would add up to 2.4e-7 a token.
  // Near weight_k = 1 the rounding of weight_k u depends only on u's size, which changes slowly, so it would add up
  // too. With 12 bits it depends on u's last digits.
  void SetWeightK(int token, int32_t entry, double weight) {
    constexpr uint32_t kFirstBits = ~uint32_t{0xfff};
    const float first = std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(weight)) & kFirstBits);
    weight_k[token][entry] = first;
    rest_k[token][entry] = static_cast<float>(weight - first);
  }
};

HWY_INLINE float Dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t count) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<FloatTag> even = hn::Zero(d);
  hn::Vec<FloatTag> odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), odd);
  }
  for (; i + lanes <= count; i += lanes) even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Converts `count` elements of `row` to double, for WideDot.
HWY_INLINE void Widen(const float* HWY_RESTRICT row, int64_t count, double* HWY_RESTRICT wide) {
  for (int64_t i = 0; i < count; ++i) wide[i] = row[i];
}

// Returns a.b over `count` elements in double; `b` holds float32 values (Widen), so products are exact, and the sum is
// accurate to 1e-15.
HWY_INLINE double WideDot(const float* HWY_RESTRICT a, const double* HWY_RESTRICT b, int64_t count) {
  constexpr int kSums = 4;
  const hn::CappedTag<double, 8> wide;
  const hn::Rebind<float, decltype(wide)> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(wide));
  hn::Vec<decltype(wide)> sums[kSums];
  HWY_UNROLL(16)
  for (int n = 0; n < kSums; ++n) sums[n] = hn::Zero(wide);
  int64_t i = 0;
  for (; i + kSums * lanes <= count; i += kSums * lanes) {
    HWY_UNROLL(16)
    for (int n = 0; n < kSums; ++n) {
      const int64_t at = i + n * lanes;
      sums[n] = hn::MulAdd(hn::PromoteTo(wide, hn::LoadU(d, a + at)), hn::LoadU(wide, b + at), sums[n]);
    }
  }
  for (; i + lanes <= count; i += lanes) {
    sums[0] = hn::MulAdd(hn::PromoteTo(wide, hn::LoadU(d, a + i)), hn::LoadU(wide, b + i), sums[0]);
  }
  double sum = hn::GetLane(hn::SumOfLanes(wide, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
  for (; i < count; ++i) sum += double{a[i]} * b[i];
  return sum;
}

// Computes predictions, log entries and outputs of kTokens tokens for value columns [column, column + kVectors *
// lanes). `base` is the head's [K, V]. u of entry i is read from, or written to, log_u + i * u_stride.
template <int kTokens, int kVectors, class D, typename Base>
HWY_INLINE void DecodeColumns(D d, const TokenBlock& block, const LayerDims& dims, const Base* HWY_RESTRICT base,
                              float* log_u, int64_t u_stride, int64_t column) {
  using Vec = hn::Vec<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vec sum_k[kTokens][kVectors];
  Vec sum_q[kTokens][kVectors];
  SetTile(d, 0.0f, sum_k);
  SetTile(d, 0.0f, sum_q);
  for (int64_t i = 0; i < dims.key_dim; ++i) {
    const Base* row = base + i * dims.value_dim + column;
    Vec s[kVectors];
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) {
      s[n] = LoadElements(d, row + n * lanes);
    }
    HWY_UNROLL(16)
    for (int t = 0; t < kTokens; ++t) {
      const Vec k = hn::Set(d, block.tokens[t].k[i]);
      const Vec q = hn::Set(d, block.tokens[t].q[i]);
      HWY_UNROLL(16)
      for (int n = 0; n < kVectors; ++n) {
        sum_k[t][n] = hn::MulAdd(k, s[n], sum_k[t][n]);
        sum_q[t][n] = hn::MulAdd(q, s[n], sum_q[t][n]);
      }
    }
  }
  HWY_UNROLL(16)
  for (int t = 0; t < kTokens; ++t) {
    const int32_t entry = block.first_entry + t;
    const Vec decay = hn::Set(d, block.decay[t]);
    const Vec beta = hn::Set(d, block.tokens[t].beta);
    const Vec self = hn::Set(d, block.weight_q[t][entry]);
    Vec prediction[kVectors];
    Vec rest[kVectors];  // part of the prediction that comes from rest_k
    Vec output[kVectors];
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) {
      prediction[n] = hn::Mul(decay, sum_k[t][n]);
      rest[n] = hn::Zero(d);
      output[n] = hn::Mul(decay, sum_q[t][n]);
    }
    for (int32_t e = 0; e < entry; ++e) {
      const Vec weight_k = hn::Set(d, block.weight_k[t][e]);
      const Vec rest_k = hn::Set(d, block.rest_k[t][e]);
      const Vec weight_q = hn::Set(d, block.weight_q[t][e]);
      HWY_UNROLL(16)
      for (int n = 0; n < kVectors; ++n) {
        const Vec u = hn::LoadU(d, log_u + e * u_stride + column + n * lanes);
        prediction[n] = hn::MulAdd(weight_k, u, prediction[n]);
        rest[n] = hn::MulAdd(rest_k, u, rest[n]);
        output[n] = hn::MulAdd(weight_q, u, output[n]);
      }
    }
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) {
      const Vec v = hn::LoadU(d, block.tokens[t].v + column + n * lanes);
      // Subtract `rest` from v first: added to the prediction its last digits would be rounded away.
      const Vec u = hn::Mul(beta, hn::Sub(hn::Sub(v, rest[n]), prediction[n]));
      hn::StoreU(u, d, log_u + entry * u_stride + column + n * lanes);
      hn::StoreU(hn::MulAdd(self, u, output[n]), d, block.tokens[t].output + column + n * lanes);
    }
  }
}

// Calls DecodeColumns for all of [column, V), with the widest tiles that fit, then narrower ones.
template <int kTokens, int kVectors, typename Base>
HWY_INLINE void DecodeTiles(const TokenBlock& block, const LayerDims& dims, const Base* base, float* log_u,
                            int64_t u_stride, int64_t column) {
  const FloatTag d;
  const int64_t width = kVectors * static_cast<int64_t>(hn::Lanes(d));
  for (; column + width <= dims.value_dim; column += width) {
    DecodeColumns<kTokens, kVectors>(d, block, dims, base, log_u, u_stride, column);
  }
  if constexpr (kVectors > 1) {
    DecodeTiles<kTokens, kVectors / 2>(block, dims, base, log_u, u_stride, column);
  } else {
    for (; column < dims.value_dim; ++column) {
      DecodeColumns<kTokens, 1>(OneLaneTag(), block, dims, base, log_u, u_stride, column);
    }
  }
}

template <int kTokens, typename Base>
HWY_NOINLINE void DecodeBlock(const TokenBlock& block, const LayerDims& dims, const Base* base, float* log_u,
                              int64_t u_stride) {
  DecodeTiles<kTokens, kMaxTileSums / kTokens>(block, dims, base, log_u, u_stride, 0);
}

// Operands of a fold of a log into a head's base [K, V]; not owned.
struct FoldOperands {
  int64_t entries = 0;
  const float* keys = nullptr;   // [entries, K], each multiplied by its decay to the end
  const float* u = nullptr;      // [entries, V]
  const float* decay = nullptr;  // row i of the base is multiplied by decay[i * decay_row]
  int64_t decay_row = 0;
};

// Folds rows [row, row + kRows) and kVectors vectors of columns from `column` on: reads that tile of `from`, writes
// that of `to`.
template <int kRows, int kVectors, class D, typename Base>
HWY_INLINE void FoldTile(D d, const FoldOperands& fold, const LayerDims& dims, int64_t row, int64_t column,
                         const Base* from, Base* to) {
  const int64_t V = dims.value_dim;
  const int64_t at = row * V + column;
  hn::Vec<D> acc[kRows][kVectors];
  LoadScaledTile(d, fold.decay + row * fold.decay_row, fold.decay_row, from + at, V, acc);
  MultiplyAccumulate(d, fold.entries, fold.keys + row, /*a_row=*/1, /*a_column=*/dims.key_dim, fold.u + column, V, acc);
  StoreTile(d, acc, to + at, V);
}

// to = diag(decay) from + keys^T u. `from` and `to` are [K, V] and may be the same. Base is float, or uint16_t for
// bfloat16, to which it rounds.
template <typename Base>
HWY_INLINE void FoldTiles(const FoldOperands& fold, const LayerDims& dims, const Base* from, Base* to) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  ForRowTiles(dims.key_dim, [&](auto tile, int64_t row) HWY_ATTR {
    constexpr int kRows = decltype(tile)::value;
    int64_t column = 0;
    for (; column + kTileVectors * lanes <= dims.value_dim; column += kTileVectors * lanes) {
      FoldTile<kRows, kTileVectors>(d, fold, dims, row, column, from, to);
    }
    for (; column + lanes <= dims.value_dim; column += lanes) FoldTile<kRows, 1>(d, fold, dims, row, column, from, to);
    for (; column < dims.value_dim; ++column) FoldTile<kRows, 1>(OneLaneTag(), fold, dims, row, column, from, to);
  });
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
