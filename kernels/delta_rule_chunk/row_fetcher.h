// Prefetches the next chunk's rows into the L2 cache while the current chunk is computed, a few lines at a time.
//
// A head's rows are a whole token apart, so the hardware prefetcher does not find them. Prefetched all at once they
// would fill the processor's few slots for outstanding lines, and the products would wait.
// Thread safety: a plain object, for one thread. Ownership: none; addresses are prefetched, never read.
//
//   RowFetcher ahead = NextChunk(params, token + kChunkTokens, end, hv, /*heads=*/1, 0, dims.value_dim);
//   for (...) { /* products */ ahead.Fetch(); }
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/common/delta_rule.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"

namespace gdn {

class RowFetcher {
 public:
  // Adds the first `floats` floats of each of `rows` rows (both at least 1), which are `stride` floats apart. Call at
  // most kMostPieces times.
  void Add(const float* first, int64_t stride, int64_t rows, int64_t floats) {
    pieces_[static_cast<size_t>(count_++)] = {first, stride, rows, floats};
  }

  // Prefetches the next kLinesAtATime cache lines, or as many as are left.
  void Fetch() {
    for (int line = 0; line < kLinesAtATime && piece_ < count_; ++line) {
      Piece& piece = pieces_[static_cast<size_t>(piece_)];
      __builtin_prefetch(piece.row + column_, /*rw=*/0, /*locality=*/2);
      column_ += kLineFloats;
      if (column_ < piece.floats) continue;
      column_ = 0;
      if (--piece.rows > 0) {
        piece.row += piece.stride;
      } else {
        ++piece_;
      }
    }
  }

  static constexpr int kMostPieces = 5;

 private:
  static constexpr int kLinesAtATime = 14;
  static constexpr int64_t kLineFloats = 16;

  struct Piece {
    const float* row;
    int64_t stride;
    int64_t rows;
    int64_t floats;
  };

  std::array<Piece, kMostPieces> pieces_{};
  int count_ = 0;
  int piece_ = 0;
  int64_t column_ = 0;  // floats of the piece's present row that were prefetched
};

// Returns a fetcher for the chunk of token rows [first, first + kChunkTokens), cut at `end`; it fetches nothing if none
// are left. It fetches the data that a task reads and writes. The task's value columns run from first_column of value
// head hv to last_column (exclusive) of head hv + heads - 1, all with one key head.
inline RowFetcher NextChunk(const DeltaRuleParams& params, int64_t first, int64_t end, int64_t hv, int64_t heads,
                            int64_t first_column, int64_t last_column) {
  RowFetcher ahead;
  const int64_t tokens = std::min<int64_t>(kChunkTokens, end - first);
  if (tokens <= 0) return ahead;
  const LayerDims& dims = params.pool.layout.dims();
  const HeadToken token = HeadTokenAt(params, first, hv);
  const int64_t columns = (heads - 1) * dims.value_dim + last_column - first_column;
  ahead.Add(token.q, params.q_stride, tokens, dims.key_dim);
  ahead.Add(token.k, params.k_stride, tokens, dims.key_dim);
  if (dims.decays_by_channel()) ahead.Add(token.g, dims.value_heads * dims.decay_dim(), tokens, dims.key_dim);
  ahead.Add(token.v + first_column, params.v_stride, tokens, columns);
  ahead.Add(token.output + first_column, dims.value_features(), tokens, columns);
  return ahead;
}

}  // namespace gdn
