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
  const char* letters;           // "H, K"
  const char* first = "tokens";  // a weight's first dimension
};

absl::Status InvalidTensor(const char* function, const Features& expected, std::string_view why,
                           const std::string& message) {
  return Invalid(why, expected.name, absl::StrCat(function, ": ", expected.name, " ", message));
}

absl::StatusOr<DType> DTypeOf(const char* function, const Features& expected, int32_t dtype) {
  if (dtype == GDN_F32) return DType::kF32;
  if (dtype == GDN_F16) return DType::kF16;
  if (dtype == GDN_BF16) return DType::kBF16;
  return InvalidTensor(function, expected, reason::kInvalidTensorDtype,
                       absl::StrCat("has dtype ", dtype, "; expected GDN_F32 (1), GDN_F16 (2) or GDN_BF16 (3)"));
}

// The dtype of a tensor [tokens, features...] that may be used.
absl::StatusOr<DType> CheckTensor(const char* function, const gdn_tensor& tensor, int64_t tokens,
                                  const Features& expected) {
  GDN_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(function, expected, tensor.dtype));
  std::vector<int64_t> shape = {tokens};
  shape.insert(shape.end(), expected.sizes.begin(), expected.sizes.end());
  const absl::Span<const int64_t> given(tensor.shape, static_cast<size_t>(std::clamp(tensor.rank, 0, kMaxRank)));
  if (tensor.rank != static_cast<int32_t>(shape.size()) || !std::equal(shape.begin(), shape.end(), given.begin())) {
    return InvalidTensor(function, expected, reason::kInvalidTensorShape,
                         absl::StrCat("is of rank ", tensor.rank, ", [", absl::StrJoin(given, ", "), "]; expected [",
                                      expected.first, expected.sizes.empty() ? "" : ", ", expected.letters, "], [",
                                      absl::StrJoin(shape, ", "), "], as cu_seqlens and the pool's spec say"));
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

absl::StatusOr<PackedBatch> CheckBatch(const char* function, const gdn_pool& pool, const gdn_batch& given) {
  const PackedBatch batch{.sequences = given.sequences, .cu_seqlens = given.cu_seqlens, .slots = given.slots};
  const absl::Status status = ValidatePackedBatch(batch, pool.view.slot_count);
  if (!status.ok()) return WithPrefix(status, function);
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireSlots(function, pool, 1, &batch.slots[i], /*distinct=*/true));
  }
  GDN_RETURN_IF_ERROR(RequireStates(function, pool, batch.sequences, batch.slots));
  return batch;
}

absl::Status WrongPool(const char* function, const char* message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInputKindMismatch,
                   absl::StrCat(function, ": ", message));
}

// The tensors of a step, checked one by one.
class StepMaker {
 public:
  StepMaker(const char* function, const gdn_pool& pool, const PackedBatch& batch, InputKind kind)
      : function_(function), dims_(pool.dims()) {
    step_.pool = pool.view;
    step_.batch = batch;
    step_.kind = kind;
  }

  absl::Status Input(InputTensor LayerStep::*field, const gdn_tensor& tensor, const Features& expected) {
    GDN_ASSIGN_OR_RETURN(const DType dtype, CheckTensor(function_, tensor, step_.batch.tokens(), expected));
    step_.*field = {tensor.data, dtype};
    return absl::OkStatus();
  }
  absl::Status Output(const gdn_tensor& tensor) {
    GDN_ASSIGN_OR_RETURN(const DType dtype, CheckTensor(function_, tensor, step_.batch.tokens(), Values("output")));
    step_.output = {tensor.data, dtype};
    return absl::OkStatus();
  }
  LayerStep& step() { return step_; }

  Features Keys(const char* name) const { return {name, keys_, "H, K"}; }
  Features Values(const char* name) const { return {name, values_, "HV, V"}; }
  Features Gates(const char* name) const { return {name, absl::MakeConstSpan(values_).first(1), "HV"}; }
  Features Decays(const char* name) const {
    return dims_.decays_by_channel() ? Features{name, decays_, "HV, K"} : Gates(name);
  }
  Features Channels(const char* name) const { return {name, channels_, "C"}; }

