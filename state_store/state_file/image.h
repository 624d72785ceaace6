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

// Makes a session image of a parsed file, for a server whose slots have `layout`. The image views the file's bytes, in
// wire order, and keeps `owner`, which owns those bytes, alive. If the file's bases have another dtype than the layout,
// the image has converted copies of them with `convert`, and otherwise the result is the error of CheckStateDtype.
// FAILED_PRECONDITION (STATE_MISMATCH) if the dims differ, a draft is longer than the layout's max_draft, or the file
// is a delta. Errors of CheckSlotView.
absl::StatusOr<SessionImage> ReadImage(const StateFile& file, const StateLayout& layout,
                                       std::shared_ptr<const void> owner, bool convert = false);

// OK if the file's bases have the layout's dtype, or the file has no states. Else FAILED_PRECONDITION (STATE_MISMATCH:
// base_dtype). It is enough if only the header was parsed.
absl::Status CheckStateDtype(const StateFile& file, const StateLayout& layout);

// Gives each layer of `delta` that has no base the base of `full`, as a view: the bytes of `full` must outlive `delta`.
// FAILED_PRECONDITION (STATE_MISMATCH) if `delta` is a delta to another file, or differs in dims, base_dtype or
// log_capacity. DATA_LOSS (INVALID_STATE_FILE) if `full` lacks a base; `delta` must not be used then.
absl::Status CompleteDelta(const StateFile& full, StateFile& delta);

// Merges a delta with its full file into a new full file, which gets a new snapshot id. It has the tensors and metadata
// of `delta`, and the bases that `delta` leaves out from `full`. Errors of ParseStateFile and CompleteDelta; DATA_LOSS
// (INVALID_STATE_FILE) if a tensor has no checksum.
absl::StatusOr<std::string> MergeDelta(std::string_view full, std::string_view delta);

}  // namespace gdn
