// Drafts: tokens that were decoded on trial and accepted in part leave what decoding only those would have left.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::draft_test {
namespace {

constexpr int kMaxDraft = 8;
constexpr int kLogCapacity = 16;
constexpr TokenRange kPrompt = {0, 4};
constexpr int64_t kDraftFirst = 40;   // where drafts begin
constexpr int64_t kOtherFirst = 100;  // what follows the verdict

class Draft : public ::testing::TestWithParam<const char*> {
 protected:
  void Feed(const std::string& id, int64_t decoded, int layer = 0) {
    if (!caller_.Get(id).ok()) {
      ASSERT_TRUE(feed_.Create(caller_, id).ok());
    }
    ASSERT_TRUE(caller_.Prefill(feed_.Prefill(id, kPrompt, layer)).ok());
    for (int64_t token = kPrompt.count; decoded > 0;) {
      const int64_t count = std::min<int64_t>(decoded, kMaxDraft);
      ASSERT_TRUE(caller_.Decode(feed_.Decode({id}, TokenRange{token, count}, layer)).ok());
      token += count;
      decoded -= count;
    }
  }

  TestServer server_{{.models = TokenFeed::Models()}};
  const Caller caller_{server_};
  const TokenFeed feed_ = std::string(GetParam()) == "model" ? TokenFeed::Model() : TokenFeed::Operator(2);
};

INSTANTIATE_TEST_SUITE_P(Kinds, Draft, ::testing::Values("operator", "model"),
                         [](const auto& kind) { return std::string(kind.param); });

// Every draft length and every verdict, from every log offset: all in one batch, so rows are of different lengths and
// one AcceptTokens has many sessions.
TEST_P(Draft, AcceptedInPartEqualsThatPartDecodedPlainlyAtEveryLogOffset) {
  for (int64_t offset = 0; offset < kLogCapacity; ++offset) {
    SCOPED_TRACE("offset " + std::to_string(offset));
    std::vector<std::string> drafted, plain;
    std::vector<int> accepted;
    std::vector<TokenRange> drafts, others;
    for (int n = 0; n <= kMaxDraft; ++n) {
      plain.push_back("plain" + std::to_string(n));
      Feed(plain.back(), offset);
    }
    for (int tokens = 1; tokens <= kMaxDraft; ++tokens) {
      for (int n = 0; n <= tokens; ++n) {
        drafted.push_back("draft" + std::to_string(tokens) + "." + std::to_string(n));
        accepted.push_back(n);
        drafts.push_back({kDraftFirst, tokens});
        Feed(drafted.back(), offset);
      }
    }
    ASSERT_REPLY(const auto trial, caller_.Decode(feed_.Draft(drafted, drafts)));
    // Plain decodes of one token, of as many as were accepted.
    std::vector<std::string> outputs(plain.size());
    for (size_t n = 0; n < plain.size(); ++n) {
      outputs[n] = feed_.DecodeAll(caller_, plain[n], {kDraftFirst, static_cast<int64_t>(n)});
    }
    for (size_t i = 0; i < drafted.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      EXPECT_EQ(RowTokens(trial.output(), row, drafts[i].count), outputs[static_cast<size_t>(drafts[i].count)]);
      EXPECT_EQ(trial.token_counts(static_cast<int>(i)), kPrompt.count + offset) << "counts move with the verdict";
    }
    ASSERT_REPLY(const auto verdict, caller_.Accept(AcceptOf(drafted, accepted)));
    ASSERT_EQ(verdict.counts_size(), static_cast<int>(drafted.size()));
    std::vector<std::string> states;
    for (const std::string& id : plain) states.push_back(caller_.State(id));
    for (size_t i = 0; i < drafted.size(); ++i) {
      const v1::SessionTokenCounts& counts = verdict.counts(static_cast<int>(i));
      EXPECT_EQ(counts.session(), "sessions/" + drafted[i]);
      EXPECT_EQ(counts.layers(0).token_count(), kPrompt.count + offset + accepted[i]);
      EXPECT_EQ(counts.layers(0).draft_length(), 0);
      EXPECT_EQ(caller_.State(drafted[i]), states[static_cast<size_t>(accepted[i])]) << drafted[i];
    }
    // The next steps are of other tokens.
    std::vector<std::string> all = drafted;
    all.insert(all.end(), plain.begin(), plain.end());
    for (int64_t step = 0; step < 3; ++step) {
      const TokenRange next = {kOtherFirst + 6 * step, 6};
      ASSERT_REPLY(const auto reply, caller_.Decode(feed_.Decode(all, next)));
      for (size_t i = 0; i < drafted.size(); ++i) {
        const auto same = static_cast<int64_t>(drafted.size()) + accepted[i];
        EXPECT_EQ(RowBytes(reply.output(), static_cast<int64_t>(i)), RowBytes(reply.output(), same))
            << drafted[i] << " step " << step;
      }
    }
    states.clear();
    for (const std::string& id : plain) states.push_back(caller_.State(id));
    for (size_t i = 0; i < drafted.size(); ++i) {
      EXPECT_EQ(caller_.State(drafted[i]), states[static_cast<size_t>(accepted[i])]) << drafted[i];
    }
    for (const std::string& id : all) ASSERT_TRUE(caller_.Delete(id).ok());
    if (HasFailure()) return;
  }
}

TEST_P(Draft, AfterDraftGoesOnOverManyFolds) {
  Feed("draft", 3);
  Feed("plain", 3);
  int64_t token = kDraftFirst;
  for (int round = 0; round < 12; ++round) {
    const int tokens = 1 + round % kMaxDraft;
    const int accepted = (round * 5) % (tokens + 1);
    ASSERT_REPLY(const auto trial, caller_.Decode(feed_.Draft({"draft"}, {TokenRange{token, tokens}})));
    ASSERT_TRUE(caller_.Accept("draft", accepted).ok());
    EXPECT_EQ(RowTokens(trial.output(), 0, accepted), feed_.DecodeAll(caller_, "plain", {token, accepted}));
    EXPECT_EQ(caller_.State("draft"), caller_.State("plain")) << "round " << round;
    token += accepted;
  }
  const TokenRange prompt = {200, 40};
  EXPECT_EQ(caller_.Prefill(feed_.Prefill("draft", prompt)).reply.output().data(),
            caller_.Prefill(feed_.Prefill("plain", prompt)).reply.output().data());
  EXPECT_EQ(caller_.State("draft"), caller_.State("plain"));
}

TEST_P(Draft, OfEveryLayerIsAcceptedInOneCallAndLayersWithoutOneStay) {
  Feed("draft", 14, 0);
  Feed("draft", 2, 1);
  Feed("plain", 14, 0);
  Feed("plain", 2, 1);
  for (const int layer : {0, 1}) {
    ASSERT_TRUE(caller_.Decode(feed_.Draft({"draft"}, {TokenRange{kDraftFirst, 5}}, layer)).ok());
    feed_.DecodeAll(caller_, "plain", {kDraftFirst, 4}, layer);
  }
  ASSERT_TRUE(caller_.Accept("draft", 4).ok());
  EXPECT_EQ(caller_.State("draft"), caller_.State("plain"));

  ASSERT_TRUE(caller_.Decode(feed_.Draft({"draft"}, {TokenRange{80, 2}}, 1)).ok());
  feed_.DecodeAll(caller_, "plain", {80, 1}, 1);
  ASSERT_TRUE(caller_.Accept("draft", 1).ok());
  EXPECT_EQ(caller_.State("draft"), caller_.State("plain"));
}

TEST_P(Draft, OfDifferentLengthsInTwoLayersIsHeldToTheShorter) {
  Feed("draft", 1, 0);
  Feed("draft", 1, 1);
  ASSERT_TRUE(caller_.Decode(feed_.Draft({"draft"}, {TokenRange{kDraftFirst, 2}}, 0)).ok());
  ASSERT_TRUE(caller_.Decode(feed_.Draft({"draft"}, {TokenRange{kDraftFirst, 6}}, 1)).ok());
  const std::string state = caller_.State("draft");
  EXPECT_TRUE(RefusedAs(caller_.Accept("draft", 3), "TOO_MANY_TOKENS", {{"expected", "2"}}));
  EXPECT_EQ(caller_.State("draft"), state);
  EXPECT_TRUE(caller_.Accept("draft", 2).ok());
}

TEST_P(Draft, PendingRefusesOtherStepsOfItsLayerOnly) {
  Feed("a", 2);
  ASSERT_TRUE(caller_.Decode(feed_.Draft({"a"}, {TokenRange{kDraftFirst, 3}})).ok());
  const std::string state = caller_.State("a");
  const auto check = [](const auto& refused) {
    EXPECT_TRUE(RefusedAs(refused, "DRAFT_PENDING", {{"draft_length", "3"}, {"session", "sessions/a"}}));
  };
  check(caller_.Decode(feed_.Decode({"a"}, TokenRange{kDraftFirst, 1})));
  check(caller_.Decode(feed_.Draft({"a"}, {TokenRange{kDraftFirst, 1}})));
  check(caller_.Prefill(feed_.Prefill("a", kPrompt)));
  EXPECT_EQ(caller_.State("a"), state);
  EXPECT_TRUE(caller_.Decode(feed_.Decode({"a"}, TokenRange{kDraftFirst, 1}, /*layer=*/1)).ok());
  ASSERT_TRUE(caller_.Accept("a", 0).ok());
  EXPECT_TRUE(caller_.Decode(feed_.Decode({"a"}, TokenRange{kDraftFirst, 1})).ok());
}

TEST_P(Draft, ABadVerdictRefusesAllRowsUnlessTheyMayFail) {
  for (const char* id : {"a", "b", "none"}) Feed(id, 2);
  ASSERT_TRUE(caller_.Decode(feed_.Draft({"a", "b"}, {{kDraftFirst, 3}, {kDraftFirst, 5}})).ok());
  const std::string a = caller_.State("a"), b = caller_.State("b");
  v1::AcceptTokensRequest request = AcceptOf({"a", "b", "none", "unknown"}, {2, 6, 1, 0});
  const auto refused = caller_.Accept(request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::NOT_FOUND) << refused.status.error_message();
  EXPECT_EQ(caller_.Accept(AcceptOf({"a", "b"}, {2, 6})).reason(), "TOO_MANY_TOKENS");
  EXPECT_EQ(caller_.Accept(AcceptOf({"a", "none"}, {2, 1})).reason(), "TOO_MANY_TOKENS");
  EXPECT_EQ(caller_.State("a"), a);
  EXPECT_EQ(caller_.State("b"), b);

  request.set_partial_ok(true);
  ASSERT_REPLY(const auto rows, caller_.Accept(request));
  ASSERT_EQ(rows.row_statuses_size(), 4);
  EXPECT_EQ(rows.row_statuses(0).code(), 0);
  EXPECT_EQ(ErrorInfoOf(rows.row_statuses(1)).reason(), "TOO_MANY_TOKENS");
  EXPECT_EQ(ErrorInfoOf(rows.row_statuses(2)).reason(), "TOO_MANY_TOKENS");
  EXPECT_EQ(ErrorInfoOf(rows.row_statuses(3)).reason(), "SESSION_NOT_FOUND");
  EXPECT_EQ(rows.counts(0).layers(0).token_count(), kPrompt.count + 4);
  EXPECT_EQ(rows.counts(1).layers_size(), 0);
  Feed("plain", 2);
  feed_.DecodeAll(caller_, "plain", {kDraftFirst, 2});
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
  EXPECT_EQ(caller_.State("b"), b);
}

TEST_P(Draft, RetriesGiveTheSameBytesAndMoveTheStateOnce) {
  Feed("a", 2);
  Feed("plain", 2);
  v1::DecodeRequest draft = WithId(feed_.Draft({"a"}, {TokenRange{kDraftFirst, 4}}), "d");
  ASSERT_REPLY(const auto first, caller_.Decode(draft));
  EXPECT_EQ(caller_.Decode(draft).reply.SerializeAsString(), first.SerializeAsString());
  v1::DecodeRequest plain = draft;
  plain.set_draft(false);
  EXPECT_EQ(caller_.Decode(plain).reason(), "REQUEST_ID_REUSED") << "a draft is another payload";

  v1::AcceptTokensRequest verdict = WithId(AcceptOf({"a"}, {3}), "v");
  ASSERT_REPLY(const auto accepted, caller_.Accept(verdict));
  feed_.DecodeAll(caller_, "plain", {kDraftFirst, 3});
  for (int i = 0; i < 2; ++i) {
    ASSERT_REPLY(const auto again, caller_.Accept(verdict));
    EXPECT_EQ(again.SerializeAsString(), accepted.SerializeAsString());
    EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
  }
  EXPECT_EQ(caller_.Decode(draft).reply.output().data(), first.output().data()) << "still the last reply";
  v1::AcceptTokensRequest other = WithId(AcceptOf({"a"}, {2}), "v");
  EXPECT_EQ(caller_.Accept(other).reason(), "REQUEST_ID_REUSED");
  EXPECT_EQ(caller_.Accept("a", 1).reason(), "TOO_MANY_TOKENS") << "without an id it is a new call";
  EXPECT_TRUE(caller_.Accept("a", 0).ok()) << "there is nothing to drop";
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));

  // A late retry does not decide about a later draft.
  ASSERT_TRUE(caller_.Decode(feed_.Draft({"a"}, {TokenRange{80, 4}})).ok());
  ASSERT_TRUE(caller_.Accept(verdict).ok());
  EXPECT_EQ(caller_.Get("a").reply.layers(0).draft_length(), 4);
}

