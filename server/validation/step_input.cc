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

constexpr int64_t kHashedPrefill = -2;
constexpr int64_t kHashedAcceptance = -3;

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
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInputMissing,
                       "no input is set; send one of hidden_states, projected and delta_rule");
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
    input_.shape.fields[input_.fields.size()] = {.dtype = view.dtype, .features = features};
    input_.fields.push_back({.name = name, .view = std::move(view), .shared = shared});
    input_.shape.field_count = static_cast<int>(input_.fields.size());
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
  const float scale = in.has_scale() ? in.scale() : 1.0f / std::sqrt(static_cast<float>(dims.key_dim));
  if (!std::isfinite(scale)) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     StrCat("scale is ", scale, ", expected a finite number"),
                     {{"field", "scale"}, {"found", StrCat(scale)}});
  }
  input.shape.delta_rule = {
      .scale = scale, .use_qk_l2norm = in.use_qk_l2norm(), .max_beta = in.allow_beta_to_two() ? 2.0f : 1.0f};
  return absl::OkStatus();
}

// The sum over the servers is rounded once. Rounding each term would add one error for each server.
template <typename Request>
absl::Status MakePartialSum(const Request& request, CheckedInput& input) {
  const DType asked = std::exchange(input.shape.output_dtype, DType::kF32);
  if (request.output_dtype() == v1::DTYPE_UNSPECIFIED || asked == DType::kF32) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype,
      StrCat("output_dtype is ", DTypeName(asked),
             ", but this server returns partial sums of some heads (Model.heads), and clients must add them "
             "before rounding; set F32, or leave output_dtype unset"),
      {{"field", "output_dtype"}, {"found", std::string(DTypeName(asked))}, {"expected", "F32"}});
}

template <typename Request>
absl::Status CheckFields(const Request& request, const LayerDims& dims, bool partial_sums, FieldChecker& fields,
                         CheckedInput& input) {
  GDN_ASSIGN_OR_RETURN(const InputKind kind, KindOf(request));
  if (kind != InputKind::kDeltaRule && !dims.has_layer()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kInputNeedsModel,
                     StrCat(InputKindName(kind), " input needs a model session; an operator session takes delta_rule"));
  }
  StepShape& shape = input.shape;
  shape.kind = kind;
  std::vector<int64_t> output;
  switch (kind) {
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
  shape.output_dtype = input.fields.front().view.dtype;
  if (request.output_dtype() != v1::DTYPE_UNSPECIFIED) {
    GDN_ASSIGN_OR_RETURN(shape.output_dtype, CheckDType(request.output_dtype(), "output_dtype"));
  }
  if (partial_sums && kind == InputKind::kHiddenStates) GDN_RETURN_IF_ERROR(MakePartialSum(request, input));
  shape.output_features =
      dims.has_layer() && kind == InputKind::kHiddenStates ? dims.hidden_size : dims.value_features();
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
  return CheckDataLength("output_shared", request.output_shared().bytes(), input.shape.output_dtype,
                         input.output_shape);
}

absl::Status InvalidLengths(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidLengths, message,
                   {{"field", std::string(field)}});
}

absl::Status TooManyTokens(std::string_view what, int64_t found, int64_t least, int64_t most) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                   StrCat(what, " has ", found, " tokens, expected ", least, " .. ", most, "; use Prefill for more"),
                   {{"found", StrCat(found)}, {"expected", StrCat(least, " .. ", most)}});
}

// The rows of a Decode: `length` tokens each, padding included.
absl::Status MakeRows(const v1::DecodeRequest& request, int32_t length, CheckedInput& input) {
  const int batch = request.sessions_size();
  const auto check_count = [&](std::string_view field, int count) {
    if (count == 0 || count == batch) return absl::OkStatus();
    return InvalidLengths(field, StrCat(field, " has ", count, " entries, expected none or ", batch));
  };
  GDN_RETURN_IF_ERROR(check_count("lengths", request.lengths_size()));
  input.rows.resize(static_cast<size_t>(batch));
  for (int i = 0; i < batch; ++i) {
    CheckedRow& row = input.rows[static_cast<size_t>(i)];
    row.kind = request.draft() ? RowKind::kDraft : RowKind::kDecode;
    row.first = int64_t{i} * length;
    row.tokens = request.lengths_size() == 0 ? length : request.lengths(i);
    if (row.tokens < 0 || row.tokens > length) {
      return InvalidLengths("lengths", StrCat("lengths[", i, "] is ", row.tokens, ", expected 0 .. ", length));
    }
  }
  GDN_RETURN_IF_ERROR(check_count("expected_token_counts", request.expected_token_counts_size()));
  return check_count("session_epochs", request.session_epochs_size());
}

// Checks the parents of a row's draft, which begin at index `first` of `field`.
absl::Status TakeParents(absl::Span<const int32_t> parents, std::string_view field, int64_t first, CheckedRow& row) {
  GDN_RETURN_IF_ERROR(CheckDraftParents(parents, field, first));
  if (!IsDraftChain(parents)) row.parents = parents;
  return absl::OkStatus();
}

