// Cuts state files into slices of value heads, and joins files of slices into one file of all heads. So a session can
// move between servers that slice a model differently.
//
// Values are only copied, so states keep their bits. Data that is not per-head is kept, except for the outputs of
// stored replies, which cannot be cut or joined: a retry of such a step gets REPLY_DROPPED. If slices took a step under
// different request ids, the joined file has no stored reply for that step.
// Thread safety: free functions on values. Ownership: the result of TakeHeads views the bytes of its input file.
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

// True if the file is of the slice's model and has the slice's heads and further ones, so that TakeHeads can cut the
// slice out. False for a slice of all heads.
bool HasHeads(const StateFile& file, const ModelSlice& slice);

// Returns the states of the file for these heads only; if only the header was parsed, its metadata. FAILED_PRECONDITION
// (STATE_MISMATCH: heads) if the file lacks some of them, or has another total of heads or no model. The same if the
// slice cuts a group of value heads that read one key head. FAILED_PRECONDITION (STATE_MISMATCH: base_snapshot_id) for
// a delta.
absl::StatusOr<StateFile> TakeHeads(const StateFile& file, const HeadSlice& heads);

// Parses `file`, takes the heads and writes them as a file. Errors of ParseStateFile and TakeHeads.
absl::StatusOr<std::string> SliceStateFile(std::string_view file, const HeadSlice& heads);

// Joins the files of all slices, given in any order, into one file of all heads. Errors of ParseStateFile.
// FAILED_PRECONDITION (STATE_MISMATCH) with the field that differs: model_fingerprint, dims, base_dtype, layers, heads
// (some are missing or there twice), or base_snapshot_id (a file is a delta). The field may also be layer.L (token
// counts or the last step), or accept (the last AcceptTokens).
absl::StatusOr<std::string> JoinStateFiles(absl::Span<const std::string_view> files);

}  // namespace gdn
