// Index arrays of packed sequences of different lengths, computed on the device from cu_seqlens.
//
//   lengths[i]        cu_seqlens[i + 1] - cu_seqlens[i]
//   sequence_ids[t]   the sequence that token t belongs to
//   position_ids[t]   t - cu_seqlens[sequence_ids[t]]
//   chunk_offsets[i]  sum over s < i of ceil(lengths[s] / chunk): the first chunk of sequence i; last: the total
// cu_seqlens must start at 0, never decrease and end at `tokens`; it is on the device, so that is not checked.
// Sequences may be empty.
// Thread safety: any number of calls at a time on different outputs. Ownership: none; pointers are backend memory (host
// memory for the reference).
//
//   GDN_RETURN_IF_ERROR(VarlenIndexGpu({.sequences = n, .tokens = t, .chunk = 64, .cu_seqlens = cu,
//                                       .sequence_ids = ids, .chunk_offsets = offsets}, stream));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// Params of the index arrays, all in backend memory. Outputs that are null are not computed.
struct VarlenIndexParams {
  int32_t sequences = 0;
  int32_t tokens = 0;
  int32_t chunk = 0;                    // tokens of a chunk, for chunk_offsets only
  const int32_t* cu_seqlens = nullptr;  // [sequences + 1]
  int32_t* lengths = nullptr;           // [sequences]
  int32_t* sequence_ids = nullptr;      // [tokens]
  int32_t* position_ids = nullptr;      // [tokens]
  int32_t* chunk_offsets = nullptr;     // [sequences + 1]
};

absl::Status ValidateVarlenIndex(const VarlenIndexParams& params);
void VarlenIndexReference(const VarlenIndexParams& params);
absl::Status VarlenIndexGpu(const VarlenIndexParams& params, const gpu::Stream& stream);

}  // namespace gdn