TEST_P(Draft, PendingTravelsThroughExportAndImport) {
  for (const int64_t offset : {0, 9, 15}) {
    const std::string id = "a" + std::to_string(offset), copy = "copy" + std::to_string(offset);
    Feed(id, offset);
    ASSERT_TRUE(caller_.Decode(feed_.Draft({id}, {TokenRange{kDraftFirst, kMaxDraft}})).ok());
    ASSERT_REPLY(const auto file, caller_.Export(id));
    v1::ImportStateRequest::Target target;
    target.set_session_id(copy);
    const v1::CreateSessionRequest creation = feed_.Creation(copy);
    if (creation.has_model()) {
      target.set_model(creation.model());
    } else {
      *target.mutable_operator_() = creation.operator_();
    }
    ASSERT_REPLY(const auto imported, caller_.Import(target, file));
    EXPECT_EQ(imported.layers(0).draft_length(), kMaxDraft);
    EXPECT_EQ(caller_.State(copy), caller_.State(id));
    ASSERT_TRUE(caller_.Accept(AcceptOf({id, copy}, {5, 5})).ok());
    EXPECT_EQ(caller_.State(copy), caller_.State(id));
    const std::string plain = "plain" + std::to_string(offset);
    Feed(plain, offset);
    feed_.DecodeAll(caller_, plain, {kDraftFirst, 5});
    EXPECT_EQ(caller_.State(copy), caller_.State(plain));
  }
}

