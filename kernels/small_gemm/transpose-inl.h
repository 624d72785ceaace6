// Transposes a matrix: four rows at a time, in 4 x 4 blocks in registers.
//
// A Highway per-target header: include it below foreach_target.h. Thread safety: free functions.
//
//   TransposeRows(k, k_row, /*rows=*/64, /*columns=*/128, k_t, k_t_row);

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_SMALL_GEMM_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_SMALL_GEMM_TRANSPOSE_INL_H_
#undef GDN_KERNELS_SMALL_GEMM_TRANSPOSE_INL_H_
#else
#define GDN_KERNELS_SMALL_GEMM_TRANSPOSE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/small_gemm/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// Stores `v` as blocks of four floats, the lowest lanes first: the first block to `to`, each later one `apart` floats
// further on.
template <class D>
HWY_INLINE void StoreBlocks(D d, hn::Vec<D> v, int64_t apart, float* to) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    StoreBlocks(half, hn::LowerHalf(half, v), apart, to);
    StoreBlocks(half, hn::UpperHalf(half, v), apart, to + static_cast<int64_t>(hn::Lanes(half)) / 4 * apart);
  }
}
#endif

// to[c * to_row + r] = from[r * from_row + c] for r < rows and c < columns; other elements of `to` stay.
HWY_INLINE void TransposeRows(const float* HWY_RESTRICT from, int64_t from_row, int64_t rows, int64_t columns,
                              float* HWY_RESTRICT to, int64_t to_row) {
  int64_t whole_rows = 0;
  int64_t whole_columns = 0;
#if HWY_TARGET != HWY_SCALAR
  const FloatTag d;
  const hn::Repartition<double, FloatTag> pairs;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  whole_rows = rows / 4 * 4;
  whole_columns = columns / lanes * lanes;
  for (int64_t r = 0; r < whole_rows; r += 4) {
    for (int64_t c = 0; c < whole_columns; c += lanes) {
      const float* at = from + r * from_row + c;
      const auto row0 = hn::LoadU(d, at);
      const auto row1 = hn::LoadU(d, at + from_row);
      const auto row2 = hn::LoadU(d, at + 2 * from_row);
      const auto row3 = hn::LoadU(d, at + 3 * from_row);
      const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, row0, row1));
      const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, row0, row1));
      const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, row2, row3));
      const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, row2, row3));
      float* column = to + c * to_row + r;
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), 4 * to_row, column);
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), 4 * to_row, column + to_row);
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), 4 * to_row, column + 2 * to_row);
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), 4 * to_row, column + 3 * to_row);
    }
  }
#endif
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r) to[c * to_row + r] = from[r * from_row + c];
  }
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
