// Every allocation of a call fails in turn: memory of the host and of the device, streams and events, and on the host
// executor kernels' code. So does every operation of a launch. Afterwards the sessions and all that they answer later
// are those of a twin that nothing happened to, or a session says that it is lost.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/integration/support/failure_in_turn.h"

namespace gdn::acquisition_failure_test {
namespace {

v1::AcceptTokensRequest AcceptPath(const std::vector<std::string>& ids, const std::vector<int>& path) {
  v1::AcceptTokensRequest request = AcceptOf(ids, std::vector<int>(ids.size(), 0));
  for (v1::DraftAcceptance& acceptance : *request.mutable_acceptances()) {
    acceptance.mutable_path()->Add(path.begin(), path.end());
  }
  return request;
}

INSTANTIATE_TEST_SUITE_P(On, FailureInTurn, testing::ValuesIn(WithOneGpu({"cpu"})),
                         [](const auto& backend) { return backend.param; });

// Both kinds of feed: a step of hidden states has projections, one of a bare operator normalises and scales.
class Feeds {
 public:
  const TokenFeed& of(const std::string& name) const { return name == "model" ? model_ : operator_; }

 private:
  const TokenFeed model_ = TokenFeed::Model();
  const TokenFeed operator_ = TokenFeed::Operator(2);
};

TEST_P(FailureInTurn, OfStepsLeavesWhatWasThereOrATwinsState) {
  const Feeds feeds;
  for (const char* kind : {"operator", "model"}) {
    const TokenFeed& feed = feeds.of(kind);
    const auto started = [&feed](int64_t decoded) {
      return [&feed, decoded](const Caller& caller) { feed.Start(caller, "a", {0, 4}, decoded); };
    };
    const auto created = [&feed](const Caller& caller) { ASSERT_TRUE(feed.Create(caller, "a").ok()); };
    const auto prefill = [&feed](TokenRange range) {
      return [&feed, range](const Caller& caller) {
        return ResultOf(caller.Prefill(WithId(feed.Prefill("a", range), "call")));
      };
    };
    const auto decode = [&feed](const std::string& id, TokenRange range) {
      return [&feed, id, range](const Caller& caller) {
        return ResultOf(caller.Decode(WithId(feed.Decode({id}, range), "call")));
      };
    };
    // "b" is a fork of "a", which has decoded so many tokens behind its prompt of 4, and has itself decoded some more.
    const auto forked = [&feed](int64_t decoded, int64_t own) {
      return [&feed, decoded, own](const Caller& caller) {
        feed.Start(caller, "a", {0, 4}, decoded);
        ASSERT_TRUE(caller.Fork("a", {"b"}).ok());
        feed.DecodeAll(caller, "b", {4 + decoded, own});
      };
    };
    const std::string of = std::string(" of the ") + kind;
    FailEach({"first prefill" + of, created, prefill({0, 40}), {{"a", 40, &feed}}});
    FailEach({"short first prefill" + of, created, prefill({0, 5}), {{"a", 5, &feed}}});
    FailEach({"prefill behind decodes" + of, started(3), prefill({7, 40}), {{"a", 47, &feed}}});
    FailEach({"first decode" + of, created, decode("a", {0, 1}), {{"a", 1, &feed}}});
    FailEach({"decode" + of, started(3), decode("a", {7, 1}), {{"a", 8, &feed}}});
    FailEach({"decode that folds" + of, started(15), decode("a", {19, 1}), {{"a", 20, &feed}}});
    FailEach({"decode that folds midway" + of, started(14), decode("a", {18, 4}), {{"a", 22, &feed}}});
    FailEach({"decode of a fork" + of, forked(3, 0), decode("b", {7, 1}), {{"b", 8, &feed}, {"a", 7, &feed}}});
    FailEach({"fold of a fork" + of, forked(15, 0), decode("b", {19, 1}), {{"b", 20, &feed}, {"a", 19, &feed}}});
    FailEach({"fold midway of a fork with a slot" + of,
              forked(12, 2),
              decode("b", {18, 4}),
              {{"b", 22, &feed}, {"a", 16, &feed}}});
    FailEach(
        {"fold of a fork with a slot" + of, forked(12, 3), decode("b", {19, 1}), {{"b", 20, &feed}, {"a", 16, &feed}}});
    if (HasFatalFailure()) return;
  }
  Report("steps");
}

TEST_P(FailureInTurn, OfOperationsWithoutADurableTierLosesWhatCannotBeRepeated) {
  TestEveryPoint();
  const TokenFeed feed = TokenFeed::Operator(2);
  FailEach({"decode that folds",
            [&feed](const Caller& caller) {
              feed.Start(caller, "a", {0, 4}, 15);
            },
            [&feed](const Caller& caller) {
              return ResultOf(caller.Decode(WithId(feed.Decode({"a"}, TokenRange{19, 1}), "call")));
            },
            {{"a", 20, &feed}}},
           {Failures::kOperation, Failures::kOperationsFrom});
  EXPECT_GT(lost_, 0) << "what comes behind a fold fails too";
  Report("operations");
}

TEST_P(FailureInTurn, OfBatchesLeavesEachRowAsItWasOrATwins) {
  const Feeds feeds;
  for (const char* kind : {"operator", "model"}) {
    const TokenFeed& feed = feeds.of(kind);
    FailEach({std::string("batch of rows that fold and do not, of the ") + kind,
              [&feed](const Caller& caller) {
                feed.Start(caller, "a", {0, 4}, 15);
                feed.Start(caller, "b", {0, 4}, 3);
                ASSERT_TRUE(feed.Create(caller, "c").ok());
                feed.Start(caller, "d", {0, 4}, 14);
              },
              [&feed](const Caller& caller) {
                return ResultOf(caller.Decode(
                    WithId(feed.Decode({"a", "b", "c", "d"}, {{19, 1}, {7, 1}, {0, 1}, {18, 3}}), "call")));
              },
              {{"a", 20, &feed}, {"b", 8, &feed}, {"c", 1, &feed}, {"d", 21, &feed}}});
    if (HasFatalFailure()) return;
  }
  // So much that a device sends it back beside its operators.
  const TokenFeed wide = TokenFeed::WideOperator();
  const std::vector<std::string> ids = SessionIds(9);
  std::vector<Examined> examined;
  for (const std::string& id : ids) examined.push_back({id, 17, &wide});
  FailEach({"wide batch that folds",
            [&](const Caller& caller) {
              for (const std::string& id : ids) ASSERT_TRUE(wide.Create(caller, id).ok());
              for (int64_t token = 0; token < 15; token += 5) {
                ASSERT_TRUE(caller.Decode(wide.Decode(ids, TokenRange{token, 5})).ok());
              }
            },
            [&](const Caller& caller) {
              return ResultOf(caller.Decode(WithId(wide.Decode(ids, TokenRange{15, 2}), "call")));
            },
            examined});
  Report("batches");
}

TEST_P(FailureInTurn, OfDraftsAndTheirAcceptanceLeavesWhatWasThereOrATwinsState) {
  const Feeds feeds;
  const std::vector<int> parents = {-1, 0, 0, 1, 1, 2, -1, 6};
  for (const char* kind : {"operator", "model"}) {
    const TokenFeed& feed = feeds.of(kind);
    const auto draft = [&feed](const std::vector<std::string>& ids, int64_t first, int64_t tokens, int layer = 0) {
      return feed.Draft(ids, std::vector<TokenRange>(ids.size(), {first, tokens}), layer);
    };
    const auto tree = [&](const std::vector<std::string>& ids, int64_t first) {
      v1::DecodeRequest request = draft(ids, first, static_cast<int64_t>(parents.size()));
      request.mutable_draft_parents()->Add(parents.begin(), parents.end());
      return request;
    };
    const auto drops = [](const Caller& caller, Result result) {  // so that later tokens can be decoded
      if (result.status.ok()) {
        EXPECT_TRUE(caller.Accept("a", 0).ok());
      }
      return result;
    };
    const std::string of = std::string(" of the ") + kind;
    for (const int64_t decoded : {3, 14}) {
      const std::string at = " at " + std::to_string(decoded) + of;
      const int64_t first = 4 + decoded;
      const auto started = [&feed, decoded](const Caller& caller) { feed.Start(caller, "a", {0, 4}, decoded); };
      FailEach({"draft" + at,
                started,
                [&](const Caller& caller) { return ResultOf(caller.Decode(WithId(draft({"a"}, first, 4), "call"))); },
                {}});
      FailEach({"tree" + at,
                started,
                [&](const Caller& caller) { return ResultOf(caller.Decode(WithId(tree({"a"}, first), "call"))); },
                {}});
      FailEach({"dropped draft" + at,
                started,
                [&](const Caller& caller) {
                  return drops(caller, ResultOf(caller.Decode(WithId(draft({"a"}, first, 4), "call"))));
                },
                {{"a", first, &feed}}});
      FailEach({"acceptance" + at,
                [&](const Caller& caller) {
                  started(caller);
                  ASSERT_TRUE(caller.Decode(draft({"a"}, first, 4)).ok());
                },
                [&](const Caller& caller) { return ResultOf(caller.Accept(WithId(AcceptOf({"a"}, {3}), "call"))); },
                {{"a", first + 3, &feed}}});
      FailEach({"accepted path" + at,
                [&](const Caller& caller) {
                  started(caller);
                  ASSERT_TRUE(caller.Decode(tree({"a"}, first)).ok());
                },
                [&](const Caller& caller) {
                  return ResultOf(caller.Accept(WithId(AcceptPath({"a"}, {0, 2, 5}), "call")));
                },
                {{"a", first + 8, &feed}}});
      FailEach({"accepted path of a fork" + at,
                [&](const Caller& caller) {
                  started(caller);
                  ASSERT_TRUE(caller.Decode(tree({"a"}, first)).ok());
                  ASSERT_TRUE(caller.Fork("a", {"b"}).ok());
                },
                [&](const Caller& caller) {
                  return ResultOf(caller.Accept(WithId(AcceptPath({"b"}, {0, 2, 5}), "call")));
                },
                {{"b", first + 8, &feed}}});
      if (HasFatalFailure()) return;
    }
  }
  // Three sessions and two pools in one call: the fold or the moves of one pool come behind the other's.
  const TokenFeed& bare = feeds.of("operator");
  const TokenFeed& model = feeds.of("model");
  FailEach({"acceptance in several pools",
            [&](const Caller& caller) {
              bare.Start(caller, "a", {0, 4}, 14);
              bare.Start(caller, "b", {0, 4}, 15);
              model.Start(caller, "c", {0, 4}, 13);
              for (const auto& [feed, id, first] : {std::tuple(&bare, "a", 18), {&bare, "b", 19}, {&model, "c", 17}}) {
                v1::DecodeRequest request = feed->Draft({id}, {{first, static_cast<int64_t>(parents.size())}});
                request.mutable_draft_parents()->Add(parents.begin(), parents.end());
                ASSERT_TRUE(caller.Decode(request).ok());
              }
            },
            [&](const Caller& caller) {
              return ResultOf(caller.Accept(WithId(AcceptPath({"a", "b", "c"}, {0, 2, 5}), "call")));
            },
            {{"a", 40, &bare}, {"b", 40, &bare}, {"c", 40, &model}}});
  FailEach({"acceptance on two layers",
            [&](const Caller& caller) {
              bare.Start(caller, "a", {0, 4}, 14);
              bare.DecodeAll(caller, "a", {0, 15}, /*layer=*/1);
              for (const int layer : {0, 1}) {
                ASSERT_TRUE(caller.Decode(bare.Draft({"a"}, {{20, 4}}, layer)).ok());
              }
            },
            [&](const Caller& caller) { return ResultOf(caller.Accept(WithId(AcceptOf({"a"}, {3}), "call"))); },
            {{"a", 40, &bare}}});
  Report("drafts");
}

// The call of a Step of these rows.
std::function<Result(const Caller&)> StepCall(const TokenFeed& feed, const std::vector<FeedPart>& parts) {
  return [&feed, parts](const Caller& caller) { return ResultOf(caller.Step(WithId(feed.Step(parts), "call"))); };
}

TEST_P(FailureInTurn, OfAStepsRowsLeavesEachAsItWasOrATwins) {
  const Feeds feeds;
  for (const char* kind : {"operator", "model"}) {
    const TokenFeed& feed = feeds.of(kind);
    const std::string of = std::string(" of the ") + kind;
    FailEach({"step of rows of every kind" + of,
              [&feed](const Caller& caller) {
                feed.Start(caller, "a", {0, 4}, 15);
                ASSERT_TRUE(feed.Create(caller, "b").ok());
                for (const char* id : {"c", "d", "f"}) feed.Start(caller, id, {0, 4}, 3);
                ASSERT_TRUE(feed.Create(caller, "e").ok());
              },
              [&feed](const Caller& caller) {
                Result result = StepCall(feed, {{.id = "a", .range = {19, 1}},
                                                {.id = "b", .range = {0, 40}, .kind = v1::STEP_KIND_PREFILL},
                                                {.id = "d", .range = {7, 4}, .kind = v1::STEP_KIND_DRAFT},
                                                {.id = "c", .range = {7, 5}, .kind = v1::STEP_KIND_PREFILL},
                                                {.id = "e", .range = {0, 0}},
                                                {.id = "f", .range = {7, 0}, .kind = v1::STEP_KIND_PREFILL}})(caller);
                if (result.status.ok()) {  // so that later tokens can be decoded
                  EXPECT_TRUE(caller.Accept("d", 0).ok());
                }
                return result;
              },
              {{"a", 20, &feed}, {"b", 40, &feed}, {"c", 12, &feed}, {"e", 0, &feed}, {"f", 7, &feed}}});
    // More prefills behind states of their own than a pool has spare slots, and the first ones of others.
    std::vector<FeedPart> prompts;
    std::vector<Examined> examined;
    for (const std::string& id : SessionIds(12)) {
      const bool is_new = prompts.size() % 2 == 0;
      prompts.push_back({.id = id, .range = {is_new ? 0 : 4, 33}, .kind = v1::STEP_KIND_PREFILL});
      examined.push_back({id, is_new ? 33 : 37, &feed});
    }
    FailEach({"step of many prefills" + of,
              [&](const Caller& caller) {
                for (const FeedPart& part : prompts) {
                  if (part.range.first > 0) {
                    feed.Start(caller, part.id, {0, part.range.first});
                  } else {
                    ASSERT_TRUE(feed.Create(caller, part.id).ok());
                  }
                }
              },
              StepCall(feed, prompts), examined});
    if (HasFatalFailure()) return;
  }
  Report("steps of mixed rows");
}

// A tree of eight tokens, and acceptances of it: by number, by path, of nothing.
const std::vector<int> kTree = {-1, 0, 0, 1, 1, 2, -1, 6};

// A session "a" with a pending draft behind so many decoded tokens.
std::function<void(const Caller&)> Drafted(const TokenFeed& feed, int64_t decoded, const std::vector<int>& parents) {
  return [&feed, decoded, parents](const Caller& caller) {
    feed.Start(caller, "a", {0, 4}, decoded);
    v1::DecodeRequest draft = feed.Draft({"a"}, {{4 + decoded, 8}});
    draft.mutable_draft_parents()->Add(parents.begin(), parents.end());
    ASSERT_TRUE(caller.Decode(draft).ok());
  };
}

TEST_P(FailureInTurn, OfAStepThatAcceptsLeavesWhatWasThereOrATwinsState) {
  const Feeds feeds;
  for (const char* kind : {"operator", "model"}) {
    const TokenFeed& feed = feeds.of(kind);
    const auto a = [](int64_t first, int64_t count, v1::StepKind row) {
      return FeedPart{.id = "a", .range = {first, count}, .kind = row};
    };
    for (const int64_t decoded : {3, 12, 14}) {
      const std::string at = " at " + std::to_string(decoded) + " of the " + kind;
      const int64_t next = 4 + decoded + 8;
      for (const v1::StepKind row : {v1::STEP_KIND_DECODE, v1::STEP_KIND_PREFILL}) {
        const int64_t count = row == v1::STEP_KIND_PREFILL ? 5 : 2;
        const std::string name = v1::StepKind_Name(row) + at;
        FeedPart part = a(next, count, row);
        part.accept = 4;
        FailEach({"first tokens, then " + name,
                  Drafted(feed, decoded, {}),
                  StepCall(feed, {part}),
                  {{"a", next + count, &feed}}});
        part.accept = 0;
        FailEach({"nothing, then " + name,
                  Drafted(feed, decoded, {}),
                  StepCall(feed, {part}),
                  {{"a", next + count, &feed}}});
        part.accept = {};
        part.path = {0, 2, 5};
        FailEach({"path, then " + name,
                  Drafted(feed, decoded, kTree),
                  StepCall(feed, {part}),
                  {{"a", next + count, &feed}}});
        if (HasFatalFailure()) return;
      }
      FeedPart alone = a(next, 0, v1::STEP_KIND_DECODE);
      alone.path = {0, 2, 5};
      FailEach({"path alone" + at, Drafted(feed, decoded, kTree), StepCall(feed, {alone}), {{"a", next, &feed}}});
      FeedPart draft = a(next, 4, v1::STEP_KIND_DRAFT);
      draft.accept = 5;
      FailEach({"first tokens, then another draft" + at,
                Drafted(feed, decoded, {}),
                [&feed, draft](const Caller& caller) {
                  Result result = StepCall(feed, {draft})(caller);
                  if (result.status.ok()) {
                    EXPECT_TRUE(caller.Accept("a", 0).ok());
                  }
                  return result;
                },
                {{"a", next, &feed}}});
      if (HasFatalFailure()) return;
    }
    // "b" is a fork of "a" whose log is in a slot of its own while its base is its parent's. With 6 accepted tokens the
    // log has exactly as many entries as are folded.
    const auto own_slot = [&feed](const Caller& caller) {
      feed.Start(caller, "a", {0, 4}, 8);
      ASSERT_TRUE(caller.Fork("a", {"b"}).ok());
      feed.DecodeAll(caller, "b", {12, 2});
      ASSERT_TRUE(caller.Decode(feed.Draft({"b"}, {{14, 8}})).ok());
    };
    const auto no_slot = [&feed](const Caller& caller) {
      Drafted(feed, 12, kTree)(caller);
      ASSERT_TRUE(caller.Fork("a", {"b"}).ok());
      ASSERT_TRUE(caller.Accept("a", 0).ok());
    };
    for (const v1::StepKind row : {v1::STEP_KIND_DECODE, v1::STEP_KIND_PREFILL}) {
      const std::string name = v1::StepKind_Name(row) + " of the " + kind;
      FeedPart part = {.id = "b", .range = {30, 2}, .kind = row};
      part.accept = 6;
      FailEach({"fold of a fork with a slot, then " + name,
                own_slot,
                StepCall(feed, {part}),
                {{"b", 32, &feed}, {"a", 12, &feed}}});
      part.accept = {};
      part.path = {0, 2, 5};
      FailEach({"path of a fork, then " + name, no_slot, StepCall(feed, {part}), {{"b", 32, &feed}, {"a", 16, &feed}}});
      if (HasFatalFailure()) return;
    }
  }
  Report("accepting steps");
}

// The moves and the fold of an acceptance are in the session's own slot. So all that the row's tokens need is acquired
// before them.
TEST_P(FailureInTurn, OfAStepThatAcceptsLosesNothingForWantOfMemory) {
  const Feeds feeds;
  for (const char* kind : {"operator", "model"}) {
    const TokenFeed& feed = feeds.of(kind);
    for (const int64_t decoded : {3, 14}) {
      for (const v1::StepKind row : {v1::STEP_KIND_DECODE, v1::STEP_KIND_DRAFT}) {
        FeedPart part = {.id = "a", .range = {30, 4}, .kind = row};
        part.path = {0, 2, 5};
        const bool drafts = row == v1::STEP_KIND_DRAFT;
        if (drafts) part.parents = {-1, 0, 0, 1};
        FailEach({v1::StepKind_Name(row) + " behind a path at " + std::to_string(decoded) + " of the " + kind,
                  Drafted(feed, decoded, kTree),
                  [&feed, part, drafts](const Caller& caller) {
                    Result result = StepCall(feed, {part})(caller);
                    if (drafts && result.status.ok()) {
                      EXPECT_TRUE(caller.Accept("a", 0).ok());
                    }
                    return result;
                  },
                  {{"a", 40, &feed}}},
                 {Failures::kAcquisition, Failures::kAcquisitionsFrom});
      }
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(lost_, 0);
  Report("acquisitions of accepting steps");
}

TEST_P(FailureInTurn, OfAStepThatAcceptsLosesOnlyWhatItOverwrote) {
  TestEveryPoint();
  const TokenFeed feed = TokenFeed::Operator(2);
  const std::vector<Failures> operations = {Failures::kOperation, Failures::kOperationsFrom};
  const auto forked = [&feed](const Caller& caller) {
    Drafted(feed, 12, kTree)(caller);
    ASSERT_TRUE(caller.Fork("a", {"b"}).ok());
  };
  FeedPart fork = {.id = "b", .range = {30, 2}};
  fork.path = {0, 2, 5};
  FailEach({"decode of a fork without a slot", forked, StepCall(feed, {fork}), {{"b", 32, &feed}}}, operations);
  FeedPart prefill = {.id = "a", .range = {30, 5}, .kind = v1::STEP_KIND_PREFILL};
  prefill.path = {0, 2, 5};
  FailEach({"prefill", Drafted(feed, 14, kTree), StepCall(feed, {prefill}), {{"a", 35, &feed}}}, operations);
  EXPECT_EQ(lost_, 0) << "both write to another slot than the session's";
  for (const int64_t decoded : {3, 14, 15}) {
    FeedPart decode = {.id = "a", .range = {30, 1}};
    decode.path = {0, 2, 5};
    FailEach({"decode behind a path at " + std::to_string(decoded),
              Drafted(feed, decoded, kTree),
              StepCall(feed, {decode}),
              {{"a", 31, &feed}}},
             operations);
  }
  EXPECT_GT(lost_, 0) << "what comes behind the moves fails too";
  Report("operations of accepting steps");
}

TEST_P(FailureInTurn, OfWhatMovesStatesLeavesThemAsTheyWere) {
  const TokenFeed feed = TokenFeed::Operator(2);
  const auto started = [&feed](const Caller& caller) { feed.Start(caller, "a", {0, 4}, 5); };
  FailEach({"fork",
            started,
            [](const Caller& caller) { return ResultOf(caller.Fork("a", {"b"})); },
            {{"b", 9, &feed}, {"a", 9, &feed}}});
  FailEach({"creation",
            [](const Caller&) {},
            [&](const Caller& caller) { return ResultOf(feed.Create(caller, "a")); },
            {{"a", 0, &feed}}});
  FailEach({"return from host memory",
            [&](const Caller& caller) {
              started(caller);
              ASSERT_TRUE(caller.Evict("a").ok());
            },
            [&](const Caller& caller) {
              return ResultOf(caller.Decode(WithId(feed.Decode({"a"}, TokenRange{9, 1}), "call")));
            },
            {{"a", 10, &feed}}});
  FailEach({"eviction", started, [](const Caller& caller) { return ResultOf(caller.Evict("a")); }, {{"a", 9, &feed}}});
  FailEach({"export", started, [](const Caller& caller) { return ResultOf(caller.Export("a")); }, {{"a", 9, &feed}}});
  std::string file;
  {
    const World world(GetParam(), nullptr);
    started(world.caller());
    file = world.caller().Export("a").reply;
  }
  FailEach({"import",
            [](const Caller&) {},
            [&](const Caller& caller) {
              v1::ImportStateRequest::Target target;
              target.set_session_id("a");
              *target.mutable_operator_() = feed.Creation("a").operator_();
              return ResultOf(caller.Import(target, file));
            },
            {{"a", 9, &feed}}});
  Report("moves");
}

}  // namespace
}  // namespace gdn::acquisition_failure_test
