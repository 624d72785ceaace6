// The dimensions of a Gated DeltaNet layer, and the kinds of input that a step may have.
//
// Thread safety: plain values.
//
//   LayerDims dims{.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128,
//                  .conv_width = 4, .hidden_size = 2048};
//   GDN_RETURN_IF_ERROR(ValidateLayerDims(dims));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gdn {

// Number of log decays g for each token and value head.
// kPerHead     one for the whole head: S <- e^g S. Gated DeltaNet.
// kPerChannel  K of them, one for each row of S [K, V]: S <- diag(e^g) S. Kimi Delta Attention (KDA); g is then [..,
// HV, K].
enum class DecayKind : uint8_t { kPerHead, kPerChannel };

// Dimensions of one layer, or of a bare operator (conv_width = hidden_size = 0).
struct LayerDims {
  int32_t key_heads = 0;  // H: heads of q and k
  int32_t value_heads =
      0;                   // HV: heads of v, z, g and beta; a multiple of H. Value head hv reads key head hv / (HV / H)
  int32_t key_dim = 0;     // K: elements of a q or k head
  int32_t value_dim = 0;   // V: elements of a v head
  int32_t conv_width = 0;  // W: taps of the causal conv1d, >= 2; 0 for a bare operator
  int32_t hidden_size = 0;  // D: model width; 0 for a bare operator
  DecayKind decay = DecayKind::kPerHead;

  int32_t group() const { return value_heads / key_heads; }  // r = HV / H, value heads that read one key head
  int64_t key_features() const { return int64_t{key_heads} * key_dim; }        // H * K, elements of a token's q (or k)
  int64_t value_features() const { return int64_t{value_heads} * value_dim; }  // HV * V, elements of a token's v
  int64_t conv_channels() const { return 2 * key_features() + value_features(); }        // C, in the order [q | k | v]
  int64_t state_elements() const { return int64_t{value_heads} * key_dim * value_dim; }  // HV * K * V, elements of S
  bool has_layer() const { return hidden_size > 0; }
  bool decays_by_channel() const { return decay == DecayKind::kPerChannel; }
  int32_t decay_dim() const { return decays_by_channel() ? key_dim : 1; }        // log decays per token and value head
  int64_t decay_features() const { return int64_t{value_heads} * decay_dim(); }  // log decays per token: HV, or HV * K

  friend bool operator==(const LayerDims&, const LayerDims&) = default;
};

// Largest accepted sizes: far above real models, yet small enough that no product of them overflows.
inline constexpr int32_t kMaxHeads = 1024;
inline constexpr int32_t kMaxHeadDim = 1024;
inline constexpr int32_t kMaxConvWidth = 64;
inline constexpr int32_t kMaxHiddenSize = 1 << 20;

// Returns INVALID_ARGUMENT (INVALID_SPEC) with the message that `field` of a layer's description is `value`, and that
// `expected` was expected.
absl::Status InvalidSpecField(std::string_view field, const absl::AlphaNum& value, std::string_view expected);

// OK, or INVALID_ARGUMENT (INVALID_SPEC: field) naming the first field that is out of range, its value and what was
// expected. Only conv_width and hidden_size may be 0, and only both (a bare operator).
absl::Status ValidateLayerDims(const LayerDims& dims);

// "H=16 HV=32 K=128 V=128 W=4 D=2048", and " decay=per-channel" for kPerChannel.
std::string LayerDimsToString(const LayerDims& dims);

// The tensors that a step's request has. The first step of a layer of a session fixes the kind for all later steps of
// that layer.
enum class InputKind : uint8_t {
  kNone = 0,          // no step yet
  kHiddenStates = 1,  // the layer's input: the server computes everything, projections included
  kProjected = 2,     // mixed_qkv, z, b, a: everything but the projections
  kDeltaRule = 3,     // q, k, v, g, beta: the bare operator
};

std::string_view InputKindName(InputKind kind);  // "none", "hidden_states", "projected", "delta_rule"

}  // namespace gdn
