// gdn.h: steps.

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "capi/handles.h"
#include "kernels/common/contract.h"

namespace gdn::capi {
namespace {

constexpr int kMaxRank = 4;

// A tensor's name, and what it has for each token: sizes and their letters.
struct Features {
  const char* name;
  absl::Span<const int64_t> sizes;
  const char* letters;  // "H, K"
};

absl::Status InvalidTensor(const char* function, const Features& expected, std::string_view why,
                           const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, why, absl::StrCat(function, ": ", expected.name, " ", message),
                   {{"field", expected.name}});
}

absl::StatusOr<DType> DTypeOf(const char* function, const Features& expected, int32_t dtype) {
  switch (dtype) {
    case GDN_F32:
      return DType::kF32;
    case GDN_F16:
      return DType::kF16;
    case GDN_BF16:
      return DType::kBF16;
    default:
      return InvalidTensor(function, expected, reason::kInvalidTensorDtype,
                           absl::StrCat("has dtype ", dtype, "; expected GDN_F32 (1), GDN_F16 (2) or GDN_BF16 (3)"));
  }
}

// The dtype of a tensor [tokens, features...] that may be used.
absl::StatusOr<DType> CheckTensor(const char* function, const gdn_tensor& tensor, int64_t tokens,
                                  const Features& expected) {
  GDN_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(function, expected, tensor.dtype));
  std::vector<int64_t> shape = {tokens};
  shape.insert(shape.end(), expected.sizes.begin(), expected.sizes.end());
  const absl::Span<const int64_t> given(tensor.shape, static_cast<size_t>(std::clamp(tensor.rank, 0, kMaxRank)));
  if (tensor.rank != static_cast<int32_t>(shape.size()) || !std::equal(shape.begin(), shape.end(), given.begin())) {
    return InvalidTensor(
        function, expected, reason::kInvalidTensorShape,
        absl::StrCat("is of rank ", tensor.rank, ", [", absl::StrJoin(given, ", "), "]; expected [tokens, ",
                     expected.letters, "], [", absl::StrJoin(shape, ", "), "], as cu_seqlens and the pool's spec say"));
  }
  if (tokens == 0) return dtype;
  if (tensor.data == nullptr) {
    return InvalidTensor(function, expected, reason::kInputMissing, "has data NULL; expected memory of the device");
  }
  if (reinterpret_cast<uintptr_t>(tensor.data) % DTypeSize(dtype) != 0) {
    return InvalidTensor(function, expected, reason::kInvalidTensorData,
                         absl::StrCat("is not aligned to its elements of ", DTypeSize(dtype), " bytes"));
  }
  return dtype;
}

// The part of a step that all kinds have.
struct BatchOf {
  const char* function;
  PackedBatch batch;
};

absl::StatusOr<BatchOf> CheckBatch(const char* function, const gdn_pool& pool, const gdn_batch& given) {
  const PackedBatch batch{.sequences = given.sequences, .cu_seqlens = given.cu_seqlens, .slots = given.slots};
  const absl::Status status = ValidatePackedBatch(batch, pool.view.slot_count);
  if (!status.ok()) return WithPrefix(status, function);
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireSlots(function, pool, 1, &batch.slots[i], /*distinct=*/true));
  }
  return BatchOf{function, batch};
}

absl::StatusOr<LayerStep> MakeStep(const char* function, const gdn_pool& pool, const gdn_delta_rule_step& given) {
  GDN_ASSIGN_OR_RETURN(const BatchOf of, CheckBatch(function, pool, given.batch));
  GDN_RETURN_IF_ERROR(RequireFinite(function, "scale", given.scale));
  const LayerDims& dims = pool.dims();
  const std::array<int64_t, 2> key = {dims.key_heads, dims.key_dim};
  const std::array<int64_t, 2> value = {dims.value_heads, dims.value_dim};
  const auto gate = absl::MakeConstSpan(value).first(1);
  LayerStep step;
  step.pool = pool.view;
  step.batch = of.batch;
  step.kind = InputKind::kDeltaRule;
  const auto input = [&](InputTensor LayerStep::*field, const gdn_tensor& tensor,
                         const Features& expected) -> absl::Status {
    GDN_ASSIGN_OR_RETURN(const DType dtype, CheckTensor(function, tensor, of.batch.tokens(), expected));
    step.*field = {tensor.data, dtype};
    return absl::OkStatus();
  };
  GDN_RETURN_IF_ERROR(input(&LayerStep::q, given.q, {"q", key, "H, K"}));
  GDN_RETURN_IF_ERROR(input(&LayerStep::k, given.k, {"k", key, "H, K"}));
  GDN_RETURN_IF_ERROR(input(&LayerStep::v, given.v, {"v", value, "HV, V"}));
  GDN_RETURN_IF_ERROR(input(&LayerStep::g, given.g, {"g", gate, "HV"}));
  GDN_RETURN_IF_ERROR(input(&LayerStep::beta, given.beta, {"beta", gate, "HV"}));
  GDN_ASSIGN_OR_RETURN(const DType output,
                       CheckTensor(function, given.output, of.batch.tokens(), {"output", value, "HV, V"}));
  step.output = {given.output.data, output};
  step.scale =
      given.scale != 0.0f ? given.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims.key_dim)));
  step.use_qk_l2norm = given.use_qk_l2norm != 0;
  return step;
}

