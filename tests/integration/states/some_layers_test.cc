// Sessions of some of a model's layers, and servers of some layers (--layers): their outputs have the bits of sessions
// of all layers, and a session keeps its layers wherever it goes.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/test_server.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/temp_folder.h"

namespace gdn::some_layers_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TokenFeed& Feed() {
  static const auto* const kFeed = new TokenFeed(TokenFeed::Model());  // layers 0, 1 and 2 are Gated DeltaNet
  return *kFeed;
}

v1::CreateSessionRequest CreationOf(const std::string& id, const std::vector<int32_t>& layers) {
  v1::CreateSessionRequest request = Feed().Creation(id);
  request.mutable_layers()->Add(layers.begin(), layers.end());
  return request;
}

std::vector<int32_t> LayersOf(const v1::Session& session) {
  std::vector<int32_t> layers;
  for (const v1::LayerState& layer : session.layers()) layers.push_back(layer.layer());
  return layers;
}

GdnServerOptions OptionsOf(const LayerRanges& layers = {}) {
  GdnServerOptions options;
  options.models = TokenFeed::Models();
  options.load.layers = layers;
  return options;
}

// Prefills the first tokens, and decodes some more.
std::string Begin(const Caller& caller, const std::string& id, int layer) {
  const auto prompt = caller.Prefill(Feed().Prefill(id, {0, 20}, layer));
  EXPECT_TRUE(prompt.ok()) << prompt.status.error_message();
  return prompt.reply.output().data() + Feed().DecodeAll(caller, id, {20, 5}, layer);
}
std::string GoOn(const Caller& caller, const std::string& id, int layer) {
  return Feed().DecodeAll(caller, id, {25, 20}, layer);  // over a fold of the log
}

TEST(SessionOfSomeLayers, HasTheirStatesAloneWithTheSameBits) {
  TestServer server(OptionsOf());
  const Caller caller(server);
  ASSERT_REPLY(const v1::Session some, caller.Create(CreationOf("some", {0, 2})));
  ASSERT_REPLY(const v1::Session all, caller.Create(CreationOf("all", {})));
  EXPECT_THAT(LayersOf(some), ElementsAre(0, 2));
  EXPECT_THAT(LayersOf(all), ElementsAre(0, 1, 2));
  EXPECT_EQ(3 * some.state_bytes(), 2 * all.state_bytes());
  for (const int layer : {0, 2}) {
    EXPECT_EQ(Begin(caller, "some", layer), Begin(caller, "all", layer));
    EXPECT_EQ(GoOn(caller, "some", layer), GoOn(caller, "all", layer));
  }
  EXPECT_TRUE(RefusedAs(caller.Prefill(Feed().Prefill("some", {0, 2}, 1)), "LAYER_NOT_GDN",
                        {{"layer", "1"}, {"expected", "0,2"}}));
  ASSERT_REPLY(const v1::Session got, caller.Get("some"));
  EXPECT_THAT(LayersOf(got), ElementsAre(0, 2));
  ASSERT_REPLY(const auto list, caller.List(10));
  ASSERT_EQ(list.sessions_size(), 2);
  EXPECT_THAT(LayersOf(list.sessions(1)), ElementsAre(0, 2));
}

TEST(SessionOfSomeLayers, IsMadeOnceForOneId) {
  TestServer server(OptionsOf());
  const Caller caller(server);
  ASSERT_TRUE(caller.Create(CreationOf("a", {0, 2})).ok());
  EXPECT_TRUE(caller.Create(CreationOf("a", {0, 2})).ok());
  for (const std::vector<int32_t>& layers : {std::vector<int32_t>{}, {0}, {0, 1, 2}}) {
    EXPECT_TRUE(RefusedAs(caller.Create(CreationOf("a", layers)), "SESSION_EXISTS"));
  }
}

