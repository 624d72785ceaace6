// The chunked delta rule in stages, each a launch of its own, as in the literature (Yang et al., arXiv:2412.06464,
// section 3.3, and arXiv:2406.06484 for the WY form). The production path is kernels/delta_rule_chunk; this one stores
// every intermediate tensor, so that each can be inspected and compared.
//
// Per chunk of C tokens and value head, G the running sum of g within the chunk (double):
//   decay sums    G_i = sum_{j<=i} g_j
//   KK^T          A_ij = beta_i (k_i.k_j) e^{G_i-G_j}, j < i             (without decay: e^0)
//   decay mask    D_ij = e^{G_i-G_j}, j <= i
//   attention     P_ij = (q_i.k_j) e^{G_i-G_j}, j <= i
//   solve         T = (I + A)^-1                                         (primitives/triangular_solve, in place on A)
//   WY            w = T diag(beta e^G) K        u = T diag(beta) V
//   states        v_new = u - w S      S <- e^{G_C} S + (e^{G_C-G} K)^T v_new      (S before chunk c is kept as h_c)
//   output        o_i = e^{G_i} h_c^T q_i + sum_{j<=i} P_ij v_new_j
// Matrices of a chunk are [chunks, HV, C, C]; rows and columns past a tail's length are zero. Differences of G are
// taken in double, masked before exp and rounded after; there is no e^{G_i} * e^{-G_j}. q arrives scaled; neither q nor
// k is normalised. Value head hv reads key head hv / (HV / H). A sequence's bits do not depend on its companions.
// Thread safety: any number of calls at a time on different outputs. Ownership: none; all pointers are backend memory
// (host memory for the references).
//
//   ChunkedBatch batch{.dims = dims, .chunk_tokens = 64, .sequences = n, .tokens = tokens, .chunks = chunks,
//                      .cu_seqlens = cu, .chunk_offsets = offsets};
//   GDN_RETURN_IF_ERROR(ChunkDecaySumsGpu({batch, g, g_sum}, stream));
//   GDN_RETURN_IF_ERROR(DeltaRuleStagesGpu(all, stream));  // or all of them
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/layer_dims.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// Sequences laid end to end and divided into chunks; every sequence starts a new chunk. The arrays are backend memory,
// not owned.
struct ChunkedBatch {
  LayerDims dims;            // heads and head dimensions
  int32_t chunk_tokens = 0;  // C: 16, 32 or 64
  int32_t sequences = 0;
  int32_t tokens = 0;                      // cu_seqlens[sequences]
  int32_t chunks = 0;                      // chunk_offsets[sequences]
  const int32_t* cu_seqlens = nullptr;     // [sequences + 1]
  const int32_t* chunk_offsets = nullptr;  // [sequences + 1], chunks before sequence i; ceil(length / C) each
};

struct ChunkDecaySumsParams {
  ChunkedBatch batch = {};
  const float* g = nullptr;  // [tokens, HV], <= 0
  double* g_sum = nullptr;   // [tokens, HV], of g clamped (kernels/common/log_decay.h)
};

struct ChunkKktParams {
  ChunkedBatch batch = {};
  const float* k = nullptr;       // [tokens, H, K]
  int64_t k_stride = 0;           // floats from token to token
  const float* beta = nullptr;    // [tokens, HV]
  const double* g_sum = nullptr;  // [tokens, HV], or null: no decay
  float* a = nullptr;             // [chunks, HV, C, C], strictly lower
};

// Params of decay sums and KK^T (matrix A) in one stage; writes g_sum and a.
struct CumsumKktParams {
  ChunkedBatch batch = {};
  const float* k = nullptr;  // [tokens, H, K]
  int64_t k_stride = 0;
  const float* g = nullptr;     // [tokens, HV]
  const float* beta = nullptr;  // [tokens, HV]
  double* g_sum = nullptr;      // [tokens, HV]
  float* a = nullptr;           // [chunks, HV, C, C], strictly lower
};

struct ChunkDecayMaskParams {
  ChunkedBatch batch = {};
  const double* g_sum = nullptr;  // [tokens, HV]
  float* mask = nullptr;          // [chunks, HV, C, C], lower with the diagonal
};

struct ChunkAttentionParams {
  ChunkedBatch batch = {};
  const float* q = nullptr;  // [tokens, H, K], scaled
  const float* k = nullptr;  // [tokens, H, K]
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  const double* g_sum = nullptr;  // [tokens, HV], or null: no decay
  float* attention = nullptr;     // [chunks, HV, C, C], lower with the diagonal
};

struct WyParams {
  ChunkedBatch batch = {};
  const float* t = nullptr;  // [chunks, HV, C, C], (I + A)^-1
  const float* k = nullptr;  // [tokens, H, K]
  const float* v = nullptr;  // [tokens, HV, V]
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  const float* beta = nullptr;    // [tokens, HV]
  const double* g_sum = nullptr;  // [tokens, HV]
  float* w = nullptr;             // [tokens, HV, K]
  float* u = nullptr;             // [tokens, HV, V]
};

