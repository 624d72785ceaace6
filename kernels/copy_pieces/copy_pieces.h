// Copies many pieces of backend memory in one call: rows to gather or scatter, parts of slots. A GPU needs one launch
// instead of one copy per piece.
//
// Thread safety: concurrent calls must use different memory. Ownership: none.
//
//   const CopyPiece pieces[] = {{y, x + 3 * width, width}, {y + width, x, width}};
//   GDN_RETURN_IF_ERROR(backend.CopyPieces(pieces));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/gpu/stream.h"

namespace gdn {

// One range to copy within backend memory; empty if `floats` is 0. The pieces of a call are copied in any order, so no
// piece may write what another reads or writes, nor overlap itself.
struct CopyPiece {
  float* to = nullptr;
  const float* from = nullptr;
  int64_t floats = 0;
};

// INVALID_ARGUMENT if a piece has a negative length, or a null pointer without being empty. Overlaps are not checked.
absl::Status ValidateCopyPieces(absl::Span<const CopyPiece> pieces);

// Most floats that one block of the GPU kernel copies: longer pieces are split.
inline constexpr int64_t kCopyShareFloats = 4096;
// Returns the pieces in order, split to at most kCopyShareFloats floats each and without empty ones.
std::vector<CopyPiece> CopySharesOf(absl::Span<const CopyPiece> pieces);

// Issues the copies of `count` shares on `stream`. `shares` is the result of CopySharesOf, in device memory until the
// kernel has run.
absl::Status CopyPiecesGpu(const CopyPiece* shares, int64_t count, const gpu::Stream& stream);

}  // namespace gdn
