// A chunk's matrices A and P for decays by key channel (KDA). They are not a mask times k k^T and q k^T; instead
//   P_ij = sum_c q_i[c] k_j[c] e^{G_i[c] - G_j[c]}.
// Inside a block a decay is a product of e^{g_t} over the tokens between, each at most 1. So nothing overflows for any
// g; a product loses half a unit in the last place per factor. Decays of whole blocks and of the chunk are exponentials
// of sums in double instead, because errors would add up from chunk to chunk, and a decay that float32 cannot
// distinguish from 1 would be lost. With blocks of 16 tokens, and b the last token of a block:
//   inside a block     k_j is decayed from token to token, one multiplication per pair and channel
//   between blocks     (q_i e^{G_i - G_b}) . (k_j e^{G_b - G_j}), j <= b < i, as a product of matrices; for each block
//                      further back, the rows are multiplied by one more block's decay
// Finally the rows are e^{G_i} q_i and e^{G_i} k_i, and the columns e^{G_C - G_j} k_j, as the panels need them.
// A row's bits do not depend on later tokens: only rows of later blocks use a block's columns, once it is full.
//
// A Highway per-target header: include it below foreach_target.h, in files compiled without contraction. Thread safety:
// free functions. Ownership: none.
//
//   LoadBlock(params, first + 16 * block, rows, hv, scratch);
//   BlockMatrices(scratch, block, rows);
//   DecayToEnd(scratch, tokens);  // after the last block

// Included once per target, so the guard toggles.
#if defined(GDN_KERNELS_DELTA_RULE_CHUNK_CHANNEL_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDN_KERNELS_DELTA_RULE_CHUNK_CHANNEL_PRODUCTS_INL_H_
#undef GDN_KERNELS_DELTA_RULE_CHUNK_CHANNEL_PRODUCTS_INL_H_
#else
#define GDN_KERNELS_DELTA_RULE_CHUNK_CHANNEL_PRODUCTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/common/channel_decay-inl.h"
#include "kernels/common/delta_rule.h"
#include "kernels/delta_rule_chunk/chunk_scratch.h"
#include "kernels/small_gemm/small_gemm-inl.h"
#include "kernels/small_gemm/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {

// Number of vectors that hold a block's 16 columns at a time: one of 16 lanes, or kTileVectors narrower ones.
inline constexpr int kBlockVectors = kManyRegisters ? 1 : kTileVectors;

// to[c] = a[c] * b[c] for c < row, a multiple of the vector's lanes; the arrays may be the same.
HWY_INLINE void MultiplyRow(const float* a, const float* b, int64_t row, float* to) {
  const FloatTag d;
  for (int64_t c = 0; c < row; c += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(hn::Mul(hn::LoadU(d, a + c), hn::LoadU(d, b + c)), d, to + c);
  }
}

// Loads token rows [first, first + rows) of the batch for value head `hv`, at most kDecayBlockTokens: q, k and e^g,
// dense, into scratch.block_q, block_k and decay. Sets scratch.sums to the sums of their g.
HWY_INLINE void LoadBlock(const DeltaRuleParams& params, int64_t first, int64_t rows, int64_t hv,
                          const ChannelChunkScratch& scratch) {
  const FloatTag d;
  const int64_t key_dim = params.pool.layout.dims().key_dim;
  const auto copy = [&](const float* from, float* to) {
    std::memcpy(to, from, static_cast<size_t>(key_dim) * sizeof(float));
    std::fill(to + key_dim, to + scratch.row, 0.0f);
  };
  std::fill_n(scratch.sums, scratch.row, 0.0);
  for (int64_t i = 0; i < rows; ++i) {
    const HeadToken token = HeadTokenAt(params, first + i, hv);
    float* decay = scratch.decay + i * scratch.row;
    copy(token.q, scratch.block_q + i * scratch.row);
    copy(token.k, scratch.block_k + i * scratch.row);
    copy(token.g, decay);
    for (int64_t c = 0; c < scratch.row; c += static_cast<int64_t>(hn::Lanes(d))) {
      AddToSums(d, decay + c, scratch.sums + c);
      hn::StoreU(ExpOrNaN(d, hn::LoadU(d, decay + c)), d, decay + c);
    }
  }
}