 private:
  const char* function_;
  const LayerDims& dims_;
  const std::array<int64_t, 2> keys_ = {dims_.key_heads, dims_.key_dim};
  const std::array<int64_t, 2> values_ = {dims_.value_heads, dims_.value_dim};
  const std::array<int64_t, 2> decays_ = {dims_.value_heads, dims_.key_dim};
  const std::array<int64_t, 1> channels_ = {dims_.conv_channels()};
  LayerStep step_;
};

absl::StatusOr<LayerStep> MakeStep(const char* function, const gdn_pool& pool, const gdn_delta_rule_step& given,
                                   LayerWeights& /*weights*/) {
  GDN_ASSIGN_OR_RETURN(const PackedBatch batch, CheckBatch(function, pool, given.batch));
  GDN_RETURN_IF_ERROR(RequireFinite(function, "scale", given.scale));
  GDN_RETURN_IF_ERROR(RequireFinite(function, "max_beta", given.max_beta));
  const LayerDims& dims = pool.dims();
  if (dims.conv_width > 0) {
    return WrongPool(function,
                     "the pool has a convolution; use gdn_mixer_prefill and gdn_mixer_decode, or make it with "
                     "conv_width 0");
  }
  StepMaker maker(function, pool, batch, InputKind::kDeltaRule);
  GDN_RETURN_IF_ERROR(maker.Input(&LayerStep::q, given.q, maker.Keys("q")));
  GDN_RETURN_IF_ERROR(maker.Input(&LayerStep::k, given.k, maker.Keys("k")));
  GDN_RETURN_IF_ERROR(maker.Input(&LayerStep::v, given.v, maker.Values("v")));
  GDN_RETURN_IF_ERROR(maker.Input(&LayerStep::g, given.g, maker.Decays("g")));
  GDN_RETURN_IF_ERROR(maker.Input(&LayerStep::beta, given.beta, maker.Gates("beta")));
  GDN_RETURN_IF_ERROR(maker.Output(given.output));
  LayerStep& step = maker.step();
  // As the server's default is rounded.
  step.delta_rule.scale = given.scale != 0.0f ? given.scale : 1.0f / std::sqrt(static_cast<float>(dims.key_dim));
  step.delta_rule.use_qk_l2norm = given.use_qk_l2norm != 0;
  step.delta_rule.max_beta = given.max_beta != 0.0f ? given.max_beta : 2.0f;
  return step;
}

// A weight [first, others...] of float32.
absl::StatusOr<const float*> CheckWeight(const char* function, const gdn_tensor& tensor, int64_t first,
                                         const Features& expected) {
  GDN_ASSIGN_OR_RETURN(const DType dtype, CheckTensor(function, tensor, first, expected));
  if (dtype == DType::kF32) return static_cast<const float*>(tensor.data);
  return InvalidTensor(function, expected, reason::kInvalidTensorDtype,
                       absl::StrCat("is ", std::string(DTypeName(dtype)), "; expected float32, GDN_F32"));
}

