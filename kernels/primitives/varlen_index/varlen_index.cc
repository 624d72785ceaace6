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

}  // namespace gdn
