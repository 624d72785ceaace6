// The toy layer that FakeGdnService computes: a running sum, with its state and state file.
//
// Layer L computes y_t = (L + 1) * (x_0 + .. + x_t), element by element over D = 4 channels. Its recurrent state is
// that sum, float32 [1, D, 1]. Its conv state is the newest three inputs, float32 [D, 3].
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

inline constexpr int kToyHidden = 4;       // D, features of a token
inline constexpr int kToyConvColumns = 3;  // W - 1, inputs that the conv state keeps
inline constexpr int32_t kToyLayers[] = {0, 2};
inline constexpr char kToyFingerprint[] = "0123456789abcdef0123456789abcdef";

// One layer of one session.
struct ToyState {
  std::array<float, kToyHidden> sum = {};
  std::array<std::array<float, kToyConvColumns>, kToyHidden> newest = {};
  int64_t token_count = 0;
  // Hash of all inputs and of the prefill calls' boundaries, so that a test sees a replay with other boundaries.
  // T decodes of one token, one decode of T tokens and a draft of which T are accepted give the same trace; a prefill
  // of the same tokens gives another.
  uint64_t trace = 17;
  std::vector<float> draft = {};            // inputs of the draft, [T, D]
  std::vector<int32_t> draft_parents = {};  // parent of each token if the draft is a tree; empty: a chain

  int32_t draft_length() const { return static_cast<int32_t>(draft.size() / kToyHidden); }
  // Advances by one token. Takes x [D] and returns y [D].
  std::array<float, kToyHidden> Step(int32_t layer, const float* x);
  // Advances by x [tokens, D]. Appends y of each token, or with `traces` the same number of bytes of the trace.
  void Advance(int32_t layer, const float* x, size_t tokens, bool traces, std::vector<float>& output);
  // Computes a draft x [tokens, D], whose tokens follow their parents, and keeps x as the draft. The state does not
  // advance. Appends y or traces as Advance does.
  void Draft(int32_t layer, const float* x, size_t tokens, bool traces, std::vector<float>& output);
  void EndPrefill(size_t tokens);
  // Describes the state in one line. Equal lines mean equal traces, token counts and drafts.
  std::string Text() const;
};
using ToyStates = std::map<int32_t, ToyState>;  // by layer

// Makes a state file of a session in this epoch. `error` is added to every element of the recurrent states. Drafts are
// left out, except for their lengths.
std::string ToyStateFile(const ToyStates& layers, int64_t epoch, float error);
// Reads the states of the layers kToyLayers from a file that ToyStateFile has made. Traces and drafts are not in it.
// Errors of SafetensorsFile.
absl::StatusOr<ToyStates> ParseToyStateFile(std::string_view bytes);

}  // namespace gdn