struct ChunkStateParams {
  ChunkedBatch batch = {};
  const float* k = nullptr;  // [tokens, H, K]
  int64_t k_stride = 0;
  const float* w = nullptr;              // [tokens, HV, K]
  const float* u = nullptr;              // [tokens, HV, V]
  const double* g_sum = nullptr;         // [tokens, HV]
  const float* initial_state = nullptr;  // [sequences, HV, K, V], or null: zero
  float* h = nullptr;                    // [chunks, HV, K, V], the state before each chunk
  float* v_new = nullptr;                // [tokens, HV, V]; may be `u`
  float* final_state = nullptr;          // [sequences, HV, K, V]
};

struct ChunkOutputParams {
  ChunkedBatch batch = {};
  const float* q = nullptr;  // [tokens, H, K], scaled
  int64_t q_stride = 0;
  const float* h = nullptr;          // [chunks, HV, K, V]
  const float* attention = nullptr;  // [chunks, HV, C, C]
  const float* v_new = nullptr;      // [tokens, HV, V]
  const double* g_sum = nullptr;     // [tokens, HV]
  float* output = nullptr;           // [tokens, HV, V]
};

// Params of all stages in a row. q to initial_state are inputs. Everything else is written and must not be null: the
// results and every intermediate tensor.
struct DeltaRuleStagesParams {
  ChunkedBatch batch = {};
  const float* q = nullptr;  // [tokens, H, K], scaled
  const float* k = nullptr;  // [tokens, H, K]
  const float* v = nullptr;  // [tokens, HV, V]
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  const float* g = nullptr;              // [tokens, HV]
  const float* beta = nullptr;           // [tokens, HV]
  const float* initial_state = nullptr;  // [sequences, HV, K, V], or null: zero
  float* output = nullptr;               // [tokens, HV, V]
  float* final_state = nullptr;          // [sequences, HV, K, V]
  double* g_sum = nullptr;               // [tokens, HV]
  float* t = nullptr;                    // [chunks, HV, C, C]
  float* attention = nullptr;            // [chunks, HV, C, C]
  float* w = nullptr;                    // [tokens, HV, K]
  float* v_new = nullptr;                // [tokens, HV, V]; holds u until the states stage
  float* h = nullptr;                    // [chunks, HV, K, V]
};

// INVALID_ARGUMENT if a pointer is missing, a stride is shorter than its row, C is not 16, 32 or 64, or the counts
// cannot belong to any batch. The index arrays' contents are in backend memory and are not checked. The *Gpu functions
// need valid params.
absl::Status ValidateStage(const ChunkDecaySumsParams& params);
absl::Status ValidateStage(const ChunkKktParams& params);
absl::Status ValidateStage(const CumsumKktParams& params);
absl::Status ValidateStage(const ChunkDecayMaskParams& params);
absl::Status ValidateStage(const ChunkAttentionParams& params);
absl::Status ValidateStage(const WyParams& params);
absl::Status ValidateStage(const ChunkStateParams& params);
absl::Status ValidateStage(const ChunkOutputParams& params);

// Double-precision references on host memory, for valid params. A stage's stored results are float32 (G: double), sums
// within it double.
void ChunkDecaySumsReference(const ChunkDecaySumsParams& params);
void ChunkKktReference(const ChunkKktParams& params);
void CumsumKktReference(const CumsumKktParams& params);
void ChunkDecayMaskReference(const ChunkDecayMaskParams& params);
void ChunkAttentionReference(const ChunkAttentionParams& params);
void WyReference(const WyParams& params);
void ChunkStateReference(const ChunkStateParams& params);
void ChunkOutputReference(const ChunkOutputParams& params);

absl::Status ChunkDecaySumsGpu(const ChunkDecaySumsParams& params, const gpu::Stream& stream);
absl::Status ChunkKktGpu(const ChunkKktParams& params, const gpu::Stream& stream);
absl::Status CumsumKktGpu(const CumsumKktParams& params, const gpu::Stream& stream);
absl::Status ChunkDecayMaskGpu(const ChunkDecayMaskParams& params, const gpu::Stream& stream);
absl::Status ChunkAttentionGpu(const ChunkAttentionParams& params, const gpu::Stream& stream);
absl::Status WyGpu(const WyParams& params, const gpu::Stream& stream);
absl::Status ChunkStateGpu(const ChunkStateParams& params, const gpu::Stream& stream);
absl::Status ChunkOutputGpu(const ChunkOutputParams& params, const gpu::Stream& stream);
absl::Status DeltaRuleStagesGpu(const DeltaRuleStagesParams& params, const gpu::Stream& stream);

}  // namespace gdn
