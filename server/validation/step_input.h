// Converts Prefill and Decode requests to checked inputs.
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
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "base/layer_dims.h"
#include "base/tensor_view.h"
#include "gdn/v1/step.pb.h"

namespace gdn {

struct StepLimits {
  int64_t max_message_bytes = int64_t{64} << 20;
  int32_t max_draft = 8;
  int32_t max_batch = 512;
  int64_t max_stored_reply_bytes = int64_t{1} << 20;
};

// Data of an input's tensors, at the index field number - 1. For a request that was parsed without the data.
inline constexpr int kMaxInputTensors = 5;
using TensorBytes = std::array<std::string_view, kMaxInputTensors>;

struct CheckedField {
  std::string_view name;  // as in the message: "hidden_states", "mixed_qkv", ...
  TensorView view;
  int64_t features = 0;                     // elements of one token
  const v1::SharedRange* shared = nullptr;  // if not null: copy the view's data from there; the view has none
};

struct CheckedInput {
  InputKind kind = InputKind::kNone;
  int32_t layer = 0;
  std::vector<CheckedField> fields;  // in the order of the message's fields
  int64_t batch = 1;                 // B; 1 for a prefill
  int64_t tokens = 0;                // T, padding included
  std::vector<int32_t> lengths;      // [B] tokens of each row
  float scale = 0.0f;                // delta_rule
  bool use_qk_l2norm = false;        // delta_rule
  float max_beta = 1.0f;             // delta_rule
  bool allow_non_finite = false;
  bool draft = false;                  // decode only
  std::vector<int32_t> draft_parents;  // [B, T]; empty if the request has none
  DType output_dtype = DType::kF32;
  std::vector<int64_t> output_shape;  // shape of the whole reply
  int64_t output_features = 0;        // elements of one token
  std::string_view request_id;
  const v1::SharedRange* output_shared = nullptr;  // range for the output; nullptr: it goes into the reply

  // Returns the parents of the row's tokens if its draft is a tree, and nothing if it is a chain.
  absl::Span<const int32_t> RowParents(int64_t row) const;
  const char* RowData(const CheckedField& field, int64_t row) const {
    return field.view.data.data() + static_cast<size_t>(row * tokens * field.features) * DTypeSize(field.view.dtype);
  }
};

// Returns the kind of the input that is set. INVALID_ARGUMENT (INPUT_MISSING) if none is set.
absl::StatusOr<InputKind> CheckInputKind(const v1::PrefillRequest& request);
absl::StatusOr<InputKind> CheckInputKind(const v1::DecodeRequest& request);

// Errors: INVALID_ARGUMENT with the reasons of tensor.h, INPUT_MISSING, INVALID_LENGTHS, TOO_MANY_TOKENS,
// BATCH_TOO_LARGE, VALUE_OUT_OF_RANGE (draft_parents), INVALID_NAME (request_id) and REPLY_TOO_LARGE_TO_STORE.
// FAILED_PRECONDITION (INPUT_NEEDS_MODEL) if `dims` has no layer (an operator session) and the input is not delta_rule.
// `data`: the tensors' data; null: they are in the request. `partial_sums`: the server has some heads only, and the
// output for hidden states is a term of a sum over servers. It is then F32; another output_dtype is refused
// (INVALID_TENSOR_DTYPE).
absl::StatusOr<CheckedInput> CheckPrefillInput(const v1::PrefillRequest& request, const TensorBytes* data,
                                               const LayerDims& dims, const StepLimits& limits,
                                               bool partial_sums = false);
absl::StatusOr<CheckedInput> CheckDecodeInput(const v1::DecodeRequest& request, const TensorBytes* data,
                                              const LayerDims& dims, const StepLimits& limits,
                                              bool partial_sums = false);

// Checks the values within the row's length. Errors: NON_FINITE_INPUT and VALUE_OUT_OF_RANGE.
absl::Status CheckRowValues(const CheckedInput& input, int64_t row);

// Hash of a row, which a retry must repeat: input kind, layer, length, output dtype, scale, use_qk_l2norm, draft, draft
// tree, allow_beta_to_two, and the row's data. allow_non_finite changes no result and is not part of it.
Hash128 HashRow(const CheckedInput& input, int64_t row);

// INVALID_ARGUMENT (BATCH_TOO_LARGE: found, expected) outside 1 .. max_batch.
absl::Status CheckBatchSize(int64_t sessions, const StepLimits& limits);

// RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE: found, expected).
absl::Status CheckMessageSize(int64_t bytes, const StepLimits& limits);

}  // namespace gdn
