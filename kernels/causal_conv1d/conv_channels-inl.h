// Device code: the causal convolution, for channels that one thread handles through all tokens of a tile.
//
// A thread handles four neighbouring channels. Sequences are divided into tiles of at least W - 1 tokens, so only the
// first tile of a sequence reads the ring. The thread that computes that tile then updates the ring, which no other
// thread of the launch touches in these columns. Every path sums over taps w = 0 .. W - 1, so any split gives the same
// bits.
// Blocks: y strides over tiles, z over sequences.
// Thread safety: plain values. Ownership: none.
//
//   const ConvGeometry geometry = MakeConvGeometry(pool, batch);
//   ConvolveChannels<true>(geometry, x, stride, map, weight, channel, y);
#pragma once

#include <cstdint>

#include "kernels/common/state_layout.h"
#include "kernels/gpu/gate_math.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/stream.h"

namespace gdn::gpu {

struct ConvGeometry {
  DeviceBatch batch;
  float* conv;          // slot 0's conv section, [P, C]
  int64_t slot_floats;  // floats from slot to slot
  int32_t columns;      // P: columns of a slot's ring
  int32_t channels;     // C
  int32_t width;        // W: taps of a channel
  int32_t tile_tokens;  // tokens of a tile, >= W - 1; PlanConvTiles sets it
};

// A sequence as one thread sees it: pointers are at the thread's first channel.
struct ConvSequence {
  const float* x;    // the call's first token
  int64_t x_stride;  // floats from token to token
  float* ring;       // column 0 of the slot's ring; if not live, of some other slot, and not to be used
  int32_t channels;  // floats from column to column
  int32_t columns;   // P: columns of the ring
  int32_t first;     // ring column of the call's first token
  int32_t length;    // tokens of the sequence in this call
  bool live;         // false for padding: its outputs are zero, its slot is not touched
};

inline ConvGeometry MakeConvGeometry(const StatePoolView& pool, const DeviceBatch& batch) {
  const LayerDims& dims = pool.layout.dims();
  return {.batch = batch,
          .conv = pool.data + pool.layout.conv_offset(),
          .slot_floats = pool.layout.slot_floats(),
          .columns = pool.layout.conv_columns(),
          .channels = static_cast<int32_t>(dims.conv_channels()),
          .width = dims.conv_width,
          .tile_tokens = 0};
}

// Returns the grid: x is `blocks_x` blocks of channels, y tiles, z sequences; empty if the batch has no tokens. Sets
// geometry.tile_tokens. A tile's tokens are sequential, so tiles are short unless the grid fills the device anyway. If
// the sequences alone fill it several times over, a block takes several sequences and loads its taps once.
inline Grid PlanConvTiles(int64_t blocks_x, const Stream& stream, ConvGeometry& geometry) {
  constexpr int32_t kShortestTile = 4;
  constexpr int32_t kLongestTile = 16;
  constexpr int64_t kMostTiles = 32768;
  const DeviceBatch& batch = geometry.batch;
  const int64_t plenty = int64_t{stream.processors} * 16;
  int32_t tile = kShortestTile;
  while (tile < geometry.width - 1) tile *= 2;
  while (tile < kLongestTile && blocks_x * CeilDivide(batch.tokens, tile) > plenty) tile *= 2;
  geometry.tile_tokens = tile;
  if (batch.tokens == 0) return {0, 1, 1};
  const int64_t all_tiles = CeilDivide(batch.max_length, tile);
  const int64_t tiles = all_tiles < kMostTiles ? all_tiles : kMostTiles;
  const int64_t groups = CeilDivide(plenty, blocks_x * tiles);
  return {blocks_x, tiles, batch.sequences < groups ? batch.sequences : groups};
}

// Returns count mod columns, for count >= 0 and columns in 1 .. 65536. Avoids a 64-bit remainder, which costs hundreds
// of cycles.
__device__ __forceinline__ int32_t ColumnOf(int64_t count, uint32_t columns) {
  const auto low = static_cast<uint32_t>(count);
  const auto high = static_cast<uint32_t>(count >> 32);
  if (high == 0) return static_cast<int32_t>(low % columns);
  const uint32_t carry = 0xffffffffu % columns + 1;  // 2^32 mod columns, or columns
  return static_cast<int32_t>((high % columns * carry + low % columns) % columns);
}

// Returns the thread's view of a sequence of the batch. `x`: the thread's first channel of the batch's first token,
// with tokens `x_stride` floats apart. `channel`: the number of that channel in a ring column, 0 .. C - 1.
__device__ __forceinline__ ConvSequence SequenceAt(const ConvGeometry& g, int32_t sequence, const float* x,
                                                   int64_t x_stride, int32_t channel) {
  const int32_t begin = g.batch.cu_seqlens[sequence];
  const int32_t slot = g.batch.slots[sequence];
  ConvSequence s{.x = x + begin * x_stride,
                 .x_stride = x_stride,
                 .ring = g.conv + (slot < 0 ? 0 : slot) * g.slot_floats + channel,
                 .channels = g.channels,
                 .columns = g.columns,
                 .first = 0,
                 .length = g.batch.cu_seqlens[sequence + 1] - begin,
                 .live = slot >= 0};
  if (s.live) {
    s.first = ColumnOf(g.batch.token_counts[sequence], static_cast<uint32_t>(g.columns));
  }
  return s;
}

// Returns the address of the thread's inputs of token `t` of the sequence, counted from the call's first; t < s.length.
// Negative tokens are earlier ones, in the ring: the last W - 1 (-W < t), because a rejected draft may have overwritten
// older ones. If t < 0: only for live sequences, and before AdvanceRing.
__device__ __forceinline__ const float* TokenInput(const ConvSequence& s, int32_t t) {
  if (t >= 0) return s.x + t * s.x_stride;
  const int32_t column = s.first + t;
  return s.ring + int64_t{column < 0 ? column + s.columns : column} * s.channels;
}

// State of four neighbouring channels with width 4: each channel's taps, and the inputs of the last three tokens. Step
// takes the next token's inputs and returns its outputs.
struct ConvWindow4 {
  Vec4 taps_x, taps_y, taps_z, taps_w;
  Vec4 oldest, older, newest;

