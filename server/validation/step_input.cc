#include "server/validation/step_input.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/draft_tree.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/validation/names.h"
#include "server/validation/tensor.h"

namespace gdn {
namespace {

absl::Status InputMissing() {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInputMissing,
                   "no input is set; send one of hidden_states, projected and delta_rule");
}

template <typename Request>
absl::StatusOr<InputKind> KindOf(const Request& request) {
  switch (request.input_case()) {
    case Request::kHiddenStates:
      return InputKind::kHiddenStates;
    case Request::kProjected:
      return InputKind::kProjected;
    case Request::kDeltaRule:
      return InputKind::kDeltaRule;
    default:
      return InputMissing();
  }
}

// Checks the input's tensors against the leading dimensions: [-1], or [B, -1]. The first tensor decides what -1 is.
class FieldChecker {
 public:
  FieldChecker(CheckedInput& input, const TensorBytes* data, std::vector<int64_t> leading)
      : input_(input), data_(data), leading_(std::move(leading)) {}

  absl::Status Add(const v1::Tensor& tensor, std::string_view name, std::vector<int64_t> trailing, bool gate = false) {
    std::vector<int64_t> expected = leading_;
    expected.insert(expected.end(), trailing.begin(), trailing.end());
    const v1::SharedRange* shared = nullptr;
    GDN_ASSIGN_OR_RETURN(TensorView view,
                         CheckTensor(tensor, data_ == nullptr ? tensor.data() : (*data_)[input_.fields.size()], name,
                                     expected, &shared));
    if (input_.fields.empty()) {
      leading_.assign(view.shape.begin(), view.shape.begin() + static_cast<std::ptrdiff_t>(leading_.size()));
    } else if (const DType first = input_.fields.front().view.dtype;
               view.dtype != first && !(gate && view.dtype == DType::kF32)) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype,
                       StrCat(name, " has dtype ", DTypeName(view.dtype), ", expected ", DTypeName(first), " as ",
                              input_.fields.front().name, gate ? ", or F32" : ""),
                       {{"field", std::string(name)},
                        {"found", std::string(DTypeName(view.dtype))},
                        {"expected", std::string(DTypeName(first))}});
    }
    int64_t features = 1;
    for (const int64_t dim : trailing) features *= dim;
    input_.fields.push_back({.name = name, .view = std::move(view), .features = features, .shared = shared});
    return absl::OkStatus();
  }

  const std::vector<int64_t>& leading() const { return leading_; }

 private:
  CheckedInput& input_;
  const TensorBytes* const data_;
  std::vector<int64_t> leading_;
};

absl::Status CheckDeltaRule(const v1::DeltaRuleInput& in, const LayerDims& dims, FieldChecker& fields,
                            CheckedInput& input) {
  GDN_RETURN_IF_ERROR(fields.Add(in.q(), "q", {dims.key_heads, dims.key_dim}));
  GDN_RETURN_IF_ERROR(fields.Add(in.k(), "k", {dims.key_heads, dims.key_dim}));
  GDN_RETURN_IF_ERROR(fields.Add(in.v(), "v", {dims.value_heads, dims.value_dim}));
  std::vector<int64_t> decays = {dims.value_heads};
  if (dims.decays_by_channel()) decays.push_back(dims.key_dim);
  GDN_RETURN_IF_ERROR(fields.Add(in.g(), "g", std::move(decays), /*gate=*/true));
  GDN_RETURN_IF_ERROR(fields.Add(in.beta(), "beta", {dims.value_heads}, /*gate=*/true));
  input.scale = in.has_scale() ? in.scale() : 1.0f / std::sqrt(static_cast<float>(dims.key_dim));
  if (!std::isfinite(input.scale)) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     StrCat("scale is ", input.scale, ", expected a finite number"),
                     {{"field", "scale"}, {"found", StrCat(input.scale)}});
  }
  input.use_qk_l2norm = in.use_qk_l2norm();
  input.max_beta = in.allow_beta_to_two() ? 2.0f : 1.0f;
  return absl::OkStatus();
}

