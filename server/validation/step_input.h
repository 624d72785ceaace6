// From Prefill and Decode requests to checked inputs.
//
// A request's shape, dtypes and lengths are checked whole before a session is touched; the values of a row (finite, in
// range) are checked row by row, so that one row's NaN is that row's error. What lies in shared memory has to be copied
// from there in between.
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

// The data of an input's tensors, by their field numbers less one, where a request comes without them.
inline constexpr int kMaxInputTensors = 5;
using TensorBytes = std::array<std::string_view, kMaxInputTensors>;

struct CheckedField {
  std::string_view name;  // as in the message: "hidden_states", "mixed_qkv", ...
  TensorView view;
  int64_t features = 0;                     // elements of one token
  const v1::SharedRange* shared = nullptr;  // where the view's data is to be copied from, which is then not set
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
  std::vector<int32_t> draft_parents;  // [B, T]; empty where no row has any
  DType output_dtype = DType::kF32;
  std::vector<int64_t> output_shape;  // of the whole reply
  int64_t output_features = 0;        // elements of one token
  std::string_view request_id;
  const v1::SharedRange* output_shared = nullptr;  // where the output goes, of its length; nullptr: into the reply

  // Of the row's tokens, where its draft is a tree; empty: it is a chain.
  absl::Span<const int32_t> RowParents(int64_t row) const;
  const char* RowData(const CheckedField& field, int64_t row) const {
    return field.view.data.data() + static_cast<size_t>(row * tokens * field.features) * DTypeSize(field.view.dtype);
  }
};

// The kind of input that is set; INVALID_ARGUMENT (INPUT_MISSING).
absl::StatusOr<InputKind> CheckInputKind(const v1::PrefillRequest& request);
absl::StatusOr<InputKind> CheckInputKind(const v1::DecodeRequest& request);

// INVALID_ARGUMENT with the reasons of tensor.h, INPUT_MISSING, INVALID_LENGTHS, TOO_MANY_TOKENS, BATCH_TOO_LARGE,
// VALUE_OUT_OF_RANGE (draft_parents), INVALID_NAME (request_id) and REPLY_TOO_LARGE_TO_STORE. `dims` without a layer
// (an operator session) takes only delta_rule: FAILED_PRECONDITION (INPUT_NEEDS_MODEL). `data`: the tensors' data;
// null: they are in the request. With `partial_sums` the output of hidden states is a term of a sum over servers: F32,
// and INVALID_TENSOR_DTYPE otherwise.
absl::StatusOr<CheckedInput> CheckPrefillInput(const v1::PrefillRequest& request, const TensorBytes* data,
                                               const LayerDims& dims, const StepLimits& limits,
                                               bool partial_sums = false);
absl::StatusOr<CheckedInput> CheckDecodeInput(const v1::DecodeRequest& request, const TensorBytes* data,
                                              const LayerDims& dims, const StepLimits& limits,
                                              bool partial_sums = false);

// NON_FINITE_INPUT and VALUE_OUT_OF_RANGE within the row's length.
absl::Status CheckRowValues(const CheckedInput& input, int64_t row);

// What must be equal for a retry: everything that a row's reply follows from.
Hash128 HashRow(const CheckedInput& input, int64_t row);

// INVALID_ARGUMENT (BATCH_TOO_LARGE: found, expected) outside 1 .. max_batch.
absl::Status CheckBatchSize(int64_t sessions, const StepLimits& limits);

// RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE: found, expected).
absl::Status CheckMessageSize(int64_t bytes, const StepLimits& limits);

}  // namespace gdn
