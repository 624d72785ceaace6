// Lengths, sequence ids, position ids and chunk offsets from cu_seqlens on the GPU.
//
// Lengths: a thread a sequence. Ids: a thread a token, by binary search in cu_seqlens (in cache). Chunk offsets: one
// block, 256 sequences at a time, scanned in LDS with what came before carried along. Resources: 1 KB LDS. Bound by
// latency.

#include "base/status_macros.h"
#include "kernels/gpu/launch.h"
#include "kernels/primitives/varlen_index/varlen_index.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 256;

struct Shared {
  LdsArray<int32_t, kThreads> chunks;
};

__global__ __launch_bounds__(kThreads) void LengthsKernel(VarlenIndexParams p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < p.sequences) p.lengths[i] = p.cu_seqlens[i + 1] - p.cu_seqlens[i];
}

// The last sequence that begins at or before `token`: with empty ones before it at the same place, the one that holds
// it.
__device__ __forceinline__ int32_t SequenceOf(const VarlenIndexParams& p, int32_t token) {
  int32_t low = 0;
  int32_t high = p.sequences;  // cu_seqlens[low] <= token < cu_seqlens[high]
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (p.cu_seqlens[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ __launch_bounds__(kThreads) void TokenIdsKernel(VarlenIndexParams p) {
  const int64_t token = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= p.tokens) return;
  const int32_t sequence = SequenceOf(p, static_cast<int32_t>(token));
  if (p.sequence_ids != nullptr) p.sequence_ids[token] = sequence;
  if (p.position_ids != nullptr) p.position_ids[token] = static_cast<int32_t>(token) - p.cu_seqlens[sequence];
}

__global__ __launch_bounds__(kThreads) void ChunkOffsetsKernel(VarlenIndexParams p) {
  Shared& s = SharedMemory<Shared>();
  const int thread = threadIdx.x;
  int32_t carried = 0;
  if (thread == 0) p.chunk_offsets[0] = 0;
  for (int32_t first = 0; first < p.sequences; first += kThreads) {
    const int32_t i = first + thread;
    int32_t chunks = 0;
    if (i < p.sequences) {
      const int32_t length = p.cu_seqlens[i + 1] - p.cu_seqlens[i];
      chunks = length / p.chunk + (length % p.chunk != 0 ? 1 : 0);
    }
#pragma unroll
    for (int distance = 1; distance < kThreads; distance *= 2) {
      s.chunks[thread] = chunks;
      SyncThreads();
      if (thread >= distance) {
        const int32_t before = s.chunks[thread - distance];
        chunks += before;
      }
      SyncThreads();
    }
    s.chunks[thread] = chunks;
    SyncThreads();
    if (i < p.sequences) p.chunk_offsets[i + 1] = carried + chunks;
    const int32_t all = s.chunks[kThreads - 1];
    carried += all;
    SyncThreads();
  }
}

}  // namespace
}  // namespace gpu

absl::Status VarlenIndexGpu(const VarlenIndexParams& params, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ValidateVarlenIndex(params));
  if (params.lengths != nullptr) {
    GDN_RETURN_IF_ERROR(gpu::Launch("varlen_lengths", gpu::LengthsKernel,
                                    {gpu::CeilDivide(params.sequences, gpu::kThreads)}, gpu::kThreads, stream, params));
  }
  if (params.sequence_ids != nullptr || params.position_ids != nullptr) {
    GDN_RETURN_IF_ERROR(gpu::Launch("varlen_token_ids", gpu::TokenIdsKernel,
                                    {gpu::CeilDivide(params.tokens, gpu::kThreads)}, gpu::kThreads, stream, params));
  }
  if (params.chunk_offsets == nullptr) return absl::OkStatus();
  return gpu::Launch("varlen_chunk_offsets", gpu::ChunkOffsetsKernel, {1}, gpu::kThreads, stream, params);
}

}  // namespace gdn
