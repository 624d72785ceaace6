// CreateSessionRequest.prefix and KeepPrefix: sessions that begin where a known prefix of their prompt ends have the
// bits of those that computed it, and nobody begins with what is not theirs.
#include <string>
#include <vector>

#include "tests/integration/support/prefix_fixture.h"

namespace gdn::prefix_test {
namespace {

TEST_F(Prefixes, ASessionThatBeginsBehindOneHasTheBitsOfOneThatComputedIt) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    GdnServerOptions options = Options();
    options.states.state_dtype = dtype;
    TestServer server(options);
    const Caller caller(server);
    for (const TokenFeed& feed : {TokenFeed::Operator(2), TokenFeed::Model()}) {
      SCOPED_TRACE(feed.name() + " " + std::string(DTypeName(dtype)));
      const std::vector<int64_t> ends = {100, 101, 164};
      MakeKept(caller, feed, feed.name() + "first", ends);
      ASSERT_TRUE(caller.Delete(feed.name() + "first").ok()) << "what is kept outlives its session";
      ASSERT_REPLY(const v1::Session made, Create(caller, feed, feed.name(), PrefixOf({100, 101, 164, 200})));
      EXPECT_EQ(made.prefix_tokens(), 164);
      EXPECT_EQ(made.epoch(), 1);
      for (const v1::LayerState& layer : made.layers()) {
        EXPECT_EQ(layer.token_count(), 164);
        EXPECT_EQ(layer.log_length(), 0);
      }
      ExpectTheBitsOf(caller, feed, feed.name(), 164, ends, {200, 217});
    }
    EXPECT_EQ(Info(caller).hits(), 2);
    EXPECT_EQ(Info(caller).tokens_skipped(), 2 * 164);
  }
}

TEST_F(Prefixes, AStepBehindOneHasTheBitsOfOneBehindAComputedPrompt) {
  TestServer server(Options());
  const Caller caller(server);
  for (const TokenFeed& feed : {TokenFeed::Operator(2), TokenFeed::Model()}) {
    const auto named = [&feed](const char* id) { return feed.name() + id; };
    MakeKept(caller, feed, named("first"), {100});
    for (const char* id : {"a", "b", "c"}) {
      ASSERT_REPLY(const v1::Session made, Create(caller, feed, named(id), PrefixOf({100, 200})));
      ASSERT_EQ(made.prefix_tokens(), 100);
      ASSERT_TRUE(feed.Create(caller, named(id) + "-computed").ok());
      PrefillAll(caller, feed, named(id) + "-computed", 0, {100});
    }
    const auto step = [&](int layer, const std::string& suffix, bool accepts) {
      std::vector<FeedPart> parts = {{.id = named("a") + suffix, .range = {100, 1}},
                                     {.id = named("b") + suffix, .range = {100, 3}, .kind = v1::STEP_KIND_DRAFT},
                                     {.id = named("c") + suffix, .range = {100, 40}, .kind = v1::STEP_KIND_PREFILL}};
      if (accepts) parts[1].accept = 2;
      const auto reply = caller.Step(feed.Step(parts, layer));
      EXPECT_TRUE(reply.ok()) << reply.status.error_message();
      return reply.reply.output().data();
    };
    for (const bool accepts : {false, true}) {
      for (int layer = 0; layer < Layers(feed); ++layer) {
        EXPECT_EQ(step(layer, "", accepts), step(layer, "-computed", accepts));
      }
    }
    for (const char* id : {"a", "b", "c"}) {
      EXPECT_EQ(caller.State(named(id)), caller.State(named(id) + "-computed")) << id;
    }
  }
}

TEST_F(Prefixes, TheLongestKnownIsTakenAndCanBeGoneOnFrom) {
  TestServer server(Options());
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Model();
  ASSERT_TRUE(feed.Create(caller, "grows").ok());
  PrefillAll(caller, feed, "grows", 0, {64});
  ASSERT_TRUE(Keep(caller, "grows", PrefixOf({64})).reply.kept());
  PrefillAll(caller, feed, "grows", 64, {80, 128});
  ASSERT_TRUE(Keep(caller, "grows", PrefixOf({64, 80, 128})).reply.kept()) << "not every end needs to be kept";
  const auto begins = [&](const std::string& id, const v1::PromptPrefix& prefix) {
    const auto made = Create(caller, feed, id, prefix);
    EXPECT_TRUE(made.ok()) << made.status.error_message();
    return made.reply.prefix_tokens();
  };
  EXPECT_EQ(begins("a", PrefixOf({64, 80, 128, 300})), 128);
  EXPECT_EQ(begins("b", PrefixOf({64, 80})), 64);
  EXPECT_EQ(begins("c", PrefixOf({64, 128})), 64) << "another cut has other bits";
  EXPECT_EQ(begins("d", PrefixOf({128})), 0);
  EXPECT_EQ(begins("e", PrefixOf({64, 80, 128}, /*text=*/1)), 0) << "another text";
  // A session that began behind one goes on to keep what comes next.
  PrefillAll(caller, feed, "b", 64, {90});
  ASSERT_TRUE(Keep(caller, "b", PrefixOf({64, 90})).reply.kept());
  EXPECT_EQ(begins("f", PrefixOf({64, 90})), 90);
  ExpectTheBitsOf(caller, feed, "f", 90, {64, 90}, {200});
  EXPECT_EQ(Info(caller).entries(), 3);
}

