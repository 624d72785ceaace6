// What parsed state files make: a session's image, and a full file of a delta and the file that it is a delta to.
//
// A delta leaves out the base states that its reader has from an earlier file.
// Thread safety: free functions on values. Ownership: an image keeps the owner of the file's bytes alive.
//
//   GDN_RETURN_IF_ERROR(CompleteDelta(full, delta));
//   GDN_ASSIGN_OR_RETURN(SessionImage image, ReadImage(delta, layout, owner_of_both));
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "state_store/session_image.h"
#include "state_store/state_file/parse.h"

namespace gdn {

// The file's states as an image in wire order; nothing is copied. `layout`'s dims must be the file's; `owner` keeps the
// bytes of the file alive. FAILED_PRECONDITION (STATE_MISMATCH) where a draft is longer than the layout's, or for a
// delta; and CheckStateDtype's, unless `convert`: then bases are widened, or rounded.
absl::StatusOr<SessionImage> ReadImage(const StateFile& file, const StateLayout& layout,
                                       std::shared_ptr<const void> owner, bool convert = false);

// FAILED_PRECONDITION (STATE_MISMATCH: base_dtype) where the file has states whose bases are not of the layout's dtype.
// Its header is enough.
absl::Status CheckStateDtype(const StateFile& file, const StateLayout& layout);

// Gives the layers of `delta` without a base that of `full`, which must outlive it. FAILED_PRECONDITION
// (STATE_MISMATCH) where it is a delta to another file.
absl::Status CompleteDelta(const StateFile& full, StateFile& delta);

// The full file that `delta` stands for, given the full file it is a delta to: tensors and metadata are the delta's,
// and the bases it leaves out the full file's. FAILED_PRECONDITION (STATE_MISMATCH) where it is a delta to another.
absl::StatusOr<std::string> MergeDelta(std::string_view full, std::string_view delta);

}  // namespace gdn
