// The properties that all rows of a step have in common. Validation makes one of the request. The batcher passes it on,
// and jobs share a launch only if theirs are equal.
//
// Thread safety: a value. Ownership: owns nothing.
//
//   StepShape shape{.kind = InputKind::kHiddenStates, .fields = {{DType::kBF16, 2048}}, .field_count = 1};
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/dtype.h"
#include "base/layer_dims.h"

namespace gdn {

// Numbers that the caller sets for steps with the inputs q, k, v, g and beta (kDeltaRule). Steps of other kinds take
// the model's.
struct DeltaRuleNumbers {
  float scale = 0.0f;          // multiplies q
  bool use_qk_l2norm = false;  // divides q and k by their l2 norms first
  float max_beta = 2.0f;       // upper bound of beta, which decides whether a prefill is computed in chunks

  friend bool operator==(const DeltaRuleNumbers&, const DeltaRuleNumbers&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const DeltaRuleNumbers& numbers) {
    return H::combine(std::move(h), numbers.scale, numbers.use_qk_l2norm, numbers.max_beta);
  }
};

// Type and width of one input tensor. StepShape::fields has them in this order, by kind: hidden_states | mixed_qkv, z,
// b, a | q, k, v, g, beta.
struct StepField {
  DType dtype = DType::kF32;
  int64_t features = 0;  // elements of one token

  friend bool operator==(const StepField&, const StepField&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const StepField& field) {
    return H::combine(std::move(h), field.dtype, field.features);
  }
};
inline constexpr int kMaxStepFields = 5;

struct StepShape {
  InputKind kind = InputKind::kNone;
  std::array<StepField, kMaxStepFields> fields{};
  int field_count = 0;
  DeltaRuleNumbers delta_rule = {};
  DType output_dtype = DType::kF32;
  int64_t output_features = 0;  // elements of one token

  // Return the bytes of `tokens` tokens: in the input tensor fields[field], and in the output.
  size_t FieldBytes(size_t field, int64_t tokens) const {
    return static_cast<size_t>(tokens * fields[field].features) * DTypeSize(fields[field].dtype);
  }
  size_t OutputBytes(int64_t tokens) const {
    return static_cast<size_t>(tokens * output_features) * DTypeSize(output_dtype);
  }

  friend bool operator==(const StepShape&, const StepShape&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const StepShape& shape) {
    return H::combine(std::move(h), shape.kind, shape.fields, shape.field_count, shape.delta_rule, shape.output_dtype,
                      shape.output_features);
  }
};

}  // namespace gdn