// The sum over the servers is rounded once. Rounding each term would add one error for each server.
template <typename Request>
absl::Status MakePartialSum(const Request& request, CheckedInput& input) {
  const DType asked = std::exchange(input.output_dtype, DType::kF32);
  if (request.output_dtype() == v1::DTYPE_UNSPECIFIED || asked == DType::kF32) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype,
                   StrCat("output_dtype is ", DTypeName(asked),
                          ", and this server gives partial sums of some heads (Model.heads), which are to be added up "
                          "before they are rounded; expected F32, or none"),
                   {{"field", "output_dtype"}, {"found", std::string(DTypeName(asked))}, {"expected", "F32"}});
}

template <typename Request>
absl::Status CheckFields(const Request& request, const LayerDims& dims, bool partial_sums, FieldChecker& fields,
                         CheckedInput& input) {
  GDN_ASSIGN_OR_RETURN(input.kind, KindOf(request));
  if (input.kind != InputKind::kDeltaRule && !dims.has_layer()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kInputNeedsModel,
        StrCat(InputKindName(input.kind), " input needs a model session; an operator session takes delta_rule"));
  }
  std::vector<int64_t> output;
  switch (input.kind) {
    case InputKind::kHiddenStates:
      GDN_RETURN_IF_ERROR(fields.Add(request.hidden_states().hidden_states(), "hidden_states", {dims.hidden_size}));
      output = {dims.hidden_size};
      break;
    case InputKind::kProjected: {
      const v1::ProjectedInput& in = request.projected();
      GDN_RETURN_IF_ERROR(fields.Add(in.mixed_qkv(), "mixed_qkv", {dims.conv_channels()}));
      GDN_RETURN_IF_ERROR(fields.Add(in.z(), "z", {dims.value_features()}));
      GDN_RETURN_IF_ERROR(fields.Add(in.b(), "b", {dims.value_heads}));
      GDN_RETURN_IF_ERROR(fields.Add(in.a(), "a", {dims.decay_features()}));
      output = {dims.value_features()};
      break;
    }
    default:
      GDN_RETURN_IF_ERROR(CheckDeltaRule(request.delta_rule(), dims, fields, input));
      output = {dims.value_heads, dims.value_dim};
  }
  input.output_dtype = input.fields.front().view.dtype;
  if (request.output_dtype() != v1::DTYPE_UNSPECIFIED) {
    GDN_ASSIGN_OR_RETURN(input.output_dtype, CheckDType(request.output_dtype(), "output_dtype"));
  }
  if (partial_sums && input.kind == InputKind::kHiddenStates) GDN_RETURN_IF_ERROR(MakePartialSum(request, input));
  input.output_features =
      dims.has_layer() && input.kind == InputKind::kHiddenStates ? dims.hidden_size : dims.value_features();
  input.output_shape = fields.leading();
  input.output_shape.insert(input.output_shape.end(), output.begin(), output.end());
  input.layer = request.layer();
  input.allow_non_finite = request.allow_non_finite();
  input.request_id = request.request_id();
  return CheckRequestId(request.request_id());
}

// Checks the shared memory for the output. The input's shape must be known.
template <typename Request>
absl::Status CheckOutputPlace(const Request& request, CheckedInput& input) {
  if (!request.has_output_shared()) return absl::OkStatus();
  input.output_shared = &request.output_shared();
  return CheckDataLength("output_shared", request.output_shared().bytes(), input.output_dtype, input.output_shape);
}

absl::Status CheckStoredReply(const CheckedInput& input, const StepLimits& limits) {
  const int64_t bytes = input.tokens * input.output_features * static_cast<int64_t>(DTypeSize(input.output_dtype));
  if (input.request_id.empty() || bytes <= limits.max_stored_reply_bytes) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kReplyTooLargeToStore,
      StrCat("with a request_id the reply is kept for a retry, and ", bytes, " bytes a session are over the limit of ",
             limits.max_stored_reply_bytes, "; send shorter segments (StreamPrefill) or no request_id"),
      {{"found", StrCat(bytes)}, {"expected", StrCat(limits.max_stored_reply_bytes)}});
}

absl::Status InvalidLengths(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidLengths, message,
                   {{"field", std::string(field)}});
}

