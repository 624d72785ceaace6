// A chunk of the gated delta rule computed by primitive launches (products, masks, vector multiplies, the triangular
// inverse), one for each step of the literature. It is slow, but each step can be inspected. The fused kernels do all
// steps in one launch.
//
//   A = tril(beta_i (k_i . k_j) e^{G_i - G_j}, -1);   T = (I + A)^-1;   P = tril(Q K^T e^{G_i - G_j})
//   U = T (beta (V - e^G K S));   O = e^G Q S + P U;   S <- e^{G_C} S + (e^{G_C - G} K)^T U
// (source: Yang et al., "Gated Delta Networks", arXiv:2412.06464, section 3.3)
// Thread safety: for one thread. Ownership: frees its backend memory on destruction; the backend must outlive it.
//
//   GDN_ASSIGN_OR_RETURN(ChunkByPrimitives steps, ChunkByPrimitives::Make(backend, chunk, key_dim, value_dim));
//   GDN_RETURN_IF_ERROR(steps.Run(chunk, state, output));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/gpu/stream.h"
#include "tools/gdn_parity/backend_data.h"

namespace gdn::parity {

// Consecutive tokens of one head, in backend memory. Strides are in floats from one token to the next.
struct ChunkView {
  int64_t tokens = 0;
  const float* q = nullptr;  // [tokens, K], already scaled
  const float* k = nullptr;  // [tokens, K]
  int64_t key_stride = 0;
  const float* v = nullptr;     // [tokens, V]
  int64_t value_stride = 0;     // floats from one token to the next, of v and of the output
  const float* g = nullptr;     // [tokens], log decay
  const float* beta = nullptr;  // [tokens]
  int64_t gate_stride = 0;
};

class ChunkByPrimitives {
 public:
  // Allocates buffers for chunks of up to `tokens` tokens (at most 64). Errors of GpuStreamOf if the backend has no GPU
  // stream, and of the device.
  static absl::StatusOr<ChunkByPrimitives> Make(Backend& backend, int64_t tokens, int64_t key_dim, int64_t value_dim);

  // Advances `state` [K, V] and writes `output` [tokens, V], both in backend memory. Null state: starts from zeros, and
  // the state is not kept. Issues the launches and does not wait for them.
  absl::Status Run(const ChunkView& chunk, float* state, float* output);

  // Intermediate results of the last chunk, [tokens, ...], dense, in backend memory; the next Run overwrites them.
  const float* attention() const { return attention_; }  // A = tril(beta_i (k_i . k_j) e^{G_i - G_j}, -1)
  const float* inverse() const { return inverse_; }      // T = (I + A)^-1
  const float* scores() const { return scores_; }        // P = tril(Q K^T e^{G_i - G_j})
  const float* updates() const { return updates_; }      // U = T (beta (V - e^G K S))

 private:
  explicit ChunkByPrimitives(Backend& backend) : data_(backend) {}

  BackendData data_;
  gpu::Stream stream_;
  int64_t key_dim_ = 0;
  int64_t value_dim_ = 0;
  float* mask_ = nullptr;
  float* from_start_ = nullptr;  // e^G
  float* to_end_ = nullptr;      // e^{G_C - G}
  float* attention_ = nullptr;
  float* inverse_ = nullptr;
  float* scores_ = nullptr;
  float* scaled_rows_ = nullptr;  // [tokens, K]
  float* residuals_ = nullptr;    // [tokens, V], beta (V - e^G K S)
  float* updates_ = nullptr;      // [tokens, V]
};

}  // namespace gdn::parity
