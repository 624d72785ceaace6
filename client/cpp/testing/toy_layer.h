// The simplest layer with a state, its states' file, and a session's layers: what FakeGdnService computes.
//
// Layer L computes y_t = (L + 1) * (x_0 + .. + x_t), element by element over D = 4 channels. Its recurrent state is
// that sum as [1, D, 1], its conv state the newest three inputs as [D, 3].
// Thread safety: plain values.
//
//   ToyState state;
//   const auto y = state.Step(/*layer=*/0, x);
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gdn {

inline constexpr int kToyHidden = 4;       // D
inline constexpr int kToyConvColumns = 3;  // W - 1
inline constexpr int32_t kToyLayers[] = {0, 2};
inline constexpr char kToyFingerprint[] = "0123456789abcdef0123456789abcdef";

// One layer of one session.
struct ToyState {
  std::array<float, kToyHidden> sum = {};
  std::array<std::array<float, kToyConvColumns>, kToyHidden> newest = {};
  int64_t token_count = 0;
  // Of every byte and call boundary: a prefill leaves another trace than decodes of the same tokens, so that a replay
  // with other boundaries shows; a decode of T tokens leaves that of T decodes of one, and so does a draft of which T
  // are accepted.
  uint64_t trace = 17;
  std::vector<float> draft = {};            // its inputs
  std::vector<int32_t> draft_parents = {};  // of a tree; empty: a chain

  int32_t draft_length() const { return static_cast<int32_t>(draft.size() / kToyHidden); }
  // y for one token's x, both [D].
  std::array<float, kToyHidden> Step(int32_t layer, const float* x);
  // Takes some tokens and appends y of each, or with `traces` as many bytes of the trace.
  void Advance(int32_t layer, const float* x, size_t tokens, bool traces, std::vector<float>& output);
  // The same for a draft, which moves nothing: each token follows its parent.
  void Draft(int32_t layer, const float* x, size_t tokens, bool traces, std::vector<float>& output);
  void EndPrefill(size_t tokens);
  // A line; equal lines are equal traces, counts and drafts.
  std::string Text() const;
};
using ToyStates = std::map<int32_t, ToyState>;  // by layer

// A state file of a session in this epoch; `error` is added to every element of the recurrent states. Of drafts it has
// the lengths alone.
std::string ToyStateFile(const ToyStates& layers, int64_t epoch, float error);
// What such a file holds of kToyLayers.
absl::StatusOr<ToyStates> ParseToyStateFile(std::string_view bytes);

}  // namespace gdn
