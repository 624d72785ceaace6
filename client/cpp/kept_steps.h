// Steps of a session that its server may lose: their requests, and digests of their outputs.
//
// Thread safety: for one thread at a time. Ownership: keeps the requests that it is given.
//
//   LayerSteps layer(/*layer=*/0, session_layer.token_count());
//   layer.Add({.request = request, .before = 0, .tokens = 12, .output = HashBytes(reply.output().data())});
//   layer.Trim(reply.durable_token_count());
//   if (auto first = layer.StepAt(count)) {
//     for (size_t i = *first; i < layer.steps().size(); ++i) Send(layer.steps()[i]);
//   }
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

#include "base/hash.h"
#include "gdn/v1/service.pb.h"

namespace gdn {

using SessionStep = std::variant<v1::PrefillRequest, v1::DecodeRequest>;  // a DecodeRequest of one row

int32_t StepLayer(const SessionStep& request);
bool IsDraft(const SessionStep& request);
// Number of tokens in the request (in its one row); 0 if the shape of its input does not show it (the server will
// refuse it).
int64_t StepTokens(const SessionStep& request);

// The tokens of a draft that are accepted.
struct DraftChoice {
  int32_t first_tokens = 0;        // number of accepted tokens from the draft's beginning; only if `path` is empty
  std::vector<int32_t> path = {};  // for a tree: indices of the accepted tokens, root first

  int32_t tokens() const { return path.empty() ? first_tokens : static_cast<int32_t>(path.size()); }
  friend bool operator==(const DraftChoice&, const DraftChoice&) = default;
};

struct KeptStep {
  SessionStep request;
  int64_t before = 0;       // tokens that the layer had seen before the step
  int64_t tokens = 0;       // tokens that the step added; of a draft, the accepted ones
  Hash128 output = {};      // digest of the output's bytes in the first reply
  int64_t bytes = 0;        // size of the request when it was kept
  DraftChoice choice = {};  // the accepted tokens, if the step was a draft

  int64_t after() const { return before + tokens; }
};

// The steps of one layer, in order and without gaps.
class LayerSteps {
 public:
  LayerSteps(int32_t layer, int64_t token_count) : layer_(layer), begin_(token_count), count_(token_count) {}

  int32_t layer() const { return layer_; }
  // Counts of tokens: the steps after the first begin() tokens are kept, up to token_count(), which is the number of
  // tokens that the layer has seen.
  int64_t begin() const { return begin_; }
  int64_t token_count() const { return count_; }
  const std::deque<KeptStep>& steps() const { return steps_; }
  std::deque<KeptStep>& steps() { return steps_; }
  // A draft that the server has answered, and that waits to be accepted.
  const std::optional<KeptStep>& draft() const { return draft_; }
  std::optional<KeptStep>& draft() { return draft_; }
  int64_t bytes() const { return bytes_; }

  // Adds a step that the server has applied; step.before must be token_count(). A step without tokens changes no state,
  // so it is not kept.
  void Add(KeptStep step);
  // Keeps a draft that the server has answered. There must be no other draft.
  void AddDraft(KeptStep draft);
  // Turns the draft into a step of these tokens, or drops it if there are none. Without a draft, does nothing.
  void AcceptDraft(DraftChoice choice);
  // Drops the steps that a durable copy of `token_count` tokens contains whole. A step that ends after it is kept.
  void Trim(int64_t token_count);
  // Returns the index of the kept step that begins at `token_count`; steps().size() for token_count(). nullopt if no
  // kept step begins there.
  std::optional<size_t> StepAt(int64_t token_count) const;

 private:
  int32_t layer_;
  int64_t begin_;
  int64_t count_;
  int64_t bytes_ = 0;
  std::deque<KeptStep> steps_;
  std::optional<KeptStep> draft_;
};

}  // namespace gdn