absl::Status CheckParents(const v1::DecodeRequest& request, int32_t length, CheckedInput& input) {
  const int64_t given = request.draft_parents_size();
  if (given == 0) return absl::OkStatus();
  if (!request.draft()) {
    return InvalidLengths("draft_parents", "draft_parents are given for tokens that are no draft; set draft, or none");
  }
  if (given != length && given != input.tokens) {
    return InvalidLengths("draft_parents", StrCat("draft_parents has ", given, " entries, expected none, ", length,
                                                  " for a tree that all rows share, or ", input.tokens));
  }
  for (CheckedRow& row : input.rows) {
    const int64_t first = given == length ? 0 : row.first;
    GDN_RETURN_IF_ERROR(TakeParents({request.draft_parents().data() + first, static_cast<size_t>(row.tokens)},
                                    "draft_parents", first, row));
  }
  return absl::OkStatus();
}

absl::StatusOr<RowKind> KindOf(const v1::StepRow& row, std::string_view what) {
  switch (row.kind()) {
    case v1::STEP_KIND_DECODE:
      return RowKind::kDecode;
    case v1::STEP_KIND_DRAFT:
      return RowKind::kDraft;
    case v1::STEP_KIND_PREFILL:
      return RowKind::kPrefill;
    default:
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                       StrCat(what, ".kind is ", static_cast<int>(row.kind()),
                              ", expected STEP_KIND_DECODE, STEP_KIND_DRAFT or STEP_KIND_PREFILL"),
                       {{"field", StrCat(what, ".kind")}, {"found", StrCat(static_cast<int>(row.kind()))}});
  }
}

absl::StatusOr<CheckedRow> CheckRow(const v1::StepRow& given, std::string_view what, const StepLimits& limits) {
  CheckedRow row{.tokens = given.token_count()};
  GDN_ASSIGN_OR_RETURN(row.kind, KindOf(given, what));
  if (row.tokens < 0) {
    return InvalidLengths(StrCat(what, ".token_count"),
                          StrCat(what, ".token_count is ", row.tokens, ", expected 0 or more"));
  }
  if (row.kind != RowKind::kPrefill && row.tokens > limits.max_draft) {
    return TooManyTokens(what, row.tokens, 0, limits.max_draft);
  }
  if (const int parents = given.draft_parents_size(); parents != 0) {
    const std::string field = StrCat(what, ".draft_parents");
    if (row.kind != RowKind::kDraft) {
      return InvalidLengths(field, StrCat(field, " are given for tokens that are no draft; expected none"));
    }
    if (parents != row.tokens) {
      return InvalidLengths(field, StrCat(field, " has ", parents, " entries, expected none or ", row.tokens));
    }
    GDN_RETURN_IF_ERROR(TakeParents(given.draft_parents(), field, /*first=*/0, row));
  }
  if (given.has_accept_before()) {
    GDN_ASSIGN_OR_RETURN(row.accept_before, ReadAcceptance(given.accept_before().accepted_tokens(),
                                                           given.accept_before().path(), limits.max_draft));
    if (const int32_t accepted = row.accept_before->accepted_tokens; accepted > limits.max_draft) {
      return TooManyTokens(StrCat(what, ".accept_before"), accepted, 0, limits.max_draft);
    }
  }
  return row;
}

}  // namespace

absl::StatusOr<InputKind> CheckInputKind(const v1::PrefillRequest& request) { return KindOf(request); }
absl::StatusOr<InputKind> CheckInputKind(const v1::DecodeRequest& request) { return KindOf(request); }
absl::StatusOr<InputKind> CheckInputKind(const v1::StepRequest& request) { return KindOf(request); }

absl::StatusOr<CheckedInput> CheckPrefillInput(const v1::PrefillRequest& request, const TensorBytes* data,
                                               const LayerDims& dims, bool partial_sums) {
  CheckedInput input;
  FieldChecker fields(input, data, {-1});
  GDN_RETURN_IF_ERROR(CheckFields(request, dims, partial_sums, fields, input));
  input.tokens = fields.leading()[0];
  if (input.tokens > std::numeric_limits<int32_t>::max()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                     StrCat(input.tokens, " tokens in one call; send segments (StreamPrefill)"));
  }
  input.rows = {{.kind = RowKind::kPrefill, .tokens = static_cast<int32_t>(input.tokens)}};
  GDN_RETURN_IF_ERROR(CheckOutputPlace(request, input));
  return input;
}

absl::StatusOr<CheckedInput> CheckDecodeInput(const v1::DecodeRequest& request, const TensorBytes* data,
                                              const LayerDims& dims, const StepLimits& limits, bool partial_sums) {
  const int64_t batch = request.sessions_size();
  GDN_RETURN_IF_ERROR(CheckBatchSize("sessions", batch, limits));
  CheckedInput input;
  FieldChecker fields(input, data, {batch, -1});
  GDN_RETURN_IF_ERROR(CheckFields(request, dims, partial_sums, fields, input));
  const int64_t length = fields.leading()[1];
  if (length < 1 || length > limits.max_draft) return TooManyTokens("each row", length, 1, limits.max_draft);
  input.tokens = batch * length;
  GDN_RETURN_IF_ERROR(MakeRows(request, static_cast<int32_t>(length), input));
  GDN_RETURN_IF_ERROR(CheckParents(request, static_cast<int32_t>(length), input));
  GDN_RETURN_IF_ERROR(CheckOutputPlace(request, input));
  return input;
}