absl::Status CheckLengths(const v1::DecodeRequest& request, CheckedInput& input) {
  if (request.lengths_size() == 0) {
    input.lengths.assign(static_cast<size_t>(input.batch), static_cast<int32_t>(input.tokens));
  } else if (request.lengths_size() != input.batch) {
    return InvalidLengths("lengths",
                          StrCat("lengths has ", request.lengths_size(), " entries, expected none or ", input.batch));
  } else {
    input.lengths.assign(request.lengths().begin(), request.lengths().end());
  }
  for (size_t i = 0; i < input.lengths.size(); ++i) {
    if (input.lengths[i] < 0 || input.lengths[i] > input.tokens) {
      return InvalidLengths("lengths",
                            StrCat("lengths[", i, "] is ", input.lengths[i], ", expected 0 .. ", input.tokens));
    }
  }
  if (const int counts = request.expected_token_counts_size(); counts != 0 && counts != input.batch) {
    return InvalidLengths("expected_token_counts",
                          StrCat("expected_token_counts has ", counts, " entries, expected none or ", input.batch));
  }
  if (const int epochs = request.session_epochs_size(); epochs != 0 && epochs != input.batch) {
    return InvalidLengths("session_epochs",
                          StrCat("session_epochs has ", epochs, " entries, expected none or ", input.batch));
  }
  return absl::OkStatus();
}

absl::Status CheckParents(const v1::DecodeRequest& request, CheckedInput& input) {
  if (request.draft_parents_size() == 0) return absl::OkStatus();
  if (!input.draft) {
    return InvalidLengths("draft_parents", "draft_parents are given for tokens that are no draft; set draft, or none");
  }
  const int64_t given = request.draft_parents_size();
  if (given != input.tokens && given != input.batch * input.tokens) {
    return InvalidLengths("draft_parents",
                          StrCat("draft_parents has ", given, " entries, expected none, ", input.tokens,
                                 " for a tree that all rows share, or ", input.batch * input.tokens));
  }
  const bool shared = given == input.tokens;
  for (int64_t row = 0; row < input.batch; ++row) {
    const int64_t first = shared ? 0 : row * input.tokens;
    const absl::Span<const int32_t> parents(request.draft_parents().data() + first, static_cast<size_t>(input.tokens));
    const auto length = static_cast<size_t>(input.lengths[static_cast<size_t>(row)]);
    GDN_RETURN_IF_ERROR(CheckDraftParents(parents.first(length), "draft_parents", first));
    input.draft_parents.insert(input.draft_parents.end(), parents.begin(), parents.end());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const int32_t> CheckedInput::RowParents(int64_t row) const {
  if (draft_parents.empty()) return {};
  const auto length = static_cast<size_t>(lengths[static_cast<size_t>(row)]);
  const absl::Span<const int32_t> parents(draft_parents.data() + row * tokens, length);
  return IsDraftChain(parents) ? absl::Span<const int32_t>() : parents;
}

absl::StatusOr<InputKind> CheckInputKind(const v1::PrefillRequest& request) { return KindOf(request); }
absl::StatusOr<InputKind> CheckInputKind(const v1::DecodeRequest& request) { return KindOf(request); }

absl::StatusOr<CheckedInput> CheckPrefillInput(const v1::PrefillRequest& request, const TensorBytes* data,
                                               const LayerDims& dims, const StepLimits& limits, bool partial_sums) {
  CheckedInput input;
  FieldChecker fields(input, data, {-1});
  GDN_RETURN_IF_ERROR(CheckFields(request, dims, partial_sums, fields, input));
  input.tokens = fields.leading()[0];
  if (input.tokens > std::numeric_limits<int32_t>::max()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                     StrCat(input.tokens, " tokens in one call; send segments (StreamPrefill)"));
  }
  input.lengths = {static_cast<int32_t>(input.tokens)};
  GDN_RETURN_IF_ERROR(CheckStoredReply(input, limits));
  GDN_RETURN_IF_ERROR(CheckOutputPlace(request, input));
  return input;
}

absl::StatusOr<CheckedInput> CheckDecodeInput(const v1::DecodeRequest& request, const TensorBytes* data,
                                              const LayerDims& dims, const StepLimits& limits, bool partial_sums) {
  CheckedInput input;
  input.batch = request.sessions_size();
  GDN_RETURN_IF_ERROR(CheckBatchSize(input.batch, limits));
  FieldChecker fields(input, data, {input.batch, -1});
  GDN_RETURN_IF_ERROR(CheckFields(request, dims, partial_sums, fields, input));
  input.tokens = fields.leading()[1];
  if (input.tokens < 1 || input.tokens > limits.max_draft) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
        StrCat(input.tokens, " tokens a row, Decode takes 1 .. ", limits.max_draft, "; use Prefill for more"),
        {{"found", StrCat(input.tokens)}, {"expected", StrCat("1 .. ", limits.max_draft)}});
  }
  input.draft = request.draft();
  GDN_RETURN_IF_ERROR(CheckLengths(request, input));
  GDN_RETURN_IF_ERROR(CheckParents(request, input));
  GDN_RETURN_IF_ERROR(CheckStoredReply(input, limits));
  GDN_RETURN_IF_ERROR(CheckOutputPlace(request, input));
  return input;
}

