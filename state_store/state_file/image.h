// Turns parsed state files into session images, and merges deltas into full files.
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

// Returns the file's states as an image in wire order that views the file's bytes; `owner` keeps these alive. With
// `convert`, bases are converted to the layout's dtype; otherwise errors of CheckStateDtype. FAILED_PRECONDITION
// (STATE_MISMATCH) if the file's dims are not the layout's, a draft is longer than max_draft, or the file is a delta.
absl::StatusOr<SessionImage> ReadImage(const StateFile& file, const StateLayout& layout,
                                       std::shared_ptr<const void> owner, bool convert = false);

// FAILED_PRECONDITION (STATE_MISMATCH: base_dtype) if the file has states, and their bases do not have the layout's
// dtype. A file of which only the header was parsed is enough.
absl::Status CheckStateDtype(const StateFile& file, const StateLayout& layout);

// Gives each layer of `delta` that has no base the base of `full`, as a view: the bytes of `full` must outlive `delta`.
// FAILED_PRECONDITION (STATE_MISMATCH) if `delta` is a delta to another file.
absl::Status CompleteDelta(const StateFile& full, StateFile& delta);

// Merges a delta with its full file into a new full file: tensors and metadata of `delta`, with the bases that `delta`
// leaves out taken from `full`. FAILED_PRECONDITION (STATE_MISMATCH) if `delta` is a delta to another file.
absl::StatusOr<std::string> MergeDelta(std::string_view full, std::string_view delta);

}  // namespace gdn