TEST(SessionOfSomeLayers, IsRefusedIfTheyAreWrong) {
  TestServer server(OptionsOf());
  const Caller caller(server);
  EXPECT_TRUE(
      RefusedAs(caller.Create(CreationOf("a", {0, 3})), "LAYER_NOT_GDN", {{"layer", "3"}, {"expected", "0-2"}}));
  EXPECT_TRUE(RefusedAs(caller.Create(CreationOf("a", {-1})), "LAYER_NOT_GDN"));
  EXPECT_TRUE(RefusedAs(caller.Create(CreationOf("a", {2, 0})), "INVALID_SPEC", {{"field", "layers"}}));
  EXPECT_TRUE(RefusedAs(caller.Create(CreationOf("a", {1, 1})), "INVALID_SPEC", {{"field", "layers"}}));
  v1::CreateSessionRequest op;
  op.set_session_id("a");
  *op.mutable_operator_() = SmallOperator(2);
  op.add_layers(0);
  EXPECT_TRUE(RefusedAs(caller.Create(op), "INVALID_SPEC", {{"field", "layers"}}));
  v1::CreateSessionRequest states = CreationOf("a", {1});
  states.add_initial_states()->set_layer(0);
  EXPECT_TRUE(RefusedAs(caller.Create(states), "LAYER_NOT_GDN", {{"layer", "0"}, {"expected", "1"}}));
  EXPECT_TRUE(RefusedAs(caller.Get("a"), "SESSION_NOT_FOUND"));
}

TEST(SessionOfSomeLayers, HasForksAndAcceptancesOfTheseLayers) {
  TestServer server(OptionsOf());
  const Caller caller(server);
  for (const std::string id : {"some", "all"}) {
    ASSERT_TRUE(caller.Create(CreationOf(id, id == "some" ? std::vector<int32_t>{1} : std::vector<int32_t>{})).ok());
    Begin(caller, id, 1);
    ASSERT_TRUE(caller.Decode(Feed().Draft({id}, {{25, 4}}, 1)).ok());
    ASSERT_REPLY(const auto fork, caller.Fork(id, {id + "child"}));
    EXPECT_EQ(LayersOf(fork.sessions(0)), LayersOf(caller.Get(id).reply));
    ASSERT_TRUE(caller.Accept(id + "child", 0).ok());
  }
  EXPECT_EQ(GoOn(caller, "somechild", 1), GoOn(caller, "allchild", 1));
}

TEST(SessionOfSomeLayers, SharesNoPrefixWithOneOfOtherLayers) {
  GdnServerOptions options = OptionsOf();
  options.memory.prefix_cache_bytes = int64_t{64} << 20;
  TestServer server(options);
  const Caller caller(server);
  v1::PromptPrefix prefix;
  v1::PrefixSegment* const segment = prefix.add_segments();
  segment->set_tokens(20);
  segment->set_content_sha256(std::string(32, 'x'));
  ASSERT_TRUE(caller.Create(CreationOf("first", {0, 2})).ok());
  for (const int layer : {0, 2}) ASSERT_TRUE(caller.Prefill(Feed().Prefill("first", {0, 20}, layer)).ok());
  v1::KeepPrefixRequest keep;
  keep.set_name("sessions/first");
  *keep.mutable_prefix() = prefix;
  v1::KeepPrefixResponse kept;
  const auto context = caller.NewContext();
  ASSERT_TRUE(server.stub().KeepPrefix(context.get(), keep, &kept).ok());
  EXPECT_TRUE(kept.kept());
  const auto tokens_of = [&](const std::string& id, const std::vector<int32_t>& layers) {
    v1::CreateSessionRequest request = CreationOf(id, layers);
    *request.mutable_prefix() = prefix;
    const auto made = caller.Create(request);
    EXPECT_TRUE(made.ok()) << made.status.error_message();
    return made.reply.prefix_tokens();
  };
  EXPECT_EQ(tokens_of("same", {0, 2}), 20);
  EXPECT_EQ(tokens_of("fewer", {0}), 0);
  EXPECT_EQ(tokens_of("all", {}), 0);
}

TEST(SessionOfSomeLayers, KeepsThemInCheckpointsAndAfterARestart) {
  const TempFolder folder;
  GdnServerOptions options = OptionsOf();
  options.states.disk.directory = folder.path();
  std::string expected;
  {
    TestServer server(options);
    const Caller caller(server);
    ASSERT_TRUE(caller.Create(CreationOf("a", {0, 2})).ok());
    Begin(caller, "a", 2);
    ASSERT_TRUE(caller.Checkpoint("a").ok());
    ASSERT_REPLY(const auto named, caller.Checkpoint("a", "named"));
    ASSERT_EQ(named.layers_size(), 2);
    expected = GoOn(caller, "a", 2);
    ASSERT_REPLY(const v1::Session restored, caller.Restore("a", "named"));
    EXPECT_THAT(LayersOf(restored), ElementsAre(0, 2));
    EXPECT_EQ(GoOn(caller, "a", 2), expected);
  }
  TestServer server(options);
  const Caller caller(server);
  ASSERT_REPLY(const v1::Session recovered, caller.Get("a"));
  EXPECT_THAT(LayersOf(recovered), ElementsAre(0, 2));
  EXPECT_TRUE(caller.Create(CreationOf("a", {0, 2})).ok()) << "it is the session of this request";
  EXPECT_EQ(GoOn(caller, "a", 2), expected);
  EXPECT_TRUE(RefusedAs(caller.Prefill(Feed().Prefill("a", {0, 2}, 1)), "LAYER_NOT_GDN"));
}

