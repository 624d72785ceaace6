#include "kernels/primitives/varlen_index/varlen_index.h"

namespace gdn {

void VarlenIndexReference(const VarlenIndexParams& params) {
  int32_t chunks = 0;
  if (params.chunk_offsets != nullptr) params.chunk_offsets[0] = 0;
  for (int32_t i = 0; i < params.sequences; ++i) {
    const int32_t begin = params.cu_seqlens[i];
    const int32_t length = params.cu_seqlens[i + 1] - begin;
    if (params.lengths != nullptr) params.lengths[i] = length;
    for (int32_t position = 0; position < length; ++position) {
      if (params.sequence_ids != nullptr) params.sequence_ids[begin + position] = i;
      if (params.position_ids != nullptr) params.position_ids[begin + position] = position;
    }
    if (params.chunk_offsets != nullptr) {
      chunks += length / params.chunk + (length % params.chunk != 0 ? 1 : 0);
      params.chunk_offsets[i + 1] = chunks;
    }
  }
}

}  // namespace gdn
