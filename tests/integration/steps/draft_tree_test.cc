// Drafts that are trees, through the API: each token answers as the end of its chain, an accepted path leaves what
// plain decodes of it leave, and the tree goes wherever its session goes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/temp_folder.h"

namespace gdn::draft_tree_test {
namespace {

constexpr TokenRange kPrompt = {0, 4};
constexpr int64_t kDraftFirst = 40;
constexpr int64_t kOtherFirst = 100;
const std::vector<int> kParents = {-1, 0, 0, 1, 1, 2, -1, 6};

std::vector<int> PathTo(const std::vector<int>& parents, int token) {
  std::vector<int> path;
  for (; token >= 0; token = parents[static_cast<size_t>(token)]) path.insert(path.begin(), token);
  return path;
}

// Returns a request that accepts a path of each session.
v1::AcceptTokensRequest AcceptPaths(const std::vector<std::string>& ids, const std::vector<std::vector<int>>& paths) {
  v1::AcceptTokensRequest request = AcceptOf(ids, std::vector<int>(ids.size(), 0));
  for (size_t i = 0; i < ids.size(); ++i) {
    request.mutable_acceptances(static_cast<int>(i))->mutable_path()->Add(paths[i].begin(), paths[i].end());
  }
  return request;
}

class DraftTree : public ::testing::TestWithParam<const char*> {
 protected:
  void Feed(const Caller& caller, const std::string& id, int64_t decoded) { feed_.Start(caller, id, kPrompt, decoded); }
  void Feed(const std::string& id, int64_t decoded) { Feed(caller_, id, decoded); }

  // The sessions take one tree; no parents: a chain.
  v1::DecodeRequest Tree(const std::vector<std::string>& ids, const std::vector<int>& parents = kParents,
                         int layer = 0) const {
    const TokenRange range = {kDraftFirst, static_cast<int64_t>(parents.size())};
    v1::DecodeRequest request = feed_.Draft(ids, std::vector<TokenRange>(ids.size(), range), layer);
    request.mutable_draft_parents()->Add(parents.begin(), parents.end());
    return request;
  }
  // Plain decodes of a path's tokens; their outputs.
  std::string DecodePath(const Caller& caller, const std::string& id, const std::vector<int>& path, int layer = 0) {
    std::string outputs;
    for (const int token : path) outputs += feed_.DecodeAll(caller, id, {kDraftFirst + token, 1}, layer);
    return outputs;
  }
  // The session's draft of kParents is accepted by `path`, and it is then as one that has decoded that plainly.
  void ExpectAccepts(const Caller& caller, const std::string& id, int64_t decoded, const std::vector<int>& path) {
    const std::string plain = "plain-" + id;
    Feed(caller, plain, decoded);
    DecodePath(caller, plain, path);
    ASSERT_REPLY(const auto verdict, caller.Accept(AcceptPaths({id}, {path})));
    EXPECT_EQ(verdict.counts(0).layers(0).draft_length(), 0);
    EXPECT_EQ(verdict.counts(0).layers(0).draft_parents_size(), 0);
    EXPECT_EQ(caller.State(id), caller.State(plain));
  }