TEST_P(Draft, PendingSurvivesTheHostTier) {
  const int64_t bytes = caller_.Create(feed_.Creation("probe")).reply.state_bytes();
  TestServer small({.models = TokenFeed::Models(),
                    .memory = {.device_state_bytes = bytes + bytes / 2, .host_state_bytes = 20 * bytes}});
  const Caller caller(small);
  for (const std::string id : {"a", "b"}) {
    feed_.Start(caller, id, kPrompt);
    ASSERT_TRUE(caller.Decode(feed_.Draft({id}, {TokenRange{kDraftFirst, 6}})).ok());
  }
  EXPECT_EQ(caller.Get("a").reply.tier(), v1::STATE_TIER_HOST);
  Feed("plain", 0);
  feed_.DecodeAll(caller_, "plain", {kDraftFirst, 3});
  ASSERT_TRUE(caller.Accept("a", 3).ok());
  EXPECT_EQ(caller.Get("a").reply.tier(), v1::STATE_TIER_DEVICE);
  ASSERT_TRUE(caller.Accept("b", 3).ok());
  for (const char* id : {"a", "b"}) EXPECT_EQ(caller.State(id), caller_.State("plain"));
}

TEST_P(Draft, OverALogThatIsFullIsRefusedBeforeAnythingMovesWhereItIsTooLong) {
  Feed("a", 15);
  const std::string state = caller_.State("a");
  EXPECT_EQ(caller_.Decode(feed_.Draft({"a"}, {TokenRange{kDraftFirst, kMaxDraft + 1}})).reason(), "TOO_MANY_TOKENS");
  EXPECT_EQ(caller_.State("a"), state);
}

}  // namespace
}  // namespace gdn::draft_test
