// Feeds sessions with ranges of one long random sequence: hidden states for a model, or delta-rule tensors for a bare
// operator, with the same code.
//
// Thread safety: a feed is constant after construction. Ownership: owns its tokens.
//
//   const TokenFeed feed = TokenFeed::Operator(/*layers=*/2);
//   ASSERT_TRUE(feed.Create(caller, "a").ok());
//   ASSERT_TRUE(caller.Prefill(feed.Prefill("a", {0, 20})).ok());
//   auto reply = caller.Decode(feed.Decode({"a"}, {{20, 1}}));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/support/temp_folder.h"

namespace gdn {

// Tokens [first, first + count) of a feed.
struct TokenRange {
  int64_t first = 0;
  int64_t count = 1;
};

// One session's part of a step, as StepPart (step_parts.h) has it, with tokens of a feed.
struct FeedPart {
  std::string id;
  TokenRange range;
  v1::StepKind kind = v1::STEP_KIND_DECODE;
  std::vector<int> parents = {};
  std::optional<int> accept = {};
  std::vector<int> path = {};
  std::optional<int64_t> expected = {};
};

class TokenFeed {
 public:
  // Feeds the model "models/next" of GoldenPath("qwen3_next_1"), with GDN layers 0, 1, 2.
  static TokenFeed Model();
  // Feeds the operator SmallOperator(layers).
  static TokenFeed Operator(int layers = 1);
  // Feeds an operator with long outputs: 16 KiB for each token.
  static TokenFeed WideOperator();

  // "model" or "operator".
  const std::string& name() const { return name_; }
  // Returns the value of GdnServerOptions::models that a server needs for Model().
  static std::vector<std::pair<std::string, std::string>> Models();
  static constexpr int64_t kTokens = 400;

  v1::CreateSessionRequest Creation(const std::string& id) const;
  Outcome<v1::Session> Create(const Caller& caller, const std::string& id) const { return caller.Create(Creation(id)); }
  v1::PrefillRequest Prefill(const std::string& id, TokenRange range, int layer = 0) const;
  // Makes a session, prefills `prompt` in one call and decodes `decoded` more tokens one by one. The test fails if a
  // call fails.
  void Start(const Caller& caller, const std::string& id, TokenRange prompt, int64_t decoded = 0) const;
  // Row i has the tokens rows[i]. Shorter rows are padded, and `lengths` is set.
  v1::DecodeRequest Decode(const std::vector<std::string>& ids, const std::vector<TokenRange>& rows,
                           int layer = 0) const;
  // All rows have the same tokens.
  v1::DecodeRequest Decode(const std::vector<std::string>& ids, TokenRange range, int layer = 0) const {
    return Decode(ids, std::vector<TokenRange>(ids.size(), range), layer);
  }
  v1::DecodeRequest Draft(const std::vector<std::string>& ids, const std::vector<TokenRange>& rows,
                          int layer = 0) const;

  // Rows of every kind in one request.
  v1::StepRequest Step(const std::vector<FeedPart>& parts, int layer = 0) const;

  // Decodes the tokens one by one, and returns the outputs end to end. The test fails if a call fails.
  std::string DecodeAll(const Caller& caller, const std::string& id, TokenRange range, int layer = 0) const;

 private:
  std::string name_;
  int layers_ = 1;
  Tokens hidden_;
  DeltaRuleInputs inputs_;
};

// "s0", "s1", ..
std::vector<std::string> SessionIds(int count);

// Returns the first `tokens` tokens of row `row` of a [B, T, ..] output.
std::string RowTokens(const v1::Tensor& output, int64_t row, int64_t tokens);

// Returns the files below `folder` whose paths end with `suffix`.
std::vector<std::string> FilesBelow(const TempFolder& folder, const std::string& suffix);

// Returns the tier's entry of GetServerInfo.
v1::TierInfo TierNamed(const Caller& caller, const std::string& name);
// True if the error says when to retry (google.rpc.RetryInfo).
bool HasRetryInfo(const grpc::Status& status);

}  // namespace gdn