absl::StatusOr<CheckedInput> CheckStepInput(const v1::StepRequest& request, const TensorBytes* data,
                                            const LayerDims& dims, const StepLimits& limits, bool partial_sums) {
  GDN_RETURN_IF_ERROR(CheckBatchSize("rows", request.rows_size(), limits));
  CheckedInput input;
  input.mixed = true;
  input.rows.reserve(static_cast<size_t>(request.rows_size()));
  for (int i = 0; i < request.rows_size(); ++i) {
    GDN_ASSIGN_OR_RETURN(CheckedRow row, CheckRow(request.rows(i), StrCat("rows[", i, "]"), limits));
    row.first = std::exchange(input.tokens, input.tokens + row.tokens);
    input.rows.push_back(std::move(row));
  }
  FieldChecker fields(input, data, {input.tokens});
  GDN_RETURN_IF_ERROR(CheckFields(request, dims, partial_sums, fields, input));
  GDN_RETURN_IF_ERROR(CheckOutputPlace(request, input));
  return input;
}

absl::Status CheckRowValues(const CheckedInput& input, const CheckedRow& row) {
  for (size_t f = 0; f < input.fields.size(); ++f) {
    const CheckedField& field = input.fields[f];
    const int64_t begin = row.first * input.shape.fields[f].features;
    const int64_t count = row.tokens * input.shape.fields[f].features;
    if (!input.allow_non_finite) GDN_RETURN_IF_ERROR(CheckFinite(field.name, field.view, begin, count));
    if (input.shape.kind != InputKind::kDeltaRule) continue;
    if (field.name == "g") {
      GDN_RETURN_IF_ERROR(
          CheckRange(field.name, field.view, begin, count, -std::numeric_limits<float>::infinity(), 0.0f));
    } else if (field.name == "beta") {
      GDN_RETURN_IF_ERROR(CheckRange(field.name, field.view, begin, count, 0.0f, input.shape.delta_rule.max_beta));
    }
  }
  return absl::OkStatus();
}

Hash128 HashRow(const CheckedInput& input, const CheckedRow& row) {
  Hasher hasher;
  const StepShape& shape = input.shape;
  const DeltaRuleNumbers& numbers = shape.delta_rule;
  for (const int64_t value : {static_cast<int64_t>(shape.kind), int64_t{input.layer}, int64_t{row.tokens},
                              static_cast<int64_t>(shape.output_dtype), int64_t{numbers.use_qk_l2norm},
                              int64_t{row.kind == RowKind::kDraft}}) {
    hasher.UpdateInt(value);
  }
  hasher.UpdateField({reinterpret_cast<const char*>(&numbers.scale), sizeof(float)});
  for (size_t f = 0; f < input.fields.size(); ++f) {
    hasher.UpdateInt(static_cast<int64_t>(shape.fields[f].dtype));
    hasher.UpdateField({input.RowData(f, row), shape.FieldBytes(f, row.tokens)});
  }
  // It chooses the kernel. The default is left out, as it was before the flag.
  if (shape.kind == InputKind::kDeltaRule && numbers.max_beta != 1.0f) {
    hasher.UpdateField({reinterpret_cast<const char*>(&numbers.max_beta), sizeof(float)});
  }
  for (const int32_t parent : row.parents) hasher.UpdateInt(parent);  // a chain adds nothing
  // Numbers below those of parents.
  if (input.mixed && row.kind == RowKind::kPrefill) hasher.UpdateInt(kHashedPrefill);
  if (row.accept_before.has_value()) {
    hasher.UpdateInt(kHashedAcceptance);
    for (const int32_t token : row.accept_before->tokens()) hasher.UpdateInt(token);
  }
  return hasher.Finish();
}

absl::Status CheckBatchSize(std::string_view field, int64_t entries, const StepLimits& limits) {
  if (entries >= 1 && entries <= limits.max_batch) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kBatchTooLarge,
                   StrCat(field, " has ", entries, " entries, expected 1 .. ", limits.max_batch,
                          entries < 1 ? "; send at least one entry" : "; split them over several calls"),
                   {{"found", StrCat(entries)}, {"expected", StrCat("1 .. ", limits.max_batch)}});
}

absl::Status CheckMessageSize(int64_t bytes, const StepLimits& limits) {
  if (bytes <= limits.max_message_bytes) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kMessageTooLarge,
                   StrCat("the message has ", bytes, " bytes, the limit is ", limits.max_message_bytes,
                          "; send segments (StreamPrefill) or smaller batches"),
                   {{"found", StrCat(bytes)}, {"expected", StrCat(limits.max_message_bytes)}});
}

}  // namespace gdn