absl::StatusOr<LayerStep> MakeStep(const char* function, const gdn_pool& pool, const gdn_mixer_step& given,
                                   LayerWeights& weights) {
  GDN_ASSIGN_OR_RETURN(const PackedBatch batch, CheckBatch(function, pool, given.batch));
  const LayerDims& dims = pool.dims();
  if (dims.conv_width == 0) {
    return WrongPool(function, "the pool has no convolution; make it with conv_width and hidden_size");
  }
  const int64_t taps = dims.conv_width;
  const gdn_mixer_weights& from = given.weights;
  weights.spec.dims = dims;
  GDN_ASSIGN_OR_RETURN(weights.conv_weight, CheckWeight(function, from.conv_weight, dims.conv_channels(),
                                                        {"conv_weight", absl::MakeConstSpan(&taps, 1), "W", "C"}));
  GDN_ASSIGN_OR_RETURN(weights.a_log, CheckWeight(function, from.a_log, dims.value_heads, {"a_log", {}, "", "HV"}));
  GDN_ASSIGN_OR_RETURN(weights.dt_bias,
                       CheckWeight(function, from.dt_bias, dims.value_heads, {"dt_bias", {}, "", "HV"}));
  GDN_ASSIGN_OR_RETURN(weights.norm_weight,
                       CheckWeight(function, from.norm_weight, dims.value_dim, {"norm_weight", {}, "", "V"}));
  if (from.norm_epsilon != 0.0f) weights.spec.norm_epsilon = from.norm_epsilon;
  StepMaker maker(function, pool, batch, InputKind::kProjected);
  GDN_RETURN_IF_ERROR(maker.Input(&LayerStep::mixed_qkv, given.mixed_qkv, maker.Channels("mixed_qkv")));
  GDN_RETURN_IF_ERROR(maker.Input(&LayerStep::z, given.z, maker.Values("z")));
  GDN_RETURN_IF_ERROR(maker.Input(&LayerStep::b, given.b, maker.Gates("b")));
  GDN_RETURN_IF_ERROR(maker.Input(&LayerStep::a, given.a, maker.Gates("a")));
  GDN_RETURN_IF_ERROR(maker.Output(given.output));
  maker.step().weights = &weights;
  return maker.step();
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

// The step has failed on its way.
template <typename Changes>
void LoseStates(gdn_pool& pool, const PackedBatch& batch, const Changes& changes) {
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.slots[i] >= 0 && changes(i)) pool.log_lengths[batch.slots[i]] = kLostState;
  }
}

absl::Status Prefill(gdn_pool& pool, LayerStep& step) {
  Counts counts(pool, step.batch);
  step.token_counts = counts.tokens.data();
  GDN_RETURN_IF_ERROR(ValidatePrefillStep(step));
  const auto issue = [&](Counts& moved) -> absl::Status {
    GDN_RETURN_IF_ERROR(FoldLogs(pool, step.batch, moved));
    return pool.context.runner->Prefill(step);
  };
  // It works in the states themselves, so what can be wanting comes first.
  GDN_RETURN_IF_ERROR(pool.context.backend->Prepare([&] {
    Counts in_vain = counts;
    return issue(in_vain);
  }));
  const absl::Status status = issue(counts);
  const auto moves = [&](int32_t i) { return step.batch.length(i) > 0; };
  status.ok() ? counts.Keep(pool, step.batch) : LoseStates(pool, step.batch, moves);
  return status;
}

absl::Status Decode(gdn_pool& pool, LayerStep& step) {
  const int32_t most = pool.view.layout.max_draft();
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    if (step.batch.slots[i] < 0) continue;
    GDN_RETURN_IF_ERROR(RequireRange("a decode", absl::StrCat("the length of sequence ", i), step.batch.length(i), 0,
                                     most, ", max_decode_tokens: make the pool with more, or prefill"));
  }
  Counts counts(pool, step.batch);
  step.token_counts = counts.tokens.data();
  const absl::Status status = pool.context.runner->Decode(step, counts.log_lengths.data());
  const auto folds = [&](int32_t i) {
    return pool.log_lengths[step.batch.slots[i]] + step.batch.length(i) >= kLogCapacity;
  };
  if (status.ok()) {
    counts.Keep(pool, step.batch);
  } else if (pool.context.runner->may_have_folded()) {
    LoseStates(pool, step.batch, folds);
  }
  return status;
}

template <typename Given>
int Run(const char* function, const char* type, gdn_pool* pool, const Given* given,
        absl::Status (*advance)(gdn_pool&, LayerStep&)) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument(function, "pool", pool));
    GDN_RETURN_IF_ERROR(RequireStruct(function, type, given, given == nullptr ? 0 : given->struct_size, sizeof(Given)));
    return InOrderOf(pool->context, given->stream, [&]() -> absl::Status {
      LayerWeights weights;
      GDN_ASSIGN_OR_RETURN(LayerStep step, MakeStep(function, *pool, *given, weights));
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

int gdn_mixer_prefill(gdn_pool* pool, const gdn_mixer_step* step) {
  return gdn::capi::Run("gdn_mixer_prefill", "gdn_mixer_step", pool, step, gdn::capi::Prefill);
}

int gdn_mixer_decode(gdn_pool* pool, const gdn_mixer_step* step) {
  return gdn::capi::Run("gdn_mixer_decode", "gdn_mixer_step", pool, step, gdn::capi::Decode);
}
