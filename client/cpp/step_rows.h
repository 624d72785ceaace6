// Cuts a batch's Decode into one request for each row, which its session keeps, and joins rows into one request.
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

// INVALID_ARGUMENT (INVALID_SHARED_RANGE) if a tensor or the output of the step is in shared memory, because these
// bytes may have changed when the step is replayed.
absl::Status CheckInMessage(SessionStep& step);

// Returns each row with its padding. A row names no session, epoch, count or request id. INVALID_ARGUMENT
// (INVALID_TENSOR_SHAPE, INVALID_TENSOR_DATA, INVALID_LENGTHS) if a tensor or `lengths` does not have `rows` rows.
absl::StatusOr<std::vector<v1::DecodeRequest>> CutRows(v1::DecodeRequest batch, int rows);

// Joins rows of one batch, in this order. There must be at least one.
v1::DecodeRequest JoinRows(const std::vector<v1::DecodeRequest*>& rows);

}  // namespace gdn