TEST(SessionOfSomeLayers, KeepsThemInAFile) {
  TestServer server(OptionsOf());
  const Caller caller(server);
  ASSERT_TRUE(caller.Create(CreationOf("a", {0, 2})).ok());
  Begin(caller, "a", 2);  // layer 0 has no state, and is the session's all the same
  ASSERT_REPLY(const std::string file, caller.Export("a"));
  ASSERT_REPLY(const v1::Session imported, caller.Import("b", "next", file));
  EXPECT_THAT(LayersOf(imported), ElementsAre(0, 2));
  EXPECT_EQ(imported.state_bytes(), caller.Get("a").reply.state_bytes());
  EXPECT_EQ(caller.State("b"), caller.State("a"));
  EXPECT_EQ(Begin(caller, "b", 0), Begin(caller, "a", 0));
  EXPECT_EQ(GoOn(caller, "b", 2), GoOn(caller, "a", 2));
}

TEST(ServersOfSomeLayers, TogetherGiveTheBitsOfOne) {
  TestServer whole(OptionsOf()), low(OptionsOf({{.first = 0, .last = 0}})), high(OptionsOf({{.first = 1, .last = 3}}));
  const Caller of_whole(whole), of_low(low), of_high(high);
  for (const Caller* caller : {&of_whole, &of_low, &of_high}) ASSERT_TRUE(Feed().Create(*caller, "a").ok());
  EXPECT_THAT(LayersOf(of_low.Get("a").reply), ElementsAre(0));
  EXPECT_THAT(LayersOf(of_high.Get("a").reply), ElementsAre(1, 2));
  for (const int layer : {0, 1, 2}) {
    const Caller& part = layer == 0 ? of_low : of_high;
    EXPECT_EQ(Begin(part, "a", layer), Begin(of_whole, "a", layer));
    EXPECT_EQ(GoOn(part, "a", layer), GoOn(of_whole, "a", layer));
  }
  EXPECT_TRUE(RefusedAs(of_low.Prefill(Feed().Prefill("a", {0, 2}, 1)), "LAYER_NOT_GDN", {{"expected", "0"}}));
  EXPECT_TRUE(RefusedAs(of_low.Create(CreationOf("b", {0, 1})), "LAYER_NOT_GDN", {{"layer", "1"}, {"expected", "0"}}));
}

v1::Model ModelOf(TestServer& server) {
  grpc::ClientContext context;
  v1::GetModelRequest request;
  request.set_name("models/next");
  v1::GetModelResponse response;
  EXPECT_TRUE(server.stub().GetModel(&context, request, &response).ok());
  return response.model();
}

TEST(ServersOfSomeLayers, SayWhichTheyServeAndWhoseTheyAre) {
  TestServer whole(OptionsOf()), high(OptionsOf({{.first = 1, .last = 3}}));
  const v1::Model all = ModelOf(whole), some = ModelOf(high);
  EXPECT_THAT(all.gdn_layers(), ElementsAre(0, 1, 2));
  EXPECT_THAT(all.all_gdn_layers(), ElementsAre(0, 1, 2));
  EXPECT_THAT(some.gdn_layers(), ElementsAre(1, 2));
  EXPECT_THAT(some.all_gdn_layers(), ElementsAre(0, 1, 2));
  EXPECT_EQ(some.fingerprint(), all.fingerprint());
  EXPECT_EQ(some.whole_fingerprint(), all.whole_fingerprint());
  EXPECT_EQ(3 * some.weight_bytes(), 2 * all.weight_bytes());
  EXPECT_EQ(3 * some.state_bytes_per_session(), 2 * all.state_bytes_per_session());
  ASSERT_EQ(all.layer_digests_size(), 3);
  ASSERT_EQ(some.layer_digests_size(), 2);
  EXPECT_THAT(all.digest_tensors(), ElementsAre("in_proj_qkvz.weight", "in_proj_ba.weight", "conv1d.weight", "A_log",
                                                "dt_bias", "norm.weight", "out_proj.weight"));
  EXPECT_EQ(all.layer_digests(0).layer(), 0);
  EXPECT_EQ(all.layer_digests(2).format(), "F32");
  EXPECT_EQ(all.layer_digests(2).vector_format(), "F32");
  EXPECT_EQ(all.layer_digests(2).xxh3_128(), "556230d02707e12c3f77160800f1cdaa");
  EXPECT_FALSE(all.layer_digests(2).has_adapter());
  EXPECT_EQ(some.layer_digests(1).SerializeAsString(), all.layer_digests(2).SerializeAsString());
}

