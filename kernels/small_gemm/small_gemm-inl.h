// Register-tiled products of small matrices, C += A B, for operands that live in the L1 and L2 caches.
//
// A is read one broadcast element at a time, with any row and column stride (so also transposed); B is read in vectors
// along its rows. A tile of C stays in registers. Every element of C is one chain of MulAdd in order of depth, so its
// bits depend neither on the tile's size nor on its place in it. MulAdd rounds once, but twice on targets without fused
// multiply-adds (SSE4, scalar).
// A Highway per-target header: include it below foreach_target.h. Thread safety: free functions.
//
//   ForRowTiles(rows, [&](auto tile, int64_t row) HWY_ATTR {
//     constexpr int kRows = decltype(tile)::value;
//     hn::Vec<FloatTag> acc[kRows][kTileVectors];
//     SetTile(d, 0.0f, acc);
//     MultiplyAccumulate(d, depth, a + row * a_row, a_row, /*a_column=*/1, b, b_row, acc);
//     StoreTile(d, acc, c + row * c_row, c_row);
//   });

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_SMALL_GEMM_SMALL_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_SMALL_GEMM_SMALL_GEMM_INL_H_
#undef GDN_KERNELS_SMALL_GEMM_SMALL_GEMM_INL_H_
#else
#define GDN_KERNELS_SMALL_GEMM_SMALL_GEMM_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that buffers padded to 16 floats serve every target.
using FloatTag = hn::CappedTag<float, 16>;

// A tile: kTileRows x kTileVectors accumulators, kTileVectors of B and one of A must fit the vector registers.
inline constexpr bool kManyRegisters = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64;
inline constexpr int kTileRows = kManyRegisters ? 8 : 6;
inline constexpr int kTileVectors = 2;

// Load and store a vector of float32 values, from or to float32, or bfloat16 as uint16_t: widened exactly, rounded to
// nearest even. Addresses need no alignment.
template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadElements(D d, const uint16_t* from) {
  const hn::RebindToUnsigned<D> words;
  const hn::Rebind<uint16_t, D> halves;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LoadU(halves, from))));
}
template <class D>
HWY_INLINE void StoreElements(D d, hn::Vec<D> values, float* to) {
  hn::StoreU(values, d, to);
}
template <class D>
HWY_INLINE void StoreElements(D d, hn::Vec<D> values, uint16_t* to) {
  const hn::RebindToUnsigned<D> words;
  const hn::Rebind<uint16_t, D> halves;
  const auto bits = hn::BitCast(words, values);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff))));
  const auto quieted = hn::Or(hn::ShiftRight<16>(bits), hn::Set(words, 0x40));  // a NaN
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(values));
  hn::StoreU(hn::TruncateTo(halves, hn::IfThenElse(is_nan, quieted, rounded)), halves, to);
}

// Tiles are arrays of vectors. They stay in registers only if every loop over them is unrolled, so all have HWY_UNROLL.

// Sets every element of acc to `value`.
template <int kRows, int kVectors, class D>
HWY_INLINE void SetTile(D d, float value, hn::Vec<D> (&acc)[kRows][kVectors]) {
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) acc[r][n] = hn::Set(d, value);
  }
}

// acc = diag(scale) C: row r of the tile is scale[r * scale_step] times the elements from c + r * c_row on.
template <int kRows, int kVectors, class D, typename Element>
HWY_INLINE void LoadScaledTile(D d, const float* scale, int64_t scale_step, const Element* c, int64_t c_row,
                               hn::Vec<D> (&acc)[kRows][kVectors]) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    const hn::Vec<D> factor = hn::Set(d, scale[r * scale_step]);
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) acc[r][n] = hn::Mul(factor, LoadElements(d, c + r * c_row + n * lanes));
  }
}

