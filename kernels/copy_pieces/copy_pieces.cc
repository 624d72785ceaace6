#include "kernels/copy_pieces/copy_pieces.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {

absl::Status ValidateCopyPieces(absl::Span<const CopyPiece> pieces) {
  constexpr char kOp[] = "CopyPieces";
  for (size_t i = 0; i < pieces.size(); ++i) {
    const CopyPiece& piece = pieces[i];
    GDN_RETURN_IF_ERROR(RequireEntryAtLeast(kOp, "floats", static_cast<int64_t>(i), piece.floats, 0));
    if (piece.floats == 0) continue;
    GDN_RETURN_IF_ERROR(RequirePointers(kOp, {{"to", piece.to}, {"from", piece.from}}));
  }
  return absl::OkStatus();
}

std::vector<CopyPiece> CopySharesOf(absl::Span<const CopyPiece> pieces) {
  std::vector<CopyPiece> shares;
  shares.reserve(pieces.size());
  for (const CopyPiece& piece : pieces) {
    for (int64_t at = 0; at < piece.floats; at += kCopyShareFloats) {
      shares.push_back({piece.to + at, piece.from + at, std::min(kCopyShareFloats, piece.floats - at)});
    }
  }
  return shares;
}

}  // namespace gdn
