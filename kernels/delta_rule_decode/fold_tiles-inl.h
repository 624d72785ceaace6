// Folds a decode log into a head's base, once the keys are multiplied by their decays, in tiles of rows and columns
// that stay in registers.
//
// A Highway per-target header: include it below foreach_target.h, in files compiled without contraction. Thread safety:
// free functions.
//
//   FoldTiles({.entries = 7, .keys = keys, .u = u, .decay = decays, .decay_row = 1}, dims, base, base);

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_DELTA_RULE_DECODE_FOLD_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_DELTA_RULE_DECODE_FOLD_TILES_INL_H_
#undef GDN_KERNELS_DELTA_RULE_DECODE_FOLD_TILES_INL_H_
#else
#define GDN_KERNELS_DELTA_RULE_DECODE_FOLD_TILES_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "base/layer_dims.h"
#include "hwy/highway.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {

using OneLaneTag = hn::CappedTag<float, 1>;  // for columns that do not fill a vector

// Operands of a fold. `from` has K rows and V columns.
struct FoldOperands {
  int64_t entries = 0;
  const float* keys = nullptr;   // [entries, K], each multiplied by its decay to the end
  const float* u = nullptr;      // [entries, V]
  const float* decay = nullptr;  // row i's decay is decay[i * decay_row]
  int64_t decay_row = 0;
};

// Folds the tile of rows [row, row + kRows) and kVectors vectors of columns from `column` on.
template <int kRows, int kVectors, class D, typename Base>
HWY_INLINE void FoldTile(D d, const FoldOperands& fold, const LayerDims& dims, int64_t row, int64_t column,
                         const Base* from, Base* to) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t V = dims.value_dim;
  const int64_t at = row * V + column;
  hn::Vec<D> acc[kRows][kVectors];
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    const hn::Vec<D> decay = hn::Set(d, fold.decay[(row + r) * fold.decay_row]);
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) {
      acc[r][n] = hn::Mul(decay, LoadElements(d, from + at + r * V + n * lanes));
    }
  }
  MultiplyAccumulate(d, fold.entries, fold.keys + row, /*a_row=*/1, /*a_column=*/dims.key_dim, fold.u + column, V, acc);
  StoreTile(d, acc, to + at, V);
}

// to = decay from + keys^T u, both [K, V], may be the same. Base is float, or uint16_t for bfloat16.
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

}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
