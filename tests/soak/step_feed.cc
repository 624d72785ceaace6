#include "tests/soak/step_feed.h"

#include <algorithm>
#include <string_view>

#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/tensor_codec.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr int64_t kEntries = 251;     // a prime, so that streams meet each other's inputs at ever other tokens
constexpr int64_t kLearntAtOnce = 8;  // tokens of a row, which gives the bits of one after the other

std::string RowBytes(const v1::Tensor& tensor, int64_t row, int64_t rows) {
  const size_t bytes = tensor.data().size() / static_cast<size_t>(rows);
  return tensor.data().substr(static_cast<size_t>(row) * bytes, bytes);
}

}  // namespace

StepFeed::StepFeed(const FeedOptions& options) : options_(options) {
  Random random(options.seed);
  q_ = random.Normal(kEntries * options.key_heads * options.key_dim);
  k_ = random.Normal(kEntries * options.key_heads * options.key_dim);
  v_ = random.Normal(kEntries * options.value_heads * options.value_dim);
  g_ = random.Uniform(kEntries * options.value_heads, -0.2f, 0.0f);
  beta_ = random.Uniform(kEntries * options.value_heads, 0.0f, 1.0f);
  expected_.resize(static_cast<size_t>(options.layers * options.streams * options.tokens));
}

absl::StatusOr<StepFeed> StepFeed::Learn(Client& undisturbed, const FeedOptions& options) {
  StepFeed feed(options);
  for (int32_t stream = 0; stream < options.streams; ++stream) {
    GDN_ASSIGN_OR_RETURN(const v1::Session session, undisturbed.CreateSession(feed.Creation(StrCat("learn-", stream))));
    feed.session_bytes_ = session.state_bytes();
  }
  for (int32_t layer = 0; layer < options.layers; ++layer) {
    GDN_RETURN_IF_ERROR(feed.LearnLayer(undisturbed, layer));
  }
  for (int32_t stream = 0; stream < options.streams; ++stream) {
    GDN_RETURN_IF_ERROR(undisturbed.DeleteSession(StrCat("sessions/learn-", stream)));
  }
  return feed;
}

absl::Status StepFeed::LearnLayer(Client& undisturbed, int32_t layer) {
  for (int64_t first = 0; first < options_.tokens; first += kLearntAtOnce) {
    const int64_t tokens = std::min(kLearntAtOnce, options_.tokens - first);
    v1::DecodeRequest request;
    request.set_layer(layer);
    std::vector<int64_t> entries;
    for (int32_t stream = 0; stream < options_.streams; ++stream) {
      request.add_sessions(StrCat("sessions/learn-", stream));
      for (int64_t token = first; token < first + tokens; ++token) entries.push_back(EntryOf(stream, token));
    }
    *request.mutable_delta_rule() = Input({options_.streams, tokens}, entries);
    GDN_ASSIGN_OR_RETURN(const v1::DecodeResponse reply, undisturbed.Decode(request));
    for (int64_t row = 0; row < options_.streams * tokens; ++row) {
      Expected(layer, static_cast<int32_t>(row / tokens), first + row % tokens) =
          Hash64(RowBytes(reply.output(), row, options_.streams * tokens));
    }
  }
  return absl::OkStatus();
}

v1::CreateSessionRequest StepFeed::Creation(const std::string& id) const {
  v1::CreateSessionRequest request;
  request.set_session_id(id);
  v1::OperatorSpec* const spec = request.mutable_operator_();
  spec->set_key_heads(options_.key_heads);
  spec->set_value_heads(options_.value_heads);
  spec->set_key_dim(options_.key_dim);
  spec->set_value_dim(options_.value_dim);
  spec->set_layer_count(options_.layers);
  return request;
}

v1::DecodeRequest StepFeed::Decode(const std::vector<FeedRow>& rows, int32_t layer) const {
  v1::DecodeRequest request;
  request.set_layer(layer);
  std::vector<int64_t> entries;
  for (const FeedRow& row : rows) {
    request.add_sessions(row.session);
    request.add_expected_token_counts(row.token);
    entries.push_back(EntryOf(row.stream, row.token));
  }
  *request.mutable_delta_rule() = Input({static_cast<int64_t>(rows.size()), 1}, entries);
  return request;
}

v1::PrefillRequest StepFeed::Prefill(const std::string& session, int32_t layer, int64_t tokens) const {
  v1::PrefillRequest request;
  request.set_session(session);
  request.set_layer(layer);
  std::vector<int64_t> entries;
  for (int64_t token = 0; token < tokens; ++token) entries.push_back(token % kEntries);
  *request.mutable_delta_rule() = Input({tokens}, entries);
  return request;
}

absl::Status StepFeed::Check(const std::vector<FeedRow>& rows, int32_t layer, const v1::DecodeResponse& reply) const {
  const auto count = static_cast<int64_t>(rows.size());
  if (reply.token_counts_size() != count) return absl::DataLossError(StrCat(reply.token_counts_size(), " rows"));
  for (int64_t i = 0; i < count; ++i) {
    const FeedRow& row = rows[static_cast<size_t>(i)];
    const int64_t index = (int64_t{layer} * options_.streams + row.stream) * options_.tokens + row.token;
    const bool same_bits = Hash64(RowBytes(reply.output(), i, count)) == expected_[static_cast<size_t>(index)];
    if (same_bits && reply.token_counts(static_cast<int>(i)) == row.token + 1) continue;
    return absl::DataLossError(StrCat(row.session, ", layer ", layer, ", token ", row.token, ": ",
                                      same_bits ? "the right bits" : "other bits", ", count ",
                                      reply.token_counts(static_cast<int>(i))));
  }
  return absl::OkStatus();
}

v1::DeltaRuleInput StepFeed::Input(const std::vector<int64_t>& leading, const std::vector<int64_t>& entries) const {
  const auto gather = [&](const std::vector<float>& table, std::initializer_list<int64_t> features) {
    std::vector<int64_t> shape = leading;
    shape.insert(shape.end(), features);
    int64_t width = 1;
    for (const int64_t feature : features) width *= feature;
    std::vector<float> values;
    values.reserve(entries.size() * static_cast<size_t>(width));
    for (const int64_t entry : entries) {
      values.insert(values.end(), table.begin() + entry * width, table.begin() + (entry + 1) * width);
    }
    return *MakeTensor(values, shape);
  };
  v1::DeltaRuleInput input;
  *input.mutable_q() = gather(q_, {options_.key_heads, options_.key_dim});
  *input.mutable_k() = gather(k_, {options_.key_heads, options_.key_dim});
  *input.mutable_v() = gather(v_, {options_.value_heads, options_.value_dim});
  *input.mutable_g() = gather(g_, {options_.value_heads});
  *input.mutable_beta() = gather(beta_, {options_.value_heads});
  input.set_use_qk_l2norm(true);
  return input;
}

int64_t StepFeed::EntryOf(int32_t stream, int64_t token) const {
  return (token * (stream + 1) + int64_t{stream} * 31) % kEntries;
}

uint64_t& StepFeed::Expected(int32_t layer, int32_t stream, int64_t token) {
  return expected_[static_cast<size_t>((int64_t{layer} * options_.streams + stream) * options_.tokens + token)];
}

}  // namespace gdn