// A file names the session's layers. A server takes it if it serves all of them, and makes a session of these.
TEST(ServersOfSomeLayers, TakeFilesOfTheirLayersAlone) {
  TestServer whole(OptionsOf()), low(OptionsOf({{.first = 0, .last = 0}})), high(OptionsOf({{.first = 1, .last = 3}}));
  const Caller of_whole(whole), of_low(low), of_high(high);
  ASSERT_TRUE(Feed().Create(of_high, "a").ok());
  Begin(of_high, "a", 2);
  ASSERT_REPLY(const std::string file, of_high.Export("a"));
  ASSERT_REPLY(const v1::Session in_whole, of_whole.Import("a", "next", file));
  EXPECT_THAT(LayersOf(in_whole), ElementsAre(1, 2));
  ASSERT_REPLY(const std::string back, of_whole.Export("a"));
  ASSERT_REPLY(const v1::Session in_high, of_high.Import("back", "next", back));
  EXPECT_THAT(LayersOf(in_high), ElementsAre(1, 2));
  EXPECT_EQ(GoOn(of_whole, "a", 2), GoOn(of_high, "back", 2));

  const auto other = of_low.Import("a", "next", file);
  EXPECT_TRUE(RefusedAs(other, "STATE_MISMATCH", {{"field", "layer"}, {"found", "2"}}));
  // Layer 1 of this session has no state. It would still be lost.
  ASSERT_TRUE(of_whole.Create(CreationOf("two", {0, 1})).ok());
  Begin(of_whole, "two", 0);
  ASSERT_REPLY(const std::string two, of_whole.Export("two"));
  const auto lost = of_low.Import("two", "next", two);
  EXPECT_TRUE(RefusedAs(lost, "STATE_MISMATCH", {{"field", "layer"}, {"found", "1"}}));
  EXPECT_THAT(lost.status.error_message(), HasSubstr("one of the layers that are served here, 0"));
}

// Sessions whose layers are served are recovered. The others stay on the disk for a server that has their layers.
TEST(ServersOfSomeLayers, RecoverSessionsOfTheirLayers) {
  const TempFolder folder;
  const auto options = [&folder](const LayerRanges& layers) {
    GdnServerOptions some = OptionsOf(layers);
    some.states.disk.directory = folder.path();
    return some;
  };
  std::string expected;
  {
    TestServer server(options({}));
    const Caller caller(server);
    for (const auto& [id, layers] : {std::pair("low", std::vector<int32_t>{0}), {"both", {0, 1}}, {"all", {}}}) {
      ASSERT_TRUE(caller.Create(CreationOf(id, layers)).ok());
      Begin(caller, id, 0);
      ASSERT_TRUE(caller.Checkpoint(id).ok());
    }
    expected = GoOn(caller, "all", 0);
  }
  {
    TestServer server(options({{.first = 0, .last = 0}}));
    const Caller caller(server);
    EXPECT_THAT(LayersOf(caller.Get("low").reply), ElementsAre(0));
    EXPECT_EQ(GoOn(caller, "low", 0), expected);
    EXPECT_FALSE(caller.Get("both").ok());
    EXPECT_FALSE(caller.Get("all").ok());
  }
  TestServer server(options({}));
  const Caller caller(server);
  EXPECT_THAT(LayersOf(caller.Get("low").reply), ElementsAre(0));
  EXPECT_THAT(LayersOf(caller.Get("both").reply), ElementsAre(0, 1));
  EXPECT_THAT(LayersOf(caller.Get("all").reply), ElementsAre(0, 1, 2));
  EXPECT_EQ(GoOn(caller, "both", 0), expected);
}

TEST(ServersOfSomeLayers, DoNotStartWithoutAGdnLayer) {
  const auto server = GdnServer::Make(MakeTestBackend(/*threads=*/1), OptionsOf({{.first = 3, .last = 3}}));
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(server.status().message()),
              HasSubstr("model 'next': layers 3 have no Gated DeltaNet layer; the model's are 0-2: choose --layers"));
}

}  // namespace
}  // namespace gdn::some_layers_test
