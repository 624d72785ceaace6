// State files of some heads from one of more, and one of all heads from files of slices: what a session needs to go
// from one way of slicing a model to another.
//
// Values are copied and never computed with, so states keep their bits. What is not by head is kept, but for the
// outputs of stored replies, which cannot be cut or put together: a retry of such a step is answered with
// REPLY_DROPPED. Where slices took a step under different request ids, none is kept.
// Thread safety: free functions on values. Ownership: what TakeHeads gives views the bytes of the file it was taken of.
//
//   GDN_ASSIGN_OR_RETURN(const std::string low, SliceStateFile(whole, {.first = 0, .count = 16, .total = 32}));
//   GDN_ASSIGN_OR_RETURN(const std::string again, JoinStateFiles({low, high}));
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/head_slice.h"
#include "state_store/state_file/parse.h"

namespace gdn {

// Whether the file has these heads of a model, and others: they can be taken out of it.
bool HasHeads(const StateFile& file, const ModelSlice& slice);

// These heads' part of a file, or of its header, of all heads or of more than these. FAILED_PRECONDITION
// (STATE_MISMATCH: heads) where it has not all of them, is of another number of heads or of no model, or where the
// slice cuts a group of value heads; (STATE_MISMATCH: base_snapshot_id) for a delta.
absl::StatusOr<StateFile> TakeHeads(const StateFile& file, const HeadSlice& heads);

// The same as a file. Errors of ParseStateFile too.
absl::StatusOr<std::string> SliceStateFile(std::string_view file, const HeadSlice& heads);

// A file of all heads from files of slices, in any order. Errors of ParseStateFile; FAILED_PRECONDITION
// (STATE_MISMATCH) naming what differs: of another model (model_fingerprint), heads that are missing or there twice
// (heads), other counts or another last step in a layer (layer.L), an acceptance that only some have taken (accept),
// bases of another dtype (base_dtype).
absl::StatusOr<std::string> JoinStateFiles(absl::Span<const std::string_view> files);

}  // namespace gdn
