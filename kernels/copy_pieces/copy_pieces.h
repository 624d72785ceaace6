// Copies many pieces of backend memory in one call: rows that are gathered or spread, parts of slots. A GPU does it in
// one launch, where a copy of each would be one.
//
// Thread safety: any number of calls at a time on other memory. Ownership: none.
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

// Pieces of one call are copied in any order: what one writes no other reads or writes.
struct CopyPiece {
  float* to = nullptr;
  const float* from = nullptr;
  int64_t floats = 0;
};

// INVALID_ARGUMENT where a piece has a pointer that is null or a negative length.
absl::Status ValidateCopyPieces(absl::Span<const CopyPiece> pieces);

// Floats of a piece that a block of the GPU's kernel copies: longer pieces are cut.
inline constexpr int64_t kCopyShareFloats = 4096;
// The pieces without empty ones, none longer than that.
std::vector<CopyPiece> CopySharesOf(absl::Span<const CopyPiece> pieces);

// `shares` are CopySharesOf's, on the device.
absl::Status CopyPiecesGpu(const CopyPiece* shares, int64_t count, const gpu::Stream& stream);

}  // namespace gdn