// What the pool remembers of the batch's slots, sequence by sequence.
struct Counts {
  std::vector<int64_t> tokens;
  std::vector<int32_t> log_lengths;

  Counts(const gdn_pool& pool, const PackedBatch& batch)
      : tokens(static_cast<size_t>(batch.sequences)), log_lengths(tokens.size()) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int32_t slot = batch.slots[i];
      if (slot < 0) continue;
      tokens[i] = pool.token_counts[slot];
      log_lengths[i] = pool.log_lengths[slot];
    }
  }
  void Keep(gdn_pool& pool, const PackedBatch& batch) const {
    for (int32_t i = 0; i < batch.sequences; ++i) {
      const int32_t slot = batch.slots[i];
      if (slot < 0) continue;
      pool.token_counts[slot] = tokens[static_cast<size_t>(i)] + batch.length(i);
      pool.log_lengths[slot] = log_lengths[static_cast<size_t>(i)];
    }
  }
};

// Folds the logs of those that will move: a prefill works on the base alone.
absl::Status FoldLogs(gdn_pool& pool, const PackedBatch& batch, Counts& counts) {
  std::vector<int32_t> slots;
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < batch.sequences; ++i) {
    int32_t& length = counts.log_lengths[static_cast<size_t>(i)];
    if (batch.slots[i] < 0 || batch.length(i) == 0 || length == 0) continue;
    slots.push_back(batch.slots[i]);
    lengths.push_back(std::exchange(length, 0));
  }
  return pool.context.backend->MaterializeState({.pool = pool.view,
                                                 .count = static_cast<int32_t>(slots.size()),
                                                 .src = slots.data(),
                                                 .dst = slots.data(),
                                                 .log_lengths = lengths.data()});
}

absl::Status Prefill(gdn_pool& pool, LayerStep& step) {
  Counts counts(pool, step.batch);
  step.token_counts = counts.tokens.data();
  GDN_RETURN_IF_ERROR(ValidatePrefillStep(step));
  GDN_RETURN_IF_ERROR(FoldLogs(pool, step.batch, counts));
  GDN_RETURN_IF_ERROR(pool.context.runner->Prefill(step));
  counts.Keep(pool, step.batch);
  return absl::OkStatus();
}

absl::Status Decode(gdn_pool& pool, LayerStep& step) {
  const int32_t most = pool.view.layout.max_draft();
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    if (step.batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireRange("gdn_decode", absl::StrCat("the length of sequence ", i), step.batch.length(i), 0,
                                     most, ", max_decode_tokens: make the pool with more, or prefill"));
  }
  Counts counts(pool, step.batch);
  step.token_counts = counts.tokens.data();
  GDN_RETURN_IF_ERROR(pool.context.runner->Decode(step, counts.log_lengths.data()));
  counts.Keep(pool, step.batch);
  return absl::OkStatus();
}

template <typename Given>
int Run(const char* function, const char* type, gdn_pool* pool, const Given* given,
        absl::Status (*advance)(gdn_pool&, LayerStep&)) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument(function, "pool", pool));
    GDN_RETURN_IF_ERROR(RequireStruct(function, type, given, given == nullptr ? 0 : given->struct_size, sizeof(Given)));
    return InOrderOf(pool->context, given->stream, [&]() -> absl::Status {
      GDN_ASSIGN_OR_RETURN(LayerStep step, MakeStep(function, *pool, *given));
      return advance(*pool, step);
    });
  });
}

}  // namespace
}  // namespace gdn::capi

int gdn_prefill(gdn_pool* pool, const gdn_delta_rule_step* step) {
  return gdn::capi::Run("gdn_prefill", "gdn_delta_rule_step", pool, step, gdn::capi::Prefill);
}

int gdn_decode(gdn_pool* pool, const gdn_delta_rule_step* step) {
  return gdn::capi::Run("gdn_decode", "gdn_delta_rule_step", pool, step, gdn::capi::Decode);
}