// Computes column j of a block's -A and P in rows [i, i + kRows) of the block, all after j. scratch.carry holds k_j
// decayed to the row before them, afterwards to their last row. `beta` is of the block's rows; a and p point to element
// (i, j) of matrices whose rows have kChunkTokens elements.
template <int kRows>
HWY_INLINE void ColumnProducts(const ChannelChunkScratch& scratch, int64_t i, const float* beta, float* a, float* p) {
  const FloatTag d;
  using Vec = hn::Vec<FloatTag>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vec sum_k[kRows];
  Vec sum_q[kRows];
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) sum_k[r] = sum_q[r] = hn::Zero(d);
  for (int64_t c = 0; c < scratch.row; c += lanes) {
    Vec key = hn::LoadU(d, scratch.carry + c);
    HWY_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = (i + r) * scratch.row + c;
      key = hn::Mul(key, hn::LoadU(d, scratch.decay + at));
      sum_k[r] = hn::MulAdd(key, hn::LoadU(d, scratch.block_k + at), sum_k[r]);
      sum_q[r] = hn::MulAdd(key, hn::LoadU(d, scratch.block_q + at), sum_q[r]);
    }
    hn::StoreU(key, d, scratch.carry + c);
  }
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    a[r * kChunkTokens] = -beta[i + r] * hn::GetLane(hn::SumOfLanes(d, sum_k[r]));
    p[r * kChunkTokens] = hn::GetLane(hn::SumOfLanes(d, sum_q[r]));
  }
}

// Computes the diagonal block of -A (below the diagonal) and P (with the diagonal) whose first element `a` and `p`
// point to, from the `rows` rows that LoadBlock has loaded. `beta` is of these rows.
HWY_INLINE void DiagonalBlock(const ChannelChunkScratch& scratch, int64_t rows, const float* beta, float* a, float* p) {
  const FloatTag d;
  for (int64_t j = 0; j < rows; ++j) {
    const float* key = scratch.block_k + j * scratch.row;
    std::memcpy(scratch.carry, key, static_cast<size_t>(scratch.row) * sizeof(float));
    hn::Vec<FloatTag> self = hn::Zero(d);
    for (int64_t c = 0; c < scratch.row; c += static_cast<int64_t>(hn::Lanes(d))) {
      self = hn::MulAdd(hn::LoadU(d, key + c), hn::LoadU(d, scratch.block_q + j * scratch.row + c), self);
    }
    p[j * kChunkTokens + j] = hn::GetLane(hn::SumOfLanes(d, self));
    int64_t i = j + 1;
    const auto column = [&](auto count) HWY_ATTR {
      constexpr int kRows = decltype(count)::value;
      ColumnProducts<kRows>(scratch, i, beta, a + i * kChunkTokens + j, p + i * kChunkTokens + j);
      i += kRows;
    };
    while (i + 4 <= rows) column(std::integral_constant<int, 4>());
    if (i + 2 <= rows) column(std::integral_constant<int, 2>());
    if (i < rows) column(std::integral_constant<int, 1>());
  }
}

// Writes the block's rows q_i and k_i, decayed from its start, to scratch.q and k, and its columns k_j, decayed to its
// end, to scratch.k_t. Also sets block_decay of the block and adds the block's sums to chunk_sums.
HWY_INLINE void DecayRowsAndColumns(const ChannelChunkScratch& scratch, int64_t block, int64_t rows) {
  const int64_t row = scratch.row;
  const size_t bytes = static_cast<size_t>(row) * sizeof(float);
  const int64_t first = block * kDecayBlockTokens;
  for (int64_t i = 0; i < rows; ++i) {
    const float* decay = scratch.decay + i * row;
    if (i == 0) {
      std::memcpy(scratch.carry, decay, bytes);
    } else {
      MultiplyRow(scratch.carry, decay, row, scratch.carry);
    }
    MultiplyRow(scratch.carry, scratch.block_q + i * row, row, scratch.q + (first + i) * row);
    MultiplyRow(scratch.carry, scratch.block_k + i * row, row, scratch.k + (first + i) * row);
  }
  const FloatTag d;
  for (int64_t c = 0; c < row; c += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(DecayOf(d, scratch.sums + c), d, scratch.block_decay + block * row + c);
  }
  for (int64_t c = 0; c < row; ++c)
    scratch.chunk_sums[c] = (block == 0 ? 0.0 : scratch.chunk_sums[c]) + scratch.sums[c];
  std::memcpy(scratch.carry, scratch.decay + (rows - 1) * row, bytes);
  for (int64_t j = rows - 2; j >= 0; --j) {
    MultiplyRow(scratch.carry, scratch.block_k + j * row, row, scratch.block_k + j * row);
    if (j > 0) MultiplyRow(scratch.carry, scratch.decay + j * row, row, scratch.carry);
  }
  TransposeRows(scratch.block_k, row, rows, row, scratch.k_t + first, kChunkTokens);
}

