// Computes the rows of one panel of a chunk, for both kinds of decay: U by forward substitution, then the outputs. A
// panel is the value columns of one register tile.
//
// Rows are computed top down, each only from rows above it. Row i's sums run over j < i (or j <= i) in order for every
// tile size, so neither the partition nor later tokens change its bits.
// A Highway per-target header: include it below foreach_target.h, in files compiled without contraction. Thread safety:
// free functions. Ownership: none.
//
//   ForRowTiles(tokens, [&](auto tile, int64_t row) HWY_ATTR { PanelRows<decltype(tile)::value>(operands, row); });

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_DELTA_RULE_CHUNK_CHUNK_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_DELTA_RULE_CHUNK_CHUNK_PANEL_INL_H_
#undef GDN_KERNELS_DELTA_RULE_CHUNK_CHUNK_PANEL_INL_H_
#else
#define GDN_KERNELS_DELTA_RULE_CHUNK_CHUNK_PANEL_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"
#include "kernels/delta_rule_chunk/row_fetcher.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

// Multiplies row r of the tile by scale[r], for r < kRows.
template <int kRows>
HWY_INLINE void ScaleRows(const float* scale, hn::Vec<FloatTag> (&acc)[kRows][kTileVectors]) {
  const FloatTag d;
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(16)
    for (int n = 0; n < kTileVectors; ++n) acc[r][n] = hn::Mul(hn::Set(d, scale[r]), acc[r][n]);
  }
}

// Operands of a panel's rows; nothing is owned. C is kChunkTokens; `width` is the number of columns of a register tile,
// kTileVectors vectors.
struct PanelOperands {
  const float* q;  // [C, K], rows key_row apart
  const float* k;  // [C, K], rows key_row apart
  int64_t key_row;
  int64_t key_dim;
  const float* a;      // [C, C], -A; valid for j < i only
  const float* p;      // [C, C], P; valid for j <= i only
  const float* decay;  // [C], e^{G_i}; ones if q and k already contain it
  const float* beta;   // [C]
  const float* state;  // [K, width]
  float* u;            // [C, width]
  const float* v;      // [C, width], rows v_row apart
  int64_t v_row;
  float* output;  // [C, width], rows output_row apart; may be v
  int64_t output_row;
  RowFetcher& ahead;  // prefetches between products
};

// Computes rows [row, row + kRows) of a panel: U, then O. Rows above must be done.
template <int kRows>
HWY_INLINE void PanelRows(const PanelOperands& in, int64_t row) {
  const FloatTag d;
  using Vec = hn::Vec<FloatTag>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = kTileVectors * lanes;
  const float* v = in.v + row * in.v_row;
  float* u = in.u + row * width;

  // X = beta (V - e^G K S)
  Vec acc[kRows][kTileVectors];
  SetTile(d, 0.0f, acc);
  MultiplyAccumulate(d, in.key_dim, in.k + row * in.key_row, in.key_row, 1, in.state, width, acc);
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(16)
    for (int n = 0; n < kTileVectors; ++n) {
      const Vec value = hn::LoadU(d, v + r * in.v_row + n * lanes);
      const Vec rest = hn::NegMulAdd(hn::Set(d, in.decay[row + r]), acc[r][n], value);
      acc[r][n] = hn::Mul(hn::Set(d, in.beta[row + r]), rest);
    }
  }
  in.ahead.Fetch();
  // U = X - A U: first the rows above the tile, then forward substitution inside it. The diagonal of I + A is 1, so
  // there is no division.
  const float* a = in.a + row * kChunkTokens;
  MultiplyAccumulate(d, row, a, kChunkTokens, 1, in.u, width, acc);
  HWY_UNROLL(16)
  for (int r = 1; r < kRows; ++r) {
    HWY_UNROLL(16)
    for (int j = 0; j < r; ++j) {
      const Vec element = hn::Set(d, a[r * kChunkTokens + row + j]);
      HWY_UNROLL(16)
      for (int n = 0; n < kTileVectors; ++n) acc[r][n] = hn::MulAdd(element, acc[j][n], acc[r][n]);
    }
  }
  StoreTile(d, acc, u, width);
  in.ahead.Fetch();

  // O = e^G Q S + P U
  SetTile(d, 0.0f, acc);
  MultiplyAccumulate(d, in.key_dim, in.q + row * in.key_row, in.key_row, 1, in.state, width, acc);
  ScaleRows(in.decay + row, acc);
  const float* p = in.p + row * kChunkTokens;
  MultiplyAccumulate(d, row, p, kChunkTokens, 1, in.u, width, acc);
  HWY_UNROLL(16)
  for (int j = 0; j < kRows; ++j) {
    Vec u_j[kTileVectors];
    HWY_UNROLL(16)
    for (int n = 0; n < kTileVectors; ++n) u_j[n] = hn::LoadU(d, u + j * width + n * lanes);
    HWY_UNROLL(16)
    for (int r = j; r < kRows; ++r) {
      const Vec element = hn::Set(d, p[r * kChunkTokens + row + j]);
      HWY_UNROLL(16)
      for (int n = 0; n < kTileVectors; ++n) acc[r][n] = hn::MulAdd(element, u_j[n], acc[r][n]);
    }
  }
  StoreTile(d, acc, in.output + row * in.output_row, in.output_row);
  in.ahead.Fetch();
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
