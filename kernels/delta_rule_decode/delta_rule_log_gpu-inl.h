// The decode log on the GPU: decays between its entries, dot products with its keys, and the fold of a log into columns
// of the base. Shared by the decode step and MaterializeStateGpu, so that a state folded by either has the same bits.
//
// Thread safety: pure functions. For *_gpu.hip files only.
//
//   FoldColumns<kElements, kColumns, kExact>(decay, entries, lane, key_dim, key_row, weight_at, u_at, s);
#pragma once

#include "kernels/common/base_columns_gpu-inl.h"

namespace gdn::gpu {

// k_e.k_t, maybe weighted by the decay to the token, in two parts. The state keeps a prediction's error, and with
// repeating keys a rounding of this number is the same at every token: it alone would add up to 2.4e-7 a token.
struct KeyProduct {
  float nearest;
  float rest;  // rounding error of `nearest`
};
__device__ __forceinline__ KeyProduct SplitProduct(double product) {
  const float nearest = static_cast<float>(product);
  return {nearest, static_cast<float>(product - static_cast<double>(nearest))};
}

// Dot products of a token's k and q with one entry's key. In LDS, `nearest` of an entry is at `at`, q kLogCapacity
// further on, and `rest` at `rest_at`.
struct EntryDots {
  KeyProduct k;
  float q;

  template <typename Dots>
  __device__ __forceinline__ void Store(Dots& dots, int at, int rest_at) const {
    dots[at] = k.nearest;
    dots[at + kLogCapacity] = q;
    dots[rest_at] = k.rest;
  }
  template <typename Dots>
  __device__ __forceinline__ static EntryDots Load(Dots& dots, int at, int rest_at) {
    return {{dots[at], dots[rest_at]}, dots[at + kLogCapacity]};
  }
};
inline constexpr int kEntryDotFloats = 3 * kLogCapacity;

// A lane's partial dot products of rows with k and q, summed as WideDot (row 0, a logged key, with k) or Dot does (all
// others, in four sums each). k[0] is unused.
template <int kRows>
struct DotSums {
  WideSum wide_k;  // row 0 with k; row 0 is a logged key
  float k[kRows][4];
  float q[kRows][4];
};

template <int kStep, bool kExact, int kRows>
__device__ __forceinline__ void AddProducts(const float* const (&rows)[kRows], const float* k, const float* q, int at,
                                            int lane, int left, DotSums<kRows>& sums) {
  float x[kStep];
  float y[kStep];
  LoadFragment<kStep, kExact>(k + at, lane, left, x);
  LoadFragment<kStep, kExact>(q + at, lane, left, y);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float e[kStep];
    LoadFragment<kStep, kExact>(rows[r] + at, lane, left, e);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (r == 0) {
        sums.wide_k.Add(e[i], x[i]);
      } else {
        sums.k[r][i & 3] = fmaf(e[i], x[i], sums.k[r][i & 3]);
      }
      sums.q[r][i & 3] = fmaf(e[i], y[i], sums.q[r][i & 3]);
    }
  }
}

// Computes this lane's parts of row.k and row.q for kRows rows of K, streamed, because rows above 256 elements would
// fill the registers. Row 0 is a logged key: its product with k is summed as in WideDot into wide_k, and part_k[0] is
// not written. Other sums run in the order of Dot and begin at `start` (-0 for Dot's bits). Only the last elements are
// guarded; kExact: none are.
template <bool kExact, int kRows>
__device__ __forceinline__ void StreamedDots(const float* const (&rows)[kRows], const float* k, const float* q,
                                             int lane, int key_dim, const float (&start)[kRows], double& wide_k,
                                             float (&part_k)[kRows], float (&part_q)[kRows]) {
  constexpr int kLong = 16 / kRows;
  constexpr int kShort = 4;
  DotSums<kRows> sums;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.k[r][i] = sums.q[r][i] = start[r];
  }
  int at = 0;
#pragma unroll 1
  for (; at + kLong * kColumnLanes <= key_dim; at += kLong * kColumnLanes) {
    AddProducts<kLong, kExact>(rows, k, q, at, lane, kLong * kColumnLanes, sums);
  }
  if constexpr (!kExact) {
#pragma unroll 1
    for (; at < key_dim; at += kShort * kColumnLanes) {
      AddProducts<kShort, false>(rows, k, q, at, lane, key_dim - at, sums);
    }
  }
  wide_k = sums.wide_k.Total();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r > 0) part_k[r] = (sums.k[r][0] + sums.k[r][1]) + (sums.k[r][2] + sums.k[r][3]);
    part_q[r] = (sums.q[r][0] + sums.q[r][1]) + (sums.q[r][2] + sums.q[r][3]);
  }
}

// s <- decay s + sum_e weight_e k_e u_e^T over e < `entries`, in order for each element. key_row(e) returns k_e [K],
// weight_at(e) exp(G_L - G_e); u_at(e, float (&)[kColumns]) loads u_e of the columns. Keys above 256 elements are read
// 64 elements at a time.
template <int kElements, int kColumns, bool kExact, typename KeyRow, typename WeightAt, typename UAt>
__device__ __forceinline__ void FoldColumns(float decay, int entries, int lane, int key_dim, KeyRow key_row,
                                            WeightAt weight_at, UAt u_at, float (&s)[kColumns][kElements]) {
  constexpr int kPiece = kElements <= 16 ? kElements : 4;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) s[c][i] *= decay;
  }
#pragma unroll
  for (int piece = 0; piece < kElements; piece += kPiece) {
#pragma unroll 1
    for (int e = 0; e < entries; ++e) {
      float k[kPiece];
      float u[kColumns];
      if constexpr (kPiece == kElements) {
        LoadFragment<kElements, kExact>(key_row(e), lane, key_dim, k);
      } else {
        LoadPiece<kPiece, kExact>(key_row(e) + piece * kColumnLanes, lane, key_dim - piece * kColumnLanes, k);
      }
      u_at(e, u);
      const float weight = weight_at(e);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        const float weighted = weight * k[i];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s[c][piece + i] = fmaf(weighted, u[c], s[c][piece + i]);
      }
    }
  }
}

// Most value columns per group of 16 lanes with kElements elements per lane: 32 registers of state, so that two waves
// fit a SIMD.
template <int kElements>
inline constexpr int kMostColumns = kElements <= 32 ? 32 / kElements : 1;

// Returns the value columns per group, one of `most`, most / 2 and most / 4 (at least 2 if `most` is). It is the most
// of them that wastes no columns and still fills the device, or the least if none does. `heads`: value heads of all
// sequences together. More columns per block share the log's dot products.
inline int ChooseColumns(int most, int64_t heads, int32_t value_dim, const Stream& stream) {
  int columns = most;
  while (columns > 2 && columns * 4 > most) {
    const bool wasteful = CeilDivide(value_dim, columns / 2 * kDeltaRuleGroups) % 2 == 1;
    const bool few = heads * CeilDivide(value_dim, columns * kDeltaRuleGroups) < int64_t{stream.processors} * 2;
    if (!wasteful && !few) break;
    columns /= 2;
  }
  return columns;
}

// Calls function(std::integral_constant<int, columns>) with ChooseColumns(kMost, ..)'s result, and returns its status.
template <int kMost, int kColumns = kMost, typename Function>
absl::Status WithColumns(int columns, Function&& function) {
  if constexpr (kColumns > 2 && kColumns * 4 > kMost) {
    if (columns < kColumns) return WithColumns<kMost, kColumns / 2>(columns, std::forward<Function>(function));
  }
  return function(std::integral_constant<int, kColumns>());
}

}  // namespace gdn::gpu
