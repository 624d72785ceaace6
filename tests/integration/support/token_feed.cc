#include "tests/integration/support/token_feed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "google/rpc/error_details.pb.h"
#include "tests/integration/support/step_parts.h"

namespace gdn {
namespace {

constexpr uint64_t kSeed = 77;

// `longest` tokens: the range's, and then rows that would show if they were looked at.
DeltaRuleInputs Padded(const DeltaRuleInputs& inputs, TokenRange range, int64_t longest) {
  DeltaRuleInputs row = Slice(inputs, range.first, range.first + range.count);
  const LayerDims& dims = inputs.dims;
  const auto pad = [longest](std::vector<float>& values, int64_t features, float value) {
    values.resize(static_cast<size_t>(longest * features), value);
  };
  pad(row.q, int64_t{dims.key_heads} * dims.key_dim, 3.0f);
  pad(row.k, int64_t{dims.key_heads} * dims.key_dim, 3.0f);
  pad(row.v, int64_t{dims.value_heads} * dims.value_dim, 3.0f);
  pad(row.g, dims.value_heads, -9.0f);
  pad(row.beta, dims.value_heads, 1.0f);
  row.tokens = longest;
  return row;
}

}  // namespace

TokenFeed TokenFeed::Model() {
  TokenFeed feed;
  feed.name_ = "model";
  feed.hidden_ = RandomTokens(kTokens, kSeed);
  return feed;
}

TokenFeed TokenFeed::Operator(int layers) {
  TokenFeed feed;
  feed.name_ = "operator";
  feed.layers_ = layers;
  Random random(kSeed);
  feed.inputs_ = RandomDeltaRuleInputs(SmallOperatorDims(), kTokens, random);
  return feed;
}

TokenFeed TokenFeed::WideOperator() {
  TokenFeed feed;
  feed.name_ = "wide operator";
  Random random(kSeed);
  feed.inputs_ = RandomDeltaRuleInputs(OperatorDims(1, 32, 16, 128), kTokens, random);
  return feed;
}

std::vector<std::pair<std::string, std::string>> TokenFeed::Models() { return {{"next", GoldenPath("qwen3_next_1")}}; }

v1::CreateSessionRequest TokenFeed::Creation(const std::string& id) const {
  v1::CreateSessionRequest request;
  request.set_session_id(id);
  if (hidden_.features > 0) {
    request.set_model("models/next");
  } else {
    v1::OperatorSpec& spec = *request.mutable_operator_();
    spec = SmallOperator(layers_);
    spec.set_key_heads(inputs_.dims.key_heads);
    spec.set_value_heads(inputs_.dims.value_heads);
    spec.set_key_dim(inputs_.dims.key_dim);
    spec.set_value_dim(inputs_.dims.value_dim);
  }
  return request;
}

v1::PrefillRequest TokenFeed::Prefill(const std::string& id, TokenRange range, int layer) const {
  if (hidden_.features > 0) return PrefillOf(id, layer, hidden_.Slice(range.first, range.count));
  v1::PrefillRequest request;
  request.set_session("sessions/" + id);
  request.set_layer(layer);
  *request.mutable_delta_rule() = DeltaRuleOf(Slice(inputs_, range.first, range.first + range.count), {range.count});
  return request;
}

void TokenFeed::Start(const Caller& caller, const std::string& id, TokenRange prompt, int64_t decoded) const {
  ASSERT_TRUE(Create(caller, id).ok()) << id;
  const auto prefilled = caller.Prefill(Prefill(id, prompt));
  ASSERT_TRUE(prefilled.ok()) << id << ": " << prefilled.status.error_message();
  DecodeAll(caller, id, {prompt.first + prompt.count, decoded});
}

v1::DecodeRequest TokenFeed::Decode(const std::vector<std::string>& ids, const std::vector<TokenRange>& rows,
                                    int layer) const {
  if (hidden_.features > 0) {
    std::vector<Tokens> tokens;
    for (const TokenRange& row : rows) tokens.push_back(hidden_.Slice(row.first, row.count));
    return DecodeOf(ids, layer, tokens);
  }
  v1::DecodeRequest request;
  request.set_layer(layer);
  std::vector<int64_t> lengths;
  for (const TokenRange& row : rows) lengths.push_back(row.count);
  const int64_t longest = SetRows(ids, lengths, request);
  std::vector<DeltaRuleInputs> parts;
  for (const TokenRange& row : rows) parts.push_back(Padded(inputs_, row, longest));
  *request.mutable_delta_rule() = DeltaRuleOf(Concatenate(parts), {static_cast<int64_t>(rows.size()), longest});
  return request;
}

v1::DecodeRequest TokenFeed::Draft(const std::vector<std::string>& ids, const std::vector<TokenRange>& rows,
                                   int layer) const {
  v1::DecodeRequest request = Decode(ids, rows, layer);
  request.set_draft(true);
  return request;
}

v1::StepRequest TokenFeed::Step(const std::vector<FeedPart>& parts, int layer) const {
  v1::StepRequest request;
  request.set_layer(layer);
  std::vector<DeltaRuleInputs> inputs;
  std::vector<float> hidden;
  int64_t tokens = 0;
  for (const FeedPart& part : parts) {
    AddStepRow(part, part.range.count, request);
    tokens += part.range.count;
    if (hidden_.features > 0) {
      const Tokens slice = hidden_.Slice(part.range.first, part.range.count);
      hidden.insert(hidden.end(), slice.values.begin(), slice.values.end());
    } else {
      inputs.push_back(Slice(inputs_, part.range.first, part.range.first + part.range.count));
    }
  }
  if (hidden_.features > 0) {
    *request.mutable_hidden_states()->mutable_hidden_states() = AsTensor({tokens, hidden_.features}, hidden);
  } else {
    *request.mutable_delta_rule() = DeltaRuleOf(Concatenate(inputs), {tokens});
  }
  return request;
}

std::string TokenFeed::DecodeAll(const Caller& caller, const std::string& id, TokenRange range, int layer) const {
  std::string outputs;
  for (int64_t token = range.first; token < range.first + range.count; ++token) {
    const auto reply = caller.Decode(Decode({id}, TokenRange{token, 1}, layer));
    EXPECT_TRUE(reply.ok()) << id << " token " << token << ": " << reply.status.error_message();
    if (!reply.ok()) break;
    outputs += reply.reply.output().data();
  }
  return outputs;
}

std::vector<std::string> SessionIds(int count) {
  std::vector<std::string> ids;
  for (int i = 0; i < count; ++i) ids.push_back("s" + std::to_string(i));
  return ids;
}

std::string RowTokens(const v1::Tensor& output, int64_t row, int64_t tokens) {
  const std::string bytes = RowBytes(output, row);
  return bytes.substr(0, bytes.size() / static_cast<size_t>(output.shape(1)) * static_cast<size_t>(tokens));
}

std::vector<std::string> FilesBelow(const TempFolder& folder, const std::string& suffix) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.is_regular_file() && absl::EndsWith(entry.path().string(), suffix)) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

v1::TierInfo TierNamed(const Caller& caller, const std::string& name) {
  const v1::GetServerInfoResponse info = caller.Info().reply;
  for (const v1::TierInfo& tier : info.tiers()) {
    if (tier.name() == name) return tier;
  }
  ADD_FAILURE() << "there is no tier named " << name;
  return {};
}

bool HasRetryInfo(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return false;
  return std::any_of(details.details().begin(), details.details().end(),
                     [](const auto& detail) { return detail.template Is<google::rpc::RetryInfo>(); });
}

}  // namespace gdn