// Computes -A and P of the rows of block `block` in the columns of block `earlier`. The rows in scratch.q and k are
// decayed from the end of `earlier`.
HWY_INLINE void OffDiagonalBlock(const ChannelChunkScratch& scratch, int64_t block, int64_t rows, int64_t earlier) {
  const FloatTag d;
  const int64_t width = kBlockVectors * static_cast<int64_t>(hn::Lanes(d));
  const int64_t first = block * kDecayBlockTokens;
  ForRowTiles(rows, [&](auto tile, int64_t begin) HWY_ATTR {
    constexpr int kRows = decltype(tile)::value;
    const int64_t row = first + begin;
    const int64_t end = (earlier + 1) * kDecayBlockTokens;
    for (int64_t column = earlier * kDecayBlockTokens; column < end; column += width) {
      hn::Vec<FloatTag> acc[kRows][kBlockVectors];
      SetTile(d, 0.0f, acc);
      MultiplyAccumulate(d, scratch.row, scratch.k + row * scratch.row, scratch.row, 1, scratch.k_t + column,
                         kChunkTokens, acc);
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        const hn::Vec<FloatTag> minus_beta = hn::Set(d, -scratch.beta[row + r]);
        HWY_UNROLL(16)
        for (int n = 0; n < kBlockVectors; ++n) acc[r][n] = hn::Mul(minus_beta, acc[r][n]);
      }
      StoreTile(d, acc, scratch.a + row * kChunkTokens + column, kChunkTokens);
      SetTile(d, 0.0f, acc);
      MultiplyAccumulate(d, scratch.row, scratch.q + row * scratch.row, scratch.row, 1, scratch.k_t + column,
                         kChunkTokens, acc);
      StoreTile(d, acc, scratch.p + row * kChunkTokens + column, kChunkTokens);
    }
  });
}

// Computes -A and P of the `rows` rows of block `block` (number in the chunk) after LoadBlock. Then scratch.q and k
// have its rows decayed from the chunk's start, and k_t its columns decayed to the block's end. Call for the chunk's
// blocks in order, from 0.
HWY_NOINLINE void BlockMatrices(const ChannelChunkScratch& scratch, int64_t block, int64_t rows) {
  const int64_t first = block * kDecayBlockTokens;
  const int64_t corner = first * kChunkTokens + first;
  DiagonalBlock(scratch, rows, scratch.beta + first, scratch.a + corner, scratch.p + corner);
  DecayRowsAndColumns(scratch, block, rows);
  for (int64_t earlier = block - 1; earlier >= 0; --earlier) {
    OffDiagonalBlock(scratch, block, rows, earlier);
    const float* decay = scratch.block_decay + earlier * scratch.row;
    for (int64_t i = first; i < first + rows; ++i) {
      MultiplyRow(decay, scratch.q + i * scratch.row, scratch.row, scratch.q + i * scratch.row);
      MultiplyRow(decay, scratch.k + i * scratch.row, scratch.row, scratch.k + i * scratch.row);
    }
  }
}

// Decays the columns k_j of scratch.k_t from their block's end to the chunk's, and sets scratch.chunk_decay. Call after
// the chunk's last block; `tokens` is the chunk's, at least 1.
HWY_NOINLINE void DecayToEnd(const ChannelChunkScratch& scratch, int64_t tokens) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t last = (tokens - 1) / kDecayBlockTokens;
  float* left = scratch.chunk_decay;
  std::memcpy(left, scratch.block_decay + last * scratch.row, static_cast<size_t>(scratch.row) * sizeof(float));
  for (int64_t block = last - 1; block >= 0; --block) {
    for (int64_t c = 0; c < scratch.row; ++c) {
      const hn::Vec<FloatTag> factor = hn::Set(d, left[c]);
      float* columns = scratch.k_t + c * kChunkTokens + block * kDecayBlockTokens;
      for (int64_t j = 0; j < kDecayBlockTokens; j += lanes) {
        hn::StoreU(hn::Mul(factor, hn::LoadU(d, columns + j)), d, columns + j);
      }
    }
    MultiplyRow(left, scratch.block_decay + block * scratch.row, scratch.row, left);
  }
  for (int64_t c = 0; c < scratch.row; c += lanes) hn::StoreU(DecayOf(d, scratch.chunk_sums + c), d, left + c);
}

}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
