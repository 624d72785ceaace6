// A batch's Decode as one call for each row, and rows as one call again: what is kept of a step is its session's alone.
//
// Thread safety: free functions. Ownership: everything is moved or copied.
//
//   GDN_ASSIGN_OR_RETURN(std::vector<v1::DecodeRequest> rows, CutRows(std::move(batch), 64));
//   v1::DecodeRequest again = JoinRows({&rows[3], &rows[5]});
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/kept_steps.h"
#include "gdn/v1/step.pb.h"

namespace gdn {

// INVALID_ARGUMENT (INVALID_SHARED_RANGE) where a tensor of the step lies in shared memory, or its output is to go
// there: such bytes are others when the step is replayed.
absl::Status CheckInMessage(SessionStep& step);

// Each row with its padding; it names no session, epoch, count or request id. INVALID_ARGUMENT (INVALID_TENSOR_SHAPE,
// INVALID_TENSOR_DATA, INVALID_LENGTHS) where a tensor or `lengths` has not so many rows.
absl::StatusOr<std::vector<v1::DecodeRequest>> CutRows(v1::DecodeRequest batch, int rows);

// Rows of one batch, in this order; at least one.
v1::DecodeRequest JoinRows(const std::vector<v1::DecodeRequest*>& rows);

}  // namespace gdn