TEST_F(Prefixes, OfOnePrincipalAreUnknownToAllOthers) {
  TestServer server(Options());
  const Caller alice(server, "alice"), bob(server, "bob"), nobody(server);
  const TokenFeed feed = TokenFeed::Model();
  MakeKept(alice, feed, "a", {64, 128});
  for (const Caller* other : {&bob, &nobody}) {
    ASSERT_REPLY(const v1::Session made, Create(*other, feed, "b", PrefixOf({64, 128})));
    EXPECT_EQ(made.prefix_tokens(), 0);
    EXPECT_EQ(other->TokenCount("b", 0), 0);
    EXPECT_TRUE(RefusedAs(Keep(*other, "a", PrefixOf({64, 128})), "SESSION_NOT_FOUND"));
    EXPECT_EQ(Drop(*other), 0);
  }
  EXPECT_EQ(Info(alice).hits(), 0);
  EXPECT_EQ(Info(alice).misses(), 2);
  EXPECT_EQ(Info(alice).tokens_skipped(), 0);
  // A caller can store its own prefix, and cannot tell that somebody else has stored the same prompt.
  PrefillAll(bob, feed, "b", 0, {64, 128});
  ASSERT_REPLY(const auto kept, Keep(bob, "b", PrefixOf({64, 128})));
  EXPECT_TRUE(kept.kept());
  EXPECT_EQ(Info(alice).entries(), 2);
  ASSERT_REPLY(const v1::Session own, Create(alice, feed, "c", PrefixOf({64, 128})));
  EXPECT_EQ(own.prefix_tokens(), 128);
  EXPECT_EQ(Drop(bob), 1);
  EXPECT_EQ(Info(alice).entries(), 1);
}

TEST_F(Prefixes, AreRefusedWhereTheStatesAreNotTheirs) {
  TestServer server(Options());
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Model();
  const auto refused = [&](const std::string& id, const std::vector<int64_t>& ends, const std::string& field,
                           const std::string& layer) {
    return RefusedAs(Keep(caller, id, PrefixOf(ends)), "PREFIX_MISMATCH", {{"field", field}, {"layer", layer}});
  };
  ASSERT_TRUE(feed.Create(caller, "a").ok());
  EXPECT_TRUE(refused("a", {10}, "token_count", "0"));
  ASSERT_TRUE(caller.Prefill(feed.Prefill("a", {0, 10}, 0)).ok());
  EXPECT_TRUE(refused("a", {10}, "token_count", "1")) << "a layer is behind";
  for (const int layer : {1, 2}) ASSERT_TRUE(caller.Prefill(feed.Prefill("a", {0, 10}, layer)).ok());
  EXPECT_TRUE(refused("a", {9}, "token_count", "0"));
  EXPECT_TRUE(refused("a", {10, 11}, "token_count", "0"));
  EXPECT_TRUE(refused("a", {4, 10}, "prefills", "0")) << "the same tokens, cut otherwise";
  // A draft, even one that is dropped, and a decode are no prefills.
  ASSERT_TRUE(caller.Decode(feed.Draft({"a"}, {{10, 1}}, /*layer=*/2)).ok());
  EXPECT_TRUE(refused("a", {10}, "prefills", "2"));
  ASSERT_TRUE(feed.Create(caller, "decoded").ok());
  PrefillAll(caller, feed, "decoded", 0, {9});
  for (const int layer : {0, 1, 2}) ASSERT_TRUE(caller.Decode(feed.Decode({"decoded"}, {9, 1}, layer)).ok());
  EXPECT_TRUE(refused("decoded", {9, 10}, "prefills", "0"));
  // States that came from elsewhere.
  ASSERT_TRUE(feed.Create(caller, "source").ok());
  PrefillAll(caller, feed, "source", 0, {10});
  ASSERT_REPLY(const std::string file, caller.Export("source"));
  ASSERT_TRUE(caller.Import("imported", "next", file).ok());
  EXPECT_TRUE(refused("imported", {10}, "prefills", "0"));
  v1::CreateSessionRequest initial = feed.Creation("initial");
  initial.add_initial_states()->set_layer(1);
  ASSERT_TRUE(caller.Create(initial).ok());
  PrefillAll(caller, feed, "initial", 0, {10});
  EXPECT_TRUE(refused("initial", {10}, "prefills", "1"));
  v1::PromptPrefix projected = PrefixOf({10});
  projected.set_input_kind(v1::INPUT_KIND_PROJECTED);
  EXPECT_TRUE(RefusedAs(Keep(caller, "source", projected), "INPUT_KIND_MISMATCH"));
  EXPECT_EQ(Info(caller).entries(), 0);
  EXPECT_EQ(Info(caller).used_bytes(), 0);
  EXPECT_TRUE(Keep(caller, "source", PrefixOf({10})).reply.kept()) << "it was not for another cause";
  // The kind is a part of what is looked for.
  EXPECT_EQ(Create(caller, feed, "p", projected).reply.prefix_tokens(), 0);
  EXPECT_EQ(Create(caller, feed, "h", PrefixOf({10})).reply.prefix_tokens(), 10);
}

