#include "client/cpp/testing/toy_layer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/files/safetensors.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

std::string_view Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

uint64_t Mix(uint64_t state, uint64_t value) {
  state = (state ^ value) * 0x9e3779b97f4a7c15u;
  return state ^ (state >> 29);
}

}  // namespace

std::array<float, kToyHidden> ToyState::Step(int32_t layer, const float* x) {
  std::array<float, kToyHidden> y;
  for (size_t d = 0; d < kToyHidden; ++d) {
    sum[d] += x[d];
    std::rotate(newest[d].begin(), newest[d].begin() + 1, newest[d].end());
    newest[d].back() = x[d];
    y[d] = static_cast<float>(layer + 1) * sum[d];
  }
  ++token_count;
  return y;
}

void ToyState::Advance(int32_t layer, const float* x, size_t tokens, bool traces, std::vector<float>& output) {
  for (size_t t = 0; t < tokens; ++t, x += kToyHidden) {
    const auto y = Step(layer, x);
    uint64_t words[kToyHidden / 2];
    std::memcpy(words, x, sizeof(words));
    for (uint64_t& word : words) word = trace = Mix(trace, word);
    if (!traces) {
      output.insert(output.end(), y.begin(), y.end());
      continue;
    }
    output.resize(output.size() + kToyHidden);
    std::memcpy(&output[output.size() - kToyHidden], words, sizeof(words));
  }
}

void ToyState::Draft(int32_t layer, const float* x, size_t tokens, bool traces, std::vector<float>& output) {
  std::vector<ToyState> after;
  for (size_t t = 0; t < tokens; ++t) {
    const int32_t parent = draft_parents.empty() ? static_cast<int32_t>(t) - 1 : draft_parents[t];
    after.push_back(parent < 0 ? *this : after[static_cast<size_t>(parent)]);
    after.back().Advance(layer, x + t * kToyHidden, 1, traces, output);
  }
  draft.assign(x, x + tokens * kToyHidden);
}

void ToyState::EndPrefill(size_t tokens) {
  if (tokens > 0) trace = Mix(trace, tokens);
}

std::string ToyState::Text() const {
  std::string bytes(Bytes(draft));
  for (const int32_t parent : draft_parents) bytes += StrCat(" ", parent);
  return StrCat(trace, " after ", token_count, ", draft ", bytes, "\n");
}

std::string ToyStateFile(const ToyStates& layers, int64_t epoch, float error) {
  std::vector<std::pair<std::string, std::vector<float>>> values;
  std::map<std::string, std::string> metadata = {
      {"format", "gdn.state"}, {"format_version", "1"},
      {"layer_count", "3"},    {"dims", "{\"conv_width\": 4, \"hidden_size\": 4}"},
      {"model", "toy"},        {"model_fingerprint", kToyFingerprint},
      {"epoch", StrCat(epoch)}};
  for (const auto& [layer, state] : layers) {
    std::vector<float> sum(state.sum.begin(), state.sum.end());
    for (float& element : sum) element += error;
    std::vector<float> newest;
    for (const auto& channel : state.newest) newest.insert(newest.end(), channel.begin(), channel.end());
    values.emplace_back(StrCat("layer.", layer, ".recurrent_state"), std::move(sum));
    values.emplace_back(StrCat("layer.", layer, ".conv_state"), std::move(newest));
    metadata[StrCat("layer.", layer)] =
        StrCat("{\"token_count\": ", state.token_count, ", \"draft_length\": ", state.draft_length(), "}");
  }
  std::vector<NamedTensor> tensors;
  for (const auto& [name, floats] : values) {
    const bool conv = floats.size() != kToyHidden;
    tensors.push_back(
        {name,
         {DType::kF32,
          conv ? std::vector<int64_t>{kToyHidden, kToyConvColumns} : std::vector<int64_t>{1, kToyHidden, 1},
          Bytes(floats)}});
  }
  return *SerializeSafetensors(tensors, metadata);
}

absl::StatusOr<ToyStates> ParseToyStateFile(std::string_view bytes) {
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Parse(bytes));
  ToyStates layers;
  for (const int32_t layer : kToyLayers) {
    ToyState& state = layers[layer];
    GDN_ASSIGN_OR_RETURN(const std::vector<float> sum, file.Floats(StrCat("layer.", layer, ".recurrent_state")));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> newest, file.Floats(StrCat("layer.", layer, ".conv_state")));
    const std::string entry = file.metadata().at(StrCat("layer.", layer));
    std::copy(sum.begin(), sum.end(), state.sum.begin());
    std::memcpy(state.newest.data(), newest.data(), sizeof(state.newest));
    state.token_count = std::atoll(entry.c_str() + entry.find(':') + 1);
  }
  return layers;
}

}  // namespace gdn
