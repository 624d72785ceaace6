// Sessions that are fed ranges of one long random sequence: hidden states to a model, or delta-rule tensors to a bare
// operator, by the same code.
//
// Thread safety: a feed is constant after construction. Ownership: owns its tokens.
//
//   const TokenFeed feed = TokenFeed::Operator(/*layers=*/2);
//   ASSERT_TRUE(feed.Create(caller, "a").ok());
//   ASSERT_TRUE(caller.Prefill(feed.Prefill("a", {0, 20})).ok());
//   auto reply = caller.Decode(feed.Decode({"a"}, {{20, 1}}));
#pragma once

#include <string>
#include <vector>

#include "tests/integration/service_helpers.h"
#include "tests/support/temp_folder.h"

namespace gdn {

// Tokens [first, first + count) of a feed.
struct TokenRange {
  int64_t first = 0;
  int64_t count = 1;
};

class TokenFeed {
 public:
  // "models/next" of GoldenPath("qwen3_next_1"); its GDN layers are 0, 1, 2.
  static TokenFeed Model();
  // Of SmallOperator(layers).
  static TokenFeed Operator(int layers = 1);
  // An operator whose outputs are long: 16 KiB a token.
  static TokenFeed WideOperator();

  // "model" or "operator".
  const std::string& name() const { return name_; }
  // What GdnServerOptions::models needs for it.
  static std::vector<std::pair<std::string, std::string>> Models();
  static constexpr int64_t kTokens = 400;

  v1::CreateSessionRequest Creation(const std::string& id) const;
  Outcome<v1::Session> Create(const Caller& caller, const std::string& id) const { return caller.Create(Creation(id)); }
  v1::PrefillRequest Prefill(const std::string& id, TokenRange range, int layer = 0) const;
  // A new session that has seen `prompt` in one prefill and then `decoded` more tokens one by one; the test fails where
  // that does not go well.
  void Start(const Caller& caller, const std::string& id, TokenRange prompt, int64_t decoded = 0) const;
  // Row i brings rows[i]; shorter ones are padded, and `lengths` is set.
  v1::DecodeRequest Decode(const std::vector<std::string>& ids, const std::vector<TokenRange>& rows,
                           int layer = 0) const;
  // The same for all rows.
  v1::DecodeRequest Decode(const std::vector<std::string>& ids, TokenRange range, int layer = 0) const {
    return Decode(ids, std::vector<TokenRange>(ids.size(), range), layer);
  }
  v1::DecodeRequest Draft(const std::vector<std::string>& ids, const std::vector<TokenRange>& rows,
                          int layer = 0) const;

  // A decode of one token after the other; fails the test where one fails. The outputs, one behind the other.
  std::string DecodeAll(const Caller& caller, const std::string& id, TokenRange range, int layer = 0) const;

 private:
  std::string name_;
  int layers_ = 1;
  Tokens hidden_;
  DeltaRuleInputs inputs_;
};

// "s0", "s1", ..
std::vector<std::string> SessionIds(int count);

// The first `tokens` tokens of row `row` of a [B, T, ..] output.
std::string RowTokens(const v1::Tensor& output, int64_t row, int64_t tokens);

// Files below `folder` whose path ends so.
std::vector<std::string> FilesBelow(const TempFolder& folder, const std::string& suffix);

// What GetServerInfo says of a tier.
v1::TierInfo TierNamed(const Caller& caller, const std::string& name);
// Whether the error says when to try again.
bool HasRetryInfo(const grpc::Status& status);

}  // namespace gdn