absl::Status CheckRowValues(const CheckedInput& input, int64_t row) {
  for (const CheckedField& field : input.fields) {
    const int64_t begin = row * input.tokens * field.features;
    const int64_t count = input.lengths[static_cast<size_t>(row)] * field.features;
    if (!input.allow_non_finite) GDN_RETURN_IF_ERROR(CheckFinite(field.name, field.view, begin, count));
    if (input.kind != InputKind::kDeltaRule) continue;
    if (field.name == "g") {
      GDN_RETURN_IF_ERROR(
          CheckRange(field.name, field.view, begin, count, -std::numeric_limits<float>::infinity(), 0.0f));
    } else if (field.name == "beta") {
      GDN_RETURN_IF_ERROR(CheckRange(field.name, field.view, begin, count, 0.0f, input.max_beta));
    }
  }
  return absl::OkStatus();
}

Hash128 HashRow(const CheckedInput& input, int64_t row) {
  Hasher hasher;
  const int64_t length = input.lengths[static_cast<size_t>(row)];
  for (const int64_t value :
       {static_cast<int64_t>(input.kind), int64_t{input.layer}, length, static_cast<int64_t>(input.output_dtype),
        int64_t{input.use_qk_l2norm}, int64_t{input.draft}}) {
    hasher.UpdateInt(value);
  }
  hasher.UpdateField({reinterpret_cast<const char*>(&input.scale), sizeof(input.scale)});
  for (const CheckedField& field : input.fields) {
    hasher.UpdateInt(static_cast<int64_t>(field.view.dtype));
    hasher.UpdateField(
        {input.RowData(field, row), static_cast<size_t>(length * field.features) * DTypeSize(field.view.dtype)});
  }
  // It chooses the kernel. The default is left out, as it was before the flag.
  if (input.max_beta != 1.0f) hasher.UpdateField({reinterpret_cast<const char*>(&input.max_beta), sizeof(float)});
  for (const int32_t parent : input.RowParents(row)) hasher.UpdateInt(parent);  // a chain adds nothing
  return hasher.Finish();
}

absl::Status CheckBatchSize(int64_t sessions, const StepLimits& limits) {
  if (sessions >= 1 && sessions <= limits.max_batch) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kBatchTooLarge,
                   StrCat("sessions has ", sessions, " entries, expected 1 .. ", limits.max_batch),
                   {{"found", StrCat(sessions)}, {"expected", StrCat("1 .. ", limits.max_batch)}});
}

absl::Status CheckMessageSize(int64_t bytes, const StepLimits& limits) {
  if (bytes <= limits.max_message_bytes) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kMessageTooLarge,
                   StrCat("the message has ", bytes, " bytes, the limit is ", limits.max_message_bytes,
                          "; send segments (StreamPrefill) or smaller batches"),
                   {{"found", StrCat(bytes)}, {"expected", StrCat(limits.max_message_bytes)}});
}

}  // namespace gdn
