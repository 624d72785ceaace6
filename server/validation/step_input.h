// Converts Prefill, Decode and Step requests to checked inputs.
//
// A request's shape, dtypes and lengths are checked as a whole before a session is touched. The values of a row
// (finite, in range) are checked row by row, so a NaN in one row is an error of that row only. Between the two checks
// the caller copies tensors out of shared memory.
// Thread safety: free functions. Ownership: views and ranges point into the request, or to where its tensors' data are.
//
//   GDN_ASSIGN_OR_RETURN(CheckedInput input, CheckDecodeInput(request, /*data=*/nullptr, dims, limits));
//   GDN_RETURN_IF_ERROR(CheckRowValues(input, row));
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "base/layer_dims.h"
#include "base/step_shape.h"
#include "base/tensor_view.h"
#include "gdn/v1/step.pb.h"
#include "session_rules/session_rules.h"

namespace gdn {

struct StepLimits {
  int64_t max_message_bytes = int64_t{64} << 20;
  int32_t max_draft = 8;
  int32_t max_batch = 512;
  int64_t max_stored_reply_bytes = int64_t{1} << 20;
};

// Data of an input's tensors, at the index of the tensor's field number in the input message - 1. For a request that
// was parsed without the data.
using TensorBytes = std::array<std::string_view, kMaxStepFields>;

struct CheckedField {
  std::string_view name;  // name of the field in the request: "hidden_states", "mixed_qkv", ...
  TensorView view;
  // Range of shared memory to copy the view's data from, in the request; the view has none until then. null: it has.
  const v1::SharedRange* shared = nullptr;
};

// The path that computes a row.
enum class RowKind : uint8_t { kDecode, kDraft, kPrefill };

// One session's part of the tensors.
struct CheckedRow {
  RowKind kind = RowKind::kDecode;
  int32_t tokens = 0;
  int64_t first = 0;                       // index of its first token in the tensors, which may have padding
  absl::Span<const int32_t> parents = {};  // of a draft's tokens, by index in the row; -1: the root; empty: a chain
  std::optional<Acceptance> accept_before = std::nullopt;

  // Returns by how many tokens the step raises the session's count.
  int64_t counted_tokens() const {
    return (kind == RowKind::kDraft ? 0 : int64_t{tokens}) +
           (accept_before.has_value() ? accept_before->accepted_tokens : 0);
  }
};

struct CheckedInput {
  StepShape shape;
  int32_t layer = 0;
  std::vector<CheckedField> fields;  // parallel to shape.fields
  std::vector<CheckedRow> rows;      // in the order of the request
  int64_t tokens = 0;                // of all rows, padding included
  bool mixed = false;                // the request is a Step, whose rows may be of several kinds
  bool allow_non_finite = false;
  std::vector<int64_t> output_shape;  // shape of the whole reply
  std::string_view request_id;
  const v1::SharedRange* output_shared = nullptr;  // range for the output, borrowed; nullptr: it goes into the reply

  const char* RowData(size_t field, const CheckedRow& row) const {
    return fields[field].view.data.data() + shape.FieldBytes(field, row.first);
  }
};

// Returns the kind of the input that is set. INVALID_ARGUMENT (INPUT_MISSING) if none is set.
absl::StatusOr<InputKind> CheckInputKind(const v1::PrefillRequest& request);
absl::StatusOr<InputKind> CheckInputKind(const v1::DecodeRequest& request);
absl::StatusOr<InputKind> CheckInputKind(const v1::StepRequest& request);

// Check a request's fields and tensors, but not the tensors' values, and return views of them. Errors: INVALID_ARGUMENT
// with the reasons of tensor.h, INPUT_MISSING, INVALID_LENGTHS, TOO_MANY_TOKENS, BATCH_TOO_LARGE, VALUE_OUT_OF_RANGE
// (draft_parents, kind, scale) and INVALID_NAME (request_id). FAILED_PRECONDITION (INPUT_NEEDS_MODEL) if `dims` has no
// layer (an operator session) and the input is not delta_rule. `data`: the tensors' data; null: they are in the
// request. `partial_sums`: the server has some heads only, and the output for hidden states is a term of a sum over
// servers. It is then F32; another output_dtype is refused (INVALID_TENSOR_DTYPE).
absl::StatusOr<CheckedInput> CheckPrefillInput(const v1::PrefillRequest& request, const TensorBytes* data,
                                               const LayerDims& dims, bool partial_sums = false);
absl::StatusOr<CheckedInput> CheckDecodeInput(const v1::DecodeRequest& request, const TensorBytes* data,
                                              const LayerDims& dims, const StepLimits& limits,
                                              bool partial_sums = false);
absl::StatusOr<CheckedInput> CheckStepInput(const v1::StepRequest& request, const TensorBytes* data,
                                            const LayerDims& dims, const StepLimits& limits, bool partial_sums = false);

// Checks that the row's input values are finite, unless allow_non_finite is set; for delta_rule also that g is at most
// 0 and beta is in 0 .. max_beta. All fields' views must have their data. INVALID_ARGUMENT (NON_FINITE_INPUT,
// VALUE_OUT_OF_RANGE: field, index).
absl::Status CheckRowValues(const CheckedInput& input, const CheckedRow& row);

// Returns a hash of what a retry of the row must repeat: input kind, layer, length, output dtype, scale, use_qk_l2norm,
// the row's kind, draft tree and acceptance, allow_beta_to_two, and the dtypes and data of the row's inputs.
// allow_non_finite changes no result and is not part of it. All fields' views must have their data.
Hash128 HashRow(const CheckedInput& input, const CheckedRow& row);

// Checks that the field, which has an entry for each session, has 1 .. max_batch entries. INVALID_ARGUMENT
// (BATCH_TOO_LARGE: found, expected).
absl::Status CheckBatchSize(std::string_view field, int64_t entries, const StepLimits& limits);

// Checks that a message has at most max_message_bytes. RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE: found, expected).
absl::Status CheckMessageSize(int64_t bytes, const StepLimits& limits);

}  // namespace gdn
