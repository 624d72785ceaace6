// Buffers of one worker of the chunked delta rule, all in one piece of memory.
//
// Thread safety: plain pointers, for one thread at a time. Ownership: none; the memory must outlive it.
//
//   WorkerScratch::Make(pool.threads(), ChunkScratch::Floats(dims.key_dim));
//   ChunkScratch buffers(scratch.piece(worker), dims.key_dim);
#pragma once

#include <cstdint>

#include "kernels/delta_rule_chunk/delta_rule_chunk.h"

namespace gdn {

struct ChunkScratch {
  static constexpr int64_t kC = kChunkTokens;
  static constexpr int64_t kMaxPanelColumns = 32;  // two vectors of at most 16 floats

  float* q;        // [C, K]
  float* k;        // [C, K]
  float* k_t;      // [K, C]; columns past the chunk's tokens are zero
  float* kk;       // [C, C], k_i . k_j; valid for j <= i only
  float* qk;       // [C, C], q_i . k_j; valid for j <= i only
  float* a;        // [C, C], -A; valid for j < i only
  float* p;        // [C, C], P = q_i . k_j e^{G_i - G_j}; valid for j <= i only
  float* state;    // [K, panel]
  float* u;        // [C, panel]
  float* decayed;  // [C, panel], e^{G_C - G_i} u_i
  float* values;   // [C, panel], v as input, o as output

  static int64_t Floats(int64_t key_dim) {
    return 3 * kC * key_dim + 4 * kC * kC + kMaxPanelColumns * (key_dim + 3 * kC);
  }

  // Every size is a multiple of 16 floats, so every buffer starts at a cache line.
  ChunkScratch(float* data, int64_t key_dim) {
    const auto take = [&data](int64_t floats) {
      float* buffer = data;
      data += floats;
      return buffer;
    };
    for (float** matrix : {&q, &k, &k_t}) *matrix = take(kC * key_dim);
    for (float** matrix : {&kk, &qk, &a, &p}) *matrix = take(kC * kC);
    state = take(kMaxPanelColumns * key_dim);
    for (float** panel : {&u, &decayed, &values}) *panel = take(kC * kMaxPanelColumns);
  }
};

}  // namespace gdn
