// Cuts a batch's Decode or Step into one request for each row, which its session keeps, and joins rows into one
// request.
//
// Thread safety: free functions. Ownership: everything is moved or copied.
//
//   GDN_ASSIGN_OR_RETURN(std::vector<v1::DecodeRequest> rows, CutRows(std::move(batch), 64));
//   v1::DecodeRequest again = JoinRows({&rows[3], &rows[5]});
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/kept_steps.h"
#include "gdn/v1/step.pb.h"
#include "google/protobuf/message.h"

namespace gdn {

// Checks a PrefillRequest, a DecodeRequest or a StepRequest. INVALID_ARGUMENT (INVALID_SHARED_RANGE) if a tensor or the
// output is in shared memory, because these bytes may have changed when the step is replayed.
absl::Status CheckInMessage(google::protobuf::Message& step);

// Returns each row with its padding; `rows` is 1 or more. A row names no session, epoch, count or request id.
// INVALID_ARGUMENT (INVALID_TENSOR_SHAPE, INVALID_TENSOR_DATA, INVALID_LENGTHS) if a tensor or `lengths` does not have
// `rows` rows.
absl::StatusOr<std::vector<v1::DecodeRequest>> CutRows(v1::DecodeRequest batch, int rows);

// Joins rows that CutRows has cut from one batch, in this order. There must be at least one. They are copied.
v1::DecodeRequest JoinRows(const std::vector<v1::DecodeRequest*>& rows);

// One row of a Step.
struct RowStep {
  SessionStep alone;  // the row's tokens alone: a Prefill if the kind is prefill or there are no tokens, else a Decode
  v1::StepKind kind = v1::STEP_KIND_UNSPECIFIED;
  std::optional<DraftChoice> accept_before = std::nullopt;
};

// Returns the rows of a Step, in order. INVALID_ARGUMENT (INVALID_TENSOR_SHAPE, INVALID_TENSOR_DATA) if a tensor does
// not have the tokens of all rows. INVALID_ARGUMENT (VALUE_OUT_OF_RANGE, INVALID_LENGTHS) if a row has an unknown kind,
// a negative count, or draft_parents without a draft.
absl::StatusOr<std::vector<RowStep>> CutStep(v1::StepRequest batch);

// Joins the inputs of rows that CutStep has cut from one batch (RowStep::alone), in this order, by copying. The caller
// adds the message's rows. There must be at least one.
v1::StepRequest JoinStep(const std::vector<SessionStep*>& rows);

}  // namespace gdn
