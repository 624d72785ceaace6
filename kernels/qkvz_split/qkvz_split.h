// Splits the in-projections' outputs into mixed_qkv [q | k | v], z, b and a, each flat over heads.
//
// kInterleaved (Qwen3-Next): per key head, qkvz holds [q K | k K | v r*V | z r*V] and ba holds [b r | a r], r = HV / H.
// kFlat (Qwen3.5), and kSeparate after joining: qkvz is [q | k | v | z] and ba is [b | a], each over all heads. A
// permutation: exact to the bit. Thread safety: any number of calls at a time.
//
//   GDN_RETURN_IF_ERROR(backend.QkvzSplit({.layout = spec.projections, .dims = dims, .rows = n, .qkvz = y, ...}));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/layer_spec.h"
#include "base/threads/thread_pool.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct QkvzSplitParams {
  ProjectionLayout layout = ProjectionLayout::kFlat;
  LayerDims dims;
  int64_t rows = 0;
  const float* qkvz = nullptr;  // [rows, 2 H K + 2 HV V]
  const float* ba = nullptr;    // [rows, 2 HV]
  float* mixed_qkv = nullptr;   // [rows, C], C = 2 H K + HV V
  float* z = nullptr;           // [rows, HV, V]
  float* b = nullptr;           // [rows, HV]
  float* a = nullptr;           // [rows, HV]
};

absl::Status ValidateQkvzSplit(const QkvzSplitParams& params);
void QkvzSplitReference(const QkvzSplitParams& params);
absl::Status QkvzSplitCpu(const QkvzSplitParams& params, ThreadPool& pool);
absl::Status QkvzSplitGpu(const QkvzSplitParams& params, const gpu::Stream& stream);

}  // namespace gdn