TEST_F(Prefixes, ThatAreMalformedAreRefusedBeforeAnythingIsMade) {
  TestServer server(Options());
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Operator(2);
  ASSERT_TRUE(feed.Create(caller, "a").ok());
  struct Bad {
    std::string field;
    v1::PromptPrefix prefix;
  };
  std::vector<Bad> cases = {{"prefix.segments", {}}};
  const auto add = [&](const std::string& field, auto change) {
    v1::PromptPrefix prefix = PrefixOf({10, 20});
    change(prefix);
    cases.push_back({field, prefix});
  };
  constexpr int64_t kMost = int64_t{1} << 53;
  add("prefix.segments[1].tokens", [](auto& p) { p.mutable_segments(1)->set_tokens(0); });
  add("prefix.segments[0].tokens", [](auto& p) { p.mutable_segments(0)->set_tokens(-1); });
  add("prefix.segments[0].tokens", [](auto& p) { p.mutable_segments(0)->set_tokens(kMost + 1); });
  add("prefix.segments[1].tokens", [](auto& p) { p.mutable_segments(1)->set_tokens(kMost - 9); });
  add("prefix.segments[1].content_sha256", [](auto& p) { p.mutable_segments(1)->clear_content_sha256(); });
  add("prefix.segments[0].content_sha256",
      [](auto& p) { p.mutable_segments(0)->mutable_content_sha256()->push_back('x'); });
  add("prefix.input_kind", [](auto& p) { p.set_input_kind(v1::INPUT_KIND_HIDDEN_STATES); });
  add("prefix.input_kind", [](auto& p) { p.set_input_kind(static_cast<v1::InputKind>(9)); });
  add("prefix.segments", [](auto& p) {
    while (p.segments_size() < 4097) *p.add_segments() = p.segments(0);
  });
  for (const Bad& bad : cases) {
    EXPECT_TRUE(RefusedAs(Keep(caller, "a", bad.prefix), "INVALID_SPEC", {{"field", bad.field}}));
    EXPECT_TRUE(RefusedAs(Create(caller, feed, "b", bad.prefix), "INVALID_SPEC", {{"field", bad.field}}));
  }
  v1::CreateSessionRequest both = feed.Creation("b");
  both.add_initial_states();
  *both.mutable_prefix() = PrefixOf({10});
  EXPECT_TRUE(RefusedAs(caller.Create(both), "INVALID_SPEC", {{"field", "initial_states"}}));
  EXPECT_TRUE(RefusedAs(Keep(caller, "a/b", PrefixOf({10})), "INVALID_NAME"));
  EXPECT_EQ(caller.Info().reply.session_count(), 1);
  EXPECT_EQ(Info(caller).misses(), 0);
}

TEST_F(Prefixes, ACreationThatIsSentAgainFindsItsSessionAsItBegan) {
  TestServer server(Options());
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Operator(2);
  MakeKept(caller, feed, "first", {40});
  ASSERT_REPLY(const v1::Session made, Create(caller, feed, "a", PrefixOf({40, 50})));
  EXPECT_EQ(made.prefix_tokens(), 40);
  EXPECT_EQ(Drop(caller), 1);
  PrefillAll(caller, feed, "a", 40, {50});
  ASSERT_REPLY(const v1::Session again, Create(caller, feed, "a", PrefixOf({40, 50})));
  EXPECT_EQ(again.prefix_tokens(), 40);
  EXPECT_EQ(again.layers(0).token_count(), 50);
  EXPECT_TRUE(RefusedAs(Create(caller, feed, "a", PrefixOf({40, 51})), "SESSION_EXISTS"));
  EXPECT_TRUE(RefusedAs(feed.Create(caller, "a"), "SESSION_EXISTS"));
  EXPECT_EQ(Info(caller).hits(), 1) << "a session that is found counts once";
  EXPECT_EQ(Info(caller).misses(), 0);
}

TEST_F(Prefixes, HaveMetricsThatNameNobody) {
  TestServer server(Options());
  const Caller caller(server, "secret");
  const TokenFeed feed = TokenFeed::Operator(2);
  MakeKept(caller, feed, "first", {40});
  ASSERT_EQ(Create(caller, feed, "a", PrefixOf({40})).reply.prefix_tokens(), 40);
  ASSERT_EQ(Create(caller, feed, "b", PrefixOf({41})).reply.prefix_tokens(), 0);
  const std::string metrics = caller.Metrics().reply.text();
  for (const char* line :
       {"gdn_prefix_starts_total{result=\"hit\"} 1\n", "gdn_prefix_starts_total{result=\"miss\"} 1\n",
        "gdn_prefix_skipped_tokens_total 40\n", "gdn_prefix_entries 1\n", "gdn_prefixes_kept_total 1\n",
        "gdn_prefixes_gone_total{why=\"evicted\"} 0\n"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace gdn::prefix_test