// C = acc: row r of the tile goes to c + r * c_row, rounded if Element is uint16_t (bfloat16).
template <int kRows, int kVectors, class D, typename Element>
HWY_INLINE void StoreTile(D d, const hn::Vec<D> (&acc)[kRows][kVectors], Element* c, int64_t c_row) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) StoreElements(d, acc[r][n], c + r * c_row + n * lanes);
  }
}

// acc[r][n] += sum over p < depth, in order, of a[r * a_row + p * a_column] * b[p * b_row + n * lanes ...].
template <int kRows, int kVectors, class D>
HWY_INLINE void MultiplyAccumulate(D d, int64_t depth, const float* HWY_RESTRICT a, int64_t a_row, int64_t a_column,
                                   const float* HWY_RESTRICT b, int64_t b_row, hn::Vec<D> (&acc)[kRows][kVectors]) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t p = 0; p < depth; ++p) {
    hn::Vec<D> b_vectors[kVectors];
    HWY_UNROLL(16)
    for (int n = 0; n < kVectors; ++n) b_vectors[n] = hn::LoadU(d, b + p * b_row + n * lanes);
    HWY_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
      const hn::Vec<D> element = hn::Set(d, a[r * a_row + p * a_column]);
      HWY_UNROLL(16)
      for (int n = 0; n < kVectors; ++n) acc[r][n] = hn::MulAdd(element, b_vectors[n], acc[r][n]);
    }
  }
}

// Copies the first `columns` elements, at most a tile's width (kTileVectors vectors), of each row; rows are from_row
// and to_row elements apart. Converts between float and bfloat16 (uint16_t). kPad: fills rows with zeros up to that
// width.
template <bool kPad, typename From, typename To>
HWY_INLINE void CopyRows(const From* HWY_RESTRICT from, int64_t from_row, int64_t rows, int64_t columns,
                         To* HWY_RESTRICT to, int64_t to_row) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = kTileVectors * lanes;
  for (int64_t i = 0; i < rows; ++i, from += from_row, to += to_row) {
    if (HWY_LIKELY(columns == width)) {
      HWY_UNROLL(16)
      for (int n = 0; n < kTileVectors; ++n) StoreElements(d, LoadElements(d, from + n * lanes), to + n * lanes);
    } else {
      const hn::CappedTag<float, 1> one;
      for (int64_t j = 0; j < columns; ++j) StoreElements(one, LoadElements(one, from + j), to + j);
      for (int64_t j = columns; kPad && j < width; ++j) to[j] = 0;
    }
  }
}

// Load or store a panel: a dense float matrix [rows, kTileVectors vectors]. They copy its first `columns` columns from
// or to a matrix with rows from_row or to_row elements apart; loads fill the panel with zeros past them.
template <typename Element>
HWY_INLINE void LoadPanel(const Element* from, int64_t from_row, int64_t rows, int64_t columns, float* panel) {
  CopyRows<true>(from, from_row, rows, columns, panel, kTileVectors * static_cast<int64_t>(hn::Lanes(FloatTag())));
}
template <typename Element>
HWY_INLINE void StorePanel(const float* panel, int64_t rows, int64_t columns, Element* to, int64_t to_row) {
  CopyRows<false>(panel, kTileVectors * static_cast<int64_t>(hn::Lanes(FloatTag())), rows, columns, to, to_row);
}

// Calls body(std::integral_constant<int, n>, row) for tiles of n rows from `row` on that cover [0, rows) in order.
// There are as many of kTileRows as fit, then at most one each of 4, 2 and 1.
template <class Body>
HWY_INLINE void ForRowTiles(int64_t rows, const Body& body) {
  int64_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) body(std::integral_constant<int, kTileRows>(), row);
  if (row + 4 <= rows) {
    body(std::integral_constant<int, 4>(), row);
    row += 4;
  }
  if (row + 2 <= rows) {
    body(std::integral_constant<int, 2>(), row);
    row += 2;
  }
  if (row < rows) body(std::integral_constant<int, 1>(), row);
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // GDN_KERNELS_SMALL_GEMM_SMALL_GEMM_INL_H_
