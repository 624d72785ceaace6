#include "kernels/primitives/varlen_index/varlen_index.h"

#include <limits>

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateVarlenIndex(const VarlenIndexParams& params) {
  constexpr char kOp[] = "VarlenIndex";
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "sequences", params.sequences, 0, 1 << 30));
  GDN_RETURN_IF_ERROR(RequireRange(kOp, "tokens", params.tokens, 0, std::numeric_limits<int32_t>::max()));
  if (params.sequences == 0) GDN_RETURN_IF_ERROR(RequireRange(kOp, "tokens", params.tokens, 0, 0));
  if (params.chunk_offsets != nullptr) {
    GDN_RETURN_IF_ERROR(RequireRange(kOp, "chunk", params.chunk, 1, 1 << 30));
  }
  return RequirePointer(kOp, "cu_seqlens", params.cu_seqlens);
}

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