  __device__ __forceinline__ void LoadTaps(const float* weight) {
    taps_x = Load4(weight);
    taps_y = Load4(weight + 4);
    taps_z = Load4(weight + 8);
    taps_w = Load4(weight + 12);
  }
  // Loads the inputs of the three tokens before token `begin`.
  __device__ __forceinline__ void LoadHistory(const ConvSequence& s, int32_t begin) {
    oldest = Load4(TokenInput(s, begin - 3));
    older = Load4(TokenInput(s, begin - 2));
    newest = Load4(TokenInput(s, begin - 1));
  }
  __device__ __forceinline__ Vec4 Step(const Vec4& x) {
    const Vec4 y{Channel(taps_x, oldest.x, older.x, newest.x, x.x), Channel(taps_y, oldest.y, older.y, newest.y, x.y),
                 Channel(taps_z, oldest.z, older.z, newest.z, x.z), Channel(taps_w, oldest.w, older.w, newest.w, x.w)};
    oldest = older;
    older = newest;
    newest = x;
    return y;
  }
  __device__ __forceinline__ static float Channel(const Vec4& taps, float x0, float x1, float x2, float x3) {
    return Silu(fmaf(taps.w, x3, fmaf(taps.z, x2, fmaf(taps.y, x1, taps.x * x0))));
  }
};

// Returns the output of token `t`, counted from the call's first, for the channel that is `offset` after the thread's
// first one. `taps`: that channel's `width` taps; any width >= 2. Only for live sequences.
__device__ __forceinline__ float ConvolveToken(const ConvSequence& s, int32_t offset, const float* taps, int32_t width,
                                               int32_t t) {
  float sum = taps[0] * TokenInput(s, t - width + 1)[offset];
#pragma unroll 1
  for (int32_t w = 1; w < width; ++w) sum = fmaf(taps[w], TokenInput(s, t - width + 1 + w)[offset], sum);
  return Silu(sum);
}

// Stores the inputs of the sequence's newest min(length, P) tokens in its ring. kVector: for four channels, else for
// one; the first is `offset` after the thread's first channel. Only for live sequences.
template <bool kVector>
__device__ __forceinline__ void AdvanceRing(const ConvSequence& s, int32_t offset) {
#pragma unroll 1
  for (int32_t t = s.length > s.columns ? s.length - s.columns : 0; t < s.length; ++t) {
    float* column = s.ring + int64_t{(s.first + t) % s.columns} * s.channels + offset;
    if constexpr (kVector) {
      Store4(column, Load4(s.x + t * s.x_stride + offset));
    } else {
      *column = s.x[t * s.x_stride + offset];
    }
  }
}

// Convolves tokens [begin, end) of a sequence, for four channels with width 4. `window` has its taps loaded. `y` is the
// output of the sequence's first token, tokens `y_stride` floats apart. Padding gets zeros.
__device__ __forceinline__ void ConvolveTile4(const ConvSequence& s, ConvWindow4& window, int32_t begin, int32_t end,
                                              float* y, int32_t y_stride) {
  if (!s.live) {
    for (int32_t t = begin; t < end; ++t) Store4(y + int64_t{t} * y_stride, {0.0f, 0.0f, 0.0f, 0.0f});
    return;
  }
  Vec4 x = Load4(TokenInput(s, begin));
  window.LoadHistory(s, begin);
  for (int32_t t = begin; t < end; ++t) {
    const Vec4 next = Load4(TokenInput(s, t + 1 < end ? t + 1 : t));
    Store4(y + int64_t{t} * y_stride, window.Step(x));
    x = next;
  }
}

// Convolves channels [channel, channel + 4), as far as they exist, of this block's sequences and tiles into y [tokens,
// C], and updates their rings. Element map(c) of a row of x [tokens, x_stride] is channel c; weight is [C, W]. kVector:
// width 4, all four channels exist, map keeps neighbours adjacent, everything is 16-byte aligned.
template <bool kVector, typename Map>
__device__ __forceinline__ void ConvolveChannels(const ConvGeometry& g, const float* x, int64_t x_stride,
                                                 const Map& map, const float* weight, int32_t channel, float* y) {
  const int32_t step = static_cast<int32_t>(gridDim.y) * g.tile_tokens;
  const int32_t first_tile = static_cast<int32_t>(blockIdx.y) * g.tile_tokens;
  const int32_t sequences_step = static_cast<int32_t>(gridDim.z);
  if constexpr (kVector) {
    ConvWindow4 window;
    window.LoadTaps(weight + int64_t{channel} * 4);
    for (int32_t i = static_cast<int32_t>(blockIdx.z); i < g.batch.sequences; i += sequences_step) {
      const ConvSequence s = SequenceAt(g, i, x + map(channel), x_stride, channel);
      float* rows = y + int64_t{g.batch.cu_seqlens[i]} * g.channels + channel;
      for (int32_t begin = first_tile; begin < s.length; begin += step) {
        const int32_t end = begin + g.tile_tokens < s.length ? begin + g.tile_tokens : s.length;
        ConvolveTile4(s, window, begin, end, rows, g.channels);
        if (begin == 0 && s.live) AdvanceRing<true>(s, 0);
      }
    }
    return;
  }
  for (int32_t i = static_cast<int32_t>(blockIdx.z); i < g.batch.sequences; i += sequences_step) {
#pragma unroll 1
    for (int32_t c = channel; c < channel + 4; ++c) {
      if (c >= g.channels) continue;
      const ConvSequence s = SequenceAt(g, i, x + map(c), x_stride, c);
      const float* taps = weight + int64_t{c} * g.width;
      float* rows = y + int64_t{g.batch.cu_seqlens[i]} * g.channels + c;
#pragma unroll 1
      for (int32_t begin = first_tile; begin < s.length; begin += step) {
        const int32_t end = begin + g.tile_tokens < s.length ? begin + g.tile_tokens : s.length;
#pragma unroll 1
        for (int32_t t = begin; t < end; ++t) {
          rows[int64_t{t} * g.channels] = s.live ? ConvolveToken(s, 0, taps, g.width, t) : 0.0f;
        }
        if (begin == 0 && s.live) AdvanceRing<false>(s, 0);
      }
    }
  }
}

}  // namespace gdn::gpu