  TestServer server_{{.models = TokenFeed::Models()}};
  const Caller caller_{server_};
  const TokenFeed feed_ = std::string(GetParam()) == "model" ? TokenFeed::Model() : TokenFeed::Operator(2);
};

INSTANTIATE_TEST_SUITE_P(Kinds, DraftTree, ::testing::Values("operator", "model"),
                         [](const auto& kind) { return std::string(kind.param); });

// All in one batch: a tree a row, and chains among them.
TEST_P(DraftTree, EveryPathIsAcceptedAsIfItHadBeenDecodedPlainly) {
  for (const int64_t offset : {0, 3, 11, 13, 15}) {
    SCOPED_TRACE("offset " + std::to_string(offset));
    std::vector<std::string> drafted;
    std::vector<std::vector<int>> paths;
    for (int token = -1; token < static_cast<int>(kParents.size()); ++token) {
      drafted.push_back("tree" + std::to_string(token + 1));
      paths.push_back(PathTo(kParents, token));
      Feed(drafted.back(), offset);
    }
    drafted.push_back("chain");
    paths.push_back({0, 1, 2});
    Feed("chain", offset);
    v1::DecodeRequest request = Tree(drafted);
    request.clear_draft_parents();
    for (size_t row = 0; row < drafted.size(); ++row) {
      for (int token = 0; token < static_cast<int>(kParents.size()); ++token) {
        request.add_draft_parents(drafted[row] == "chain" ? token - 1 : kParents[static_cast<size_t>(token)]);
      }
    }
    ASSERT_REPLY(const auto trial, caller_.Decode(request));
    ASSERT_REPLY(const auto pending, caller_.Get("tree0"));
    EXPECT_TRUE(std::ranges::equal(pending.layers(0).draft_parents(), kParents));
    ASSERT_REPLY(const auto chained, caller_.Get("chain"));
    EXPECT_EQ(chained.layers(0).draft_parents_size(), 0) << "a chain with parents is a chain";
    ASSERT_REPLY(const auto verdict, caller_.Accept(AcceptPaths(drafted, paths)));
    for (size_t i = 0; i < drafted.size(); ++i) {
      SCOPED_TRACE(drafted[i]);
      const std::string plain = "plain" + std::to_string(i);
      Feed(plain, offset);
      const std::string outputs = DecodePath(caller_, plain, paths[i]);
      const std::string row = RowBytes(trial.output(), static_cast<int64_t>(i));
      const size_t bytes = row.size() / kParents.size();
      std::string of_path;
      for (const int token : paths[i]) of_path += row.substr(static_cast<size_t>(token) * bytes, bytes);
      EXPECT_EQ(of_path, outputs);
      EXPECT_EQ(verdict.counts(static_cast<int>(i)).layers(0).token_count(),
                kPrompt.count + offset + static_cast<int64_t>(paths[i].size()));
      EXPECT_EQ(caller_.State(drafted[i]), caller_.State(plain));
      EXPECT_EQ(feed_.DecodeAll(caller_, drafted[i], {kOtherFirst, 3}),
                feed_.DecodeAll(caller_, plain, {kOtherFirst, 3}));
      EXPECT_EQ(caller_.State(drafted[i]), caller_.State(plain));
      ASSERT_TRUE(caller_.Delete(drafted[i]).ok());
      ASSERT_TRUE(caller_.Delete(plain).ok());
    }
    if (HasFailure()) return;
  }
}

TEST_P(DraftTree, AWrongPathWouldBeSeen) {
  Feed("a", 5);
  Feed("b", 5);
  ASSERT_TRUE(caller_.Decode(Tree({"a", "b"})).ok());
  ASSERT_TRUE(caller_.Accept(AcceptPaths({"a", "b"}, {{0, 1}, {0, 2}})).ok());
  EXPECT_NE(caller_.State("a"), caller_.State("b"));
}

TEST_P(DraftTree, RetriesGiveTheSameBytesAndMoveTheStateOnce) {
  Feed("a", 14);
  Feed("plain", 14);
  const v1::DecodeRequest draft = WithId(Tree({"a"}), "d");
  ASSERT_REPLY(const auto first, caller_.Decode(draft));
  EXPECT_EQ(caller_.Decode(draft).reply.SerializeAsString(), first.SerializeAsString());
  v1::DecodeRequest other = draft;
  other.set_draft_parents(2, 1);
  EXPECT_EQ(caller_.Decode(other).reason(), "REQUEST_ID_REUSED") << "another tree is another payload";
  other.clear_draft_parents();
  EXPECT_EQ(caller_.Decode(other).reason(), "REQUEST_ID_REUSED") << "and so is a chain";

  const v1::AcceptTokensRequest verdict = WithId(AcceptPaths({"a"}, {{0, 2, 5}}), "v");
  ASSERT_REPLY(const auto accepted, caller_.Accept(verdict));
  DecodePath(caller_, "plain", {0, 2, 5});
  for (int i = 0; i < 2; ++i) {
    ASSERT_REPLY(const auto again, caller_.Accept(verdict));
    EXPECT_EQ(again.SerializeAsString(), accepted.SerializeAsString());
    EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
  }
  EXPECT_EQ(caller_.Accept(WithId(AcceptPaths({"a"}, {{0, 1, 3}}), "v")).reason(), "REQUEST_ID_REUSED");
  EXPECT_EQ(caller_.Accept(WithId(AcceptOf({"a"}, {3}), "v")).reason(), "REQUEST_ID_REUSED");
}

TEST_P(DraftTree, WhatIsNoTreeOrNoPathIsRefusedBeforeAnythingMoves) {
  Feed("a", 3);
  Feed("b", 3);
  const auto refused = [&](const std::vector<int>& parents, bool draft = true) {
    v1::DecodeRequest request = feed_.Draft({"a", "b"}, {{kDraftFirst, 4}, {kDraftFirst, 3}});
    request.set_draft(draft);
    request.mutable_draft_parents()->Add(parents.begin(), parents.end());
    return caller_.Decode(request);
  };
  const std::string before = caller_.State("a");
  EXPECT_TRUE(RefusedAs(refused({-1, 0, 2, 1}), "VALUE_OUT_OF_RANGE",
                        {{"field", "draft_parents"}, {"index", "2"}, {"found", "2"}, {"expected", "-1 .. 1"}}));
  EXPECT_TRUE(RefusedAs(refused({-1, 0, 1, 1, -1, -2, 0, 0}), "VALUE_OUT_OF_RANGE", {{"index", "5"}}));
  EXPECT_TRUE(RefusedAs(refused({-1, 0, 1}), "INVALID_LENGTHS", {{"field", "draft_parents"}}));
  EXPECT_TRUE(RefusedAs(refused({-1, 0, 1, 1}, /*draft=*/false), "INVALID_LENGTHS", {{"field", "draft_parents"}}));
  EXPECT_EQ(caller_.State("a"), before);
  std::vector<int> nine(9, -1);
  EXPECT_EQ(caller_.Decode(Tree({"a"}, nine)).reason(), "TOO_MANY_TOKENS");
  // Beyond a row's length nobody looks.
  ASSERT_TRUE(refused({-1, 0, 0, 1, -1, 0, 0, 99}).ok());

  const auto accept = [&](const std::vector<int>& path) { return caller_.Accept(AcceptPaths({"a"}, {path})); };
  const std::string drafted = caller_.State("a");
  for (const auto& [path, index] : std::vector<std::pair<std::vector<int>, std::string>>{
           {{1}, "0"}, {{0, 3}, "1"}, {{0, 1, 2}, "2"}, {{0, 0}, "1"}, {{0, 4}, "1"}, {{-1}, "0"}}) {
    EXPECT_TRUE(RefusedAs(accept(path), "VALUE_OUT_OF_RANGE",
                          {{"field", "path"}, {"index", index}, {"session", "sessions/a"}, {"layer", "0"}}))
        << ::testing::PrintToString(path);
  }
  EXPECT_EQ(accept({0, 1, 3, 3, 3}).reason(), "TOO_MANY_TOKENS");
  EXPECT_EQ(accept(std::vector<int>(20, 0)).reason(), "TOO_MANY_TOKENS");
  EXPECT_EQ(caller_.Accept("a", 3).reason(), "VALUE_OUT_OF_RANGE") << "the first three are no path";
  v1::AcceptTokensRequest both = AcceptPaths({"a"}, {{0, 2}});
  both.mutable_acceptances(0)->set_accepted_tokens(2);
  EXPECT_TRUE(RefusedAs(caller_.Accept(both), "INVALID_LENGTHS", {{"field", "path"}}));
  EXPECT_EQ(caller_.Decode(feed_.Decode({"a"}, TokenRange{kDraftFirst, 1})).reason(), "DRAFT_PENDING");
  EXPECT_EQ(caller_.State("a"), drafted);
  ASSERT_TRUE(caller_.Accept("a", 2).ok()) << "the first two are";
  ASSERT_TRUE(caller_.Accept("b", 0).ok());
  Feed("plain", 3);
  DecodePath(caller_, "plain", {0, 1});
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
}

TEST_P(DraftTree, AChainTakesAPathThatIsItsBeginning) {
  Feed("a", 2);
  Feed("plain", 2);
  ASSERT_TRUE(caller_.Decode(feed_.Draft({"a"}, {TokenRange{kDraftFirst, 5}})).ok());
  EXPECT_EQ(caller_.Accept(AcceptPaths({"a"}, {{0, 2}})).reason(), "VALUE_OUT_OF_RANGE");
  ASSERT_TRUE(caller_.Accept(AcceptPaths({"a"}, {{0, 1, 2}})).ok());
  DecodePath(caller_, "plain", {0, 1, 2});
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
}

TEST_P(DraftTree, OfEveryLayerIsAcceptedByOnePath) {
  Feed("a", 0);
  Feed("plain", 0);
  for (const int layer : {0, 1}) {
    ASSERT_TRUE(caller_.Decode(Tree({"a"}, kParents, layer)).ok());
    DecodePath(caller_, "plain", {0, 1, 4}, layer);
  }
  ASSERT_TRUE(caller_.Accept(AcceptPaths({"a"}, {{0, 1, 4}})).ok());
  EXPECT_EQ(caller_.State("a"), caller_.State("plain"));
}

TEST_P(DraftTree, PendingTravelsThroughExportAndImportAndForks) {
  for (const int64_t offset : {0, 9, 15}) {
    const std::string id = "a" + std::to_string(offset), copy = "copy" + std::to_string(offset);
    const std::string child = "child" + std::to_string(offset);
    Feed(id, offset);
    ASSERT_TRUE(caller_.Decode(Tree({id})).ok());
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
    EXPECT_TRUE(std::ranges::equal(imported.layers(0).draft_parents(), kParents));
    ASSERT_TRUE(caller_.Fork(ForkOf(id, {child})).ok());
    EXPECT_EQ(caller_.Accept(AcceptPaths({copy}, {{0, 3}})).reason(), "VALUE_OUT_OF_RANGE");
    ExpectAccepts(caller_, copy, offset, {0, 2, 5});
    ExpectAccepts(caller_, child, offset, {6, 7});
    ExpectAccepts(caller_, id, offset, {0, 1, 4});
  }
}

TEST_P(DraftTree, PendingSurvivesTheHostTier) {
  const int64_t bytes = caller_.Create(feed_.Creation("probe")).reply.state_bytes();
  TestServer small({.models = TokenFeed::Models(),
                    .memory = {.device_state_bytes = bytes + bytes / 2, .host_state_bytes = 20 * bytes}});
  const Caller caller(small);
  for (const std::string id : {"a", "b"}) {
    Feed(caller, id, 12);
    ASSERT_TRUE(caller.Decode(Tree({id})).ok());
  }
  EXPECT_EQ(caller.Get("a").reply.tier(), v1::STATE_TIER_HOST);
  ExpectAccepts(caller, "a", 12, {0, 2, 5});
  ExpectAccepts(caller, "b", 12, {6, 7});
}

TEST_P(DraftTree, PendingAndItsAcceptanceSurviveARestart) {
  const TempFolder folder;
  const GdnServerOptions options{.models = TokenFeed::Models(), .states = {.disk = {.directory = folder.path()}}};
  const v1::AcceptTokensRequest verdict = WithId(AcceptPaths({"b"}, {{0, 2, 5}}), "v");
  {
    TestServer server(options);
    const Caller caller(server);
    for (const std::string id : {"a", "b"}) {
      Feed(caller, id, 14);
      ASSERT_TRUE(caller.Decode(Tree({id})).ok());
    }
    ASSERT_TRUE(caller.Accept(verdict).ok());
    EXPECT_TRUE(server.Drain());
  }
  TestServer server(options);
  const Caller caller(server);
  ASSERT_REPLY(const auto pending, caller.Get("a"));
  EXPECT_TRUE(std::ranges::equal(pending.layers(0).draft_parents(), kParents));
  const std::string state = caller.State("b");
  ASSERT_TRUE(caller.Accept(verdict).ok());
  EXPECT_EQ(caller.State("b"), state);
  EXPECT_EQ(caller.Accept(WithId(AcceptPaths({"b"}, {{0, 1, 4}}), "v")).reason(), "REQUEST_ID_REUSED");
  ExpectAccepts(caller, "a", 14, {0, 1, 4});
}

}  // namespace
}  // namespace gdn::draft_tree_test
