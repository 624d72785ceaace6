// Rows of a Step for tests: packed requests of rows of every kind, their outputs, and random rows.
//
// Thread safety: plain values; a StepMixer is for one thread. Ownership: values own their tokens.
//
//   const StepPart prompt = {.id = "a", .tokens = RandomTokens(40, 1), .kind = v1::STEP_KIND_PREFILL};
//   const StepPart token = {.id = "b", .tokens = RandomTokens(1, 2)};
//   ASSERT_REPLY(const auto reply, caller.Step(StepOf({prompt, token})));
//   EXPECT_EQ(TokenBytes(reply.output(), 40, 1), expected);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/support/random.h"

namespace gdn {

// One session's part of a step.
struct StepPart {
  std::string id;
  Tokens tokens = {};
  v1::StepKind kind = v1::STEP_KIND_DECODE;
  std::vector<int> parents = {};         // of a draft that is a tree
  std::optional<int> accept = {};        // accepts so many tokens of the pending draft before
  std::vector<int> path = {};            // or this path
  std::optional<int64_t> expected = {};  // token count
};

// Adds a row of `tokens` tokens. A Part has the members of a StepPart, apart from `tokens`.
template <typename Part>
void AddStepRow(const Part& part, int64_t tokens, v1::StepRequest& request) {
  v1::StepRow& row = *request.add_rows();
  row.set_session("sessions/" + part.id);
  row.set_kind(part.kind);
  row.set_token_count(static_cast<int32_t>(tokens));
  row.mutable_draft_parents()->Add(part.parents.begin(), part.parents.end());
  if (part.accept.has_value()) row.mutable_accept_before()->set_accepted_tokens(*part.accept);
  if (!part.path.empty()) row.mutable_accept_before()->mutable_path()->Add(part.path.begin(), part.path.end());
  if (part.expected.has_value()) row.set_expected_token_count(*part.expected);
}

// Makes a request of hidden states. Without parts it has a tensor of 64 features and no tokens.
inline v1::StepRequest StepOf(const std::vector<StepPart>& parts, int layer = 0) {
  v1::StepRequest request;
  request.set_layer(layer);
  std::vector<float> values;
  for (const StepPart& part : parts) {
    AddStepRow(part, part.tokens.count(), request);
    values.insert(values.end(), part.tokens.values.begin(), part.tokens.values.end());
  }
  const int64_t features = parts.empty() ? 64 : parts.front().tokens.features;
  *request.mutable_hidden_states()->mutable_hidden_states() =
      AsTensor({static_cast<int64_t>(values.size()) / features, features}, values);
  return request;
}

inline v1::StreamStepRequest StreamStep(const v1::StepRequest& step) {
  v1::StreamStepRequest message;
  *message.mutable_step() = step;
  return message;
}

// Returns the bytes of `count` tokens of an [N, ..] tensor, from `first` on.
inline std::string TokenBytes(const v1::Tensor& output, int64_t first, int64_t count) {
  if (output.shape(0) == 0) return "";
  const size_t token = output.data().size() / static_cast<size_t>(output.shape(0));
  return output.data().substr(static_cast<size_t>(first) * token, static_cast<size_t>(count) * token);
}

// Makes random parts for sessions of a model of 64 features.
class StepMixer {
 public:
  explicit StepMixer(uint64_t seed) : random_(seed) {}

  // `draft_parents`: the session's pending draft before the part, and then after it; empty: none.
  StepPart NextPart(const std::string& id, std::vector<int>& draft_parents) {
    StepPart part{.id = id};
    if (!draft_parents.empty()) Accept(draft_parents, part);
    draft_parents.clear();
    const int kind = random_.NextInt(0, 2);
    part.kind = static_cast<v1::StepKind>(kind + 1);
    const std::vector<int> decodes = {0, 1, 1, 1, 2, 5, 8};
    const std::vector<int> prefills = {0, 1, 2, 5, 31, 32, 255, 600};
    const std::vector<int>& lengths = part.kind == v1::STEP_KIND_PREFILL ? prefills : decodes;
    const int length = lengths[static_cast<size_t>(random_.NextInt(0, static_cast<int>(lengths.size()) - 1))];
    part.tokens = RandomTokens(length, random_.NextInt(1, 1 << 30));
    if (part.kind != v1::STEP_KIND_DRAFT) return part;
    for (int token = 0; token < length; ++token) draft_parents.push_back(token - 1);
    if (random_.NextInt(0, 1) == 1 && length > 0) {
      for (int token = 0; token < length; ++token) {
        draft_parents[static_cast<size_t>(token)] = random_.NextInt(-1, token - 1);
      }
      part.parents = draft_parents;
    }
    return part;
  }

 private:
  // Any path of the tree, also the empty one; by its length if it is the draft's first tokens.
  void Accept(const std::vector<int>& parents, StepPart& part) {
    std::vector<int> path;
    for (int token = random_.NextInt(-1, static_cast<int>(parents.size()) - 1); token >= 0;
         token = parents[static_cast<size_t>(token)]) {
      path.insert(path.begin(), token);
    }
    bool is_first = true;
    for (size_t i = 0; i < path.size(); ++i) is_first &= path[i] == static_cast<int>(i);
    if (is_first) {
      part.accept = static_cast<int>(path.size());
    } else {
      part.path = path;
    }
  }

  Random random_;
};

// Sends a part to the session `id` by Prefill, Decode and AcceptTokens. Returns the bytes of its output. The test fails
// if a call fails.
inline std::string SendAlone(const Caller& caller, const std::string& id, const StepPart& part, int layer = 0) {
  if (part.accept.has_value() || !part.path.empty()) {
    v1::AcceptTokensRequest accept = AcceptOf({id}, {part.accept.value_or(0)});
    accept.mutable_acceptances(0)->mutable_path()->Add(part.path.begin(), part.path.end());
    const auto accepted = caller.Accept(accept);
    EXPECT_TRUE(accepted.ok()) << accepted.status.error_message();
  }
  if (part.kind == v1::STEP_KIND_PREFILL) {
    const auto reply = caller.Prefill(PrefillOf(id, layer, part.tokens));
    EXPECT_TRUE(reply.ok()) << reply.status.error_message();
    return reply.reply.output().data();
  }
  if (part.tokens.count() == 0) return "";
  v1::DecodeRequest request = DecodeOf({id}, layer, {part.tokens});
  request.set_draft(part.kind == v1::STEP_KIND_DRAFT);
  request.mutable_draft_parents()->Add(part.parents.begin(), part.parents.end());
  const auto reply = caller.Decode(request);
  EXPECT_TRUE(reply.ok()) << reply.status.error_message();
  return reply.reply.output().data();
}

}  // namespace gdn
