// Buffers of one worker of the chunked delta rule, all in one piece of memory: ChunkScratch for one decay a head,
// ChannelChunkScratch for decays by key channel.
//
// Thread safety: plain pointers, for one thread at a time. Ownership: none; the memory must outlive it.
//
//   WorkerScratch::Make(pool.threads(), ChunkScratch::Floats(dims.key_dim));
//   ChunkScratch buffers(scratch.piece(worker), dims.key_dim);
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/delta_rule_chunk/delta_rule_chunk.h"

namespace gdn {

inline constexpr int64_t kMaxPanelColumns = 32;  // most value columns of a panel: two vectors of at most 16 floats

struct ChunkScratch {
  static constexpr int64_t kC = kChunkTokens;

  float* q;        // [C, K]
  float* k;        // [C, K]
  float* k_t;      // [K, C]; columns past the chunk's tokens are zero
  float* kk;       // [C, C], k_i . k_j; valid for j <= i only
  float* qk;       // [C, C], q_i . k_j; valid for j <= i only
  float* a;        // [C, C], -A; valid for j < i only
  float* p;        // [C, C], P = q_i . k_j e^{G_i - G_j}; valid for j <= i only
  float* u;        // [C, panel]
  float* decayed;  // [C, panel], e^{G_C - G_i} u_i
  float* values;   // [C, panel], of a panel with fewer columns: v as input, o as output

  static int64_t Floats(int64_t key_dim) { return 3 * kC * key_dim + 4 * kC * kC + kMaxPanelColumns * 3 * kC; }

  // Divides `data`, Floats(key_dim) floats that it does not own, into the buffers. Every size is a multiple of 16
  // floats, so every buffer starts at a cache line if `data` does.
  ChunkScratch(float* data, int64_t key_dim) {
    const auto take = [&data](int64_t floats) { return std::exchange(data, data + floats); };
    for (float** matrix : {&q, &k, &k_t}) *matrix = take(kC * key_dim);
    for (float** matrix : {&kk, &qk, &a, &p}) *matrix = take(kC * kC);
    for (float** panel : {&u, &decayed, &values}) *panel = take(kC * kMaxPanelColumns);
  }
};

// Tokens of a block, within which decays are multiplied from token to token. Divides kChunkTokens.
inline constexpr int64_t kDecayBlockTokens = 16;

struct ChannelChunkScratch {
  static constexpr int64_t kC = kChunkTokens;
  static constexpr int64_t kB = kDecayBlockTokens;

  int64_t row;  // K, rounded up to a multiple of 16; keys, queries and log decays are zero past K

  // For the block that is being prepared; B = kDecayBlockTokens.
  float* block_q;  // [B, row]
  float* block_k;  // [B, row]
  float* decay;    // [B, row], e^{g_i}
  float* carry;    // [row]
  double* sums;    // [row], sums of the block's log decays

  // For the chunk.
  float* q;            // [C, row], e^{G_i} q_i
  float* k;            // [C, row], e^{G_i} k_i
  float* k_t;          // [row, C], k_j decayed to the end of its block, finally of the chunk
  float* block_decay;  // [C / B, row], decays of whole blocks
  float* chunk_decay;  // [row], e^{G_C}
  double* chunk_sums;  // [row], G_C
  float* a;            // [C, C], -A; valid for j < i only
  float* p;            // [C, C], P; valid for j <= i only
  float* ones;         // [C]
  float* beta;         // [C]

  // For a panel.
  float* u;       // [C, panel]
  float* values;  // [C, panel], of a panel with fewer columns: v as input, o as output

  static int64_t Padded(int64_t key_dim) { return (key_dim + 15) / 16 * 16; }
  static int64_t Floats(int64_t key_dim) {
    return (3 * kB + 3 * kC + kC / kB + 6) * Padded(key_dim) + 2 * kC * kC + 2 * kC + kMaxPanelColumns * 2 * kC;
  }

  // Divides `data`, Floats(key_dim) floats that it does not own, into the buffers. Every size is a multiple of 16
  // floats, so every buffer starts at a cache line if `data` does.
  ChannelChunkScratch(float* data, int64_t key_dim) : row(Padded(key_dim)) {
    const auto take = [&data](int64_t floats) { return std::exchange(data, data + floats); };
    for (float** block : {&block_q, &block_k, &decay}) *block = take(kB * row);
    for (float** matrix : {&q, &k, &k_t}) *matrix = take(kC * row);
    block_decay = take(kC / kB * row);
    for (float** channels : {&carry, &chunk_decay}) *channels = take(row);
    for (double** channels : {&sums, &chunk_sums}) *channels = reinterpret_cast<double*>(take(2 * row));
    for (float** square : {&a, &p}) *square = take(kC * kC);
    for (float** tokens : {&ones, &beta}) *tokens = take(kC);
    for (float** panel : {&u, &values}) *panel = take(kC * kMaxPanelColumns);
  }
};

}  // namespace gdn
