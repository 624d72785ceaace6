// Sessions: ids, principals, pages, initial states and the state budget.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "base/files/safetensors.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::sessions_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

constexpr char kSet[] = "qwen3_next_1";

class Sessions : public ::testing::Test {
 protected:
  std::vector<std::string> Names(const v1::ListSessionsResponse& page) const {
    std::vector<std::string> names;
    for (const v1::Session& session : page.sessions()) names.push_back(session.name());
    return names;
  }

  TestServer server_{{.models = {{"next", GoldenPath(kSet)}, {"five", GoldenPath("qwen3_5_5")}}}};
  const Caller caller_{server_};
  const Tokens inputs_ = GoldenInputs(kSet, 0);
};

TEST_F(Sessions, AreDescribedWhole) {
  ASSERT_REPLY(const auto made, caller_.Create("a", "next"));
  EXPECT_EQ(made.name(), "sessions/a");
  EXPECT_EQ(made.model(), "models/next");
  EXPECT_EQ(made.affinity(), "a");
  EXPECT_GT(made.create_time().seconds(), 0);
  EXPECT_EQ(made.state_bytes(), caller_.Info().reply.state_bytes_used());
  ASSERT_EQ(made.layers_size(), 3);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(made.layers(layer).layer(), layer);
    EXPECT_EQ(made.layers(layer).token_count(), 0);
    EXPECT_EQ(made.layers(layer).input_kind(), v1::INPUT_KIND_UNSPECIFIED);
  }
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", 1, inputs_.Slice(0, 4))).ok());
  ASSERT_TRUE(caller_.Decode(DecodeOf({"a"}, 1, {inputs_.Token(4)})).ok());
  const v1::LayerState layer = caller_.Get("a").reply.layers(1);
  EXPECT_EQ(layer.token_count(), 5);
  EXPECT_EQ(layer.log_length(), 1);
  EXPECT_EQ(layer.input_kind(), v1::INPUT_KIND_HIDDEN_STATES);
}

TEST_F(Sessions, CreationUnderAChosenIdIsIdempotent) {
  v1::CreateSessionRequest request;
  request.set_session_id("a");
  request.set_model("models/next");
  request.set_affinity("group-7");
  ASSERT_REPLY(const auto made, caller_.Create(request));
  EXPECT_EQ(made.affinity(), "group-7");
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", 0, inputs_.Slice(0, 4))).ok());
  ASSERT_REPLY(const auto again, caller_.Create(request));
  EXPECT_EQ(again.layers(0).token_count(), 4) << "the session as it is now";
  EXPECT_EQ(again.SerializeAsString(), caller_.Get("a").reply.SerializeAsString());

  std::vector<v1::CreateSessionRequest> others(4, request);
  others[0].set_model("models/five");
  others[1].set_affinity("");
  *others[2].mutable_operator_() = SmallOperator();
  others[3].add_initial_states()->set_token_count(1);
  for (const v1::CreateSessionRequest& other : others) {
    EXPECT_TRUE(RefusedAs(caller_.Create(other), "SESSION_EXISTS", {{"session", "sessions/a"}}));
  }
  EXPECT_EQ(caller_.TokenCount("a", 0), 4);
}

TEST_F(Sessions, AnIdThatIsNotChosenIs128RandomBits) {
  const auto first = caller_.Create("", "next");
  const auto second = caller_.Create("", "next");
  EXPECT_THAT(first.reply.name(), MatchesRegex("sessions/[0-9a-f]{32}"));
  EXPECT_NE(first.reply.name(), second.reply.name());
  EXPECT_EQ("sessions/" + first.reply.affinity(), first.reply.name());
}

TEST_F(Sessions, ListsGoByPagesInOrder) {
  EXPECT_THAT(Names(caller_.List(0).reply), IsEmpty());
  for (const char* id : {"d", "b", "f", "a", "c", "e"}) ASSERT_TRUE(caller_.CreateOperator(id, SmallOperator()).ok());
  const auto first = caller_.List(4);
  EXPECT_THAT(Names(first.reply), ElementsAre("sessions/a", "sessions/b", "sessions/c", "sessions/d"));
  const auto second = caller_.List(4, first.reply.next_page_token());
  EXPECT_THAT(Names(second.reply), ElementsAre("sessions/e", "sessions/f"));
  EXPECT_EQ(second.reply.next_page_token(), "");

  const auto half = caller_.List(3);
  const auto other_half = caller_.List(3, half.reply.next_page_token());
  EXPECT_THAT(Names(other_half.reply), ElementsAre("sessions/d", "sessions/e", "sessions/f"));
  EXPECT_EQ(other_half.reply.next_page_token(), "") << "an exact multiple has no empty last page";
  EXPECT_EQ(caller_.List(6).reply.next_page_token(), "");

  ASSERT_TRUE(caller_.Delete("d").ok()) << "the token's own session may go";
  EXPECT_THAT(Names(caller_.List(4, first.reply.next_page_token()).reply), ElementsAre("sessions/e", "sessions/f"));

  EXPECT_EQ(caller_.List(-1).reason(), "INVALID_SPEC");
  EXPECT_EQ(caller_.List(4, "d").reason(), "INVALID_PAGE_TOKEN");
  EXPECT_EQ(caller_.List(4, "d").status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Sessions, ThePageSizeHasADefaultAndALimit) {
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(caller_.CreateOperator("s" + std::to_string(i), SmallOperator()).ok());
  EXPECT_EQ(caller_.List(0).reply.sessions_size(), 50);
  EXPECT_EQ(caller_.List(100'000).reply.sessions_size(), 60);
}

TEST_F(Sessions, ADeletedOneIsNotFoundAndItsIdIsFree) {
  ASSERT_TRUE(caller_.Create("a", "next").ok());
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", 0, inputs_.Slice(0, 4))).ok());
  ASSERT_TRUE(caller_.Delete("a").ok());
  for (const auto& status : {caller_.Get("a").status, caller_.Delete("a").status, caller_.Export("a").status,
                             caller_.Prefill(PrefillOf("a", 0, inputs_.Slice(0, 4))).status}) {
    EXPECT_TRUE(RefusedAs(status, "SESSION_NOT_FOUND"));
  }
  EXPECT_EQ(caller_.Info().reply.state_bytes_used(), 0);
  ASSERT_REPLY(const auto remade, caller_.Create("a", "five"));
  EXPECT_EQ(remade.layers(0).token_count(), 0);
}

TEST_F(Sessions, AForeignOneAnswersExactlyAsAnUnknownOne) {
  const Caller owner(server_, "Bearer one");
  const Caller other(server_, "Bearer two");
  ASSERT_TRUE(owner.Create("mine", "next").ok());
  ASSERT_TRUE(owner.Prefill(PrefillOf("mine", 0, inputs_.Slice(0, 4))).ok());
  for (const Caller& stranger : {other, caller_}) {
    const auto statuses = [&](const std::string& id) {
      return std::vector<grpc::Status>{stranger.Get(id).status, stranger.Delete(id).status, stranger.Export(id).status,
                                       stranger.Prefill(PrefillOf(id, 0, inputs_.Slice(0, 1))).status,
                                       stranger.Decode(DecodeOf({id}, 0, {inputs_.Token(0)})).status};
    };
    const auto foreign = statuses("mine");
    const auto unknown = statuses("none");
    for (size_t i = 0; i < foreign.size(); ++i) {
      EXPECT_TRUE(RefusedAs(foreign[i], "SESSION_NOT_FOUND")) << i;
      std::string details = unknown[i].error_details();
      for (size_t at = 0; (at = details.find("none", at)) != std::string::npos; at += 4) details.replace(at, 4, "mine");
      EXPECT_EQ(foreign[i].error_details(), details) << "message, reason and metadata, byte by byte";
    }
    EXPECT_THAT(Names(stranger.List(0).reply), IsEmpty());
  }
  ASSERT_TRUE(other.Create("mine", "five").ok()) << "every principal has ids of its own";
  EXPECT_EQ(other.TokenCount("mine", 0), 0);
  EXPECT_EQ(owner.TokenCount("mine", 0), 4);
  ASSERT_TRUE(other.Delete("mine").ok());
  EXPECT_EQ(owner.TokenCount("mine", 0), 4);
}

TEST_F(Sessions, AnOperatorSessionHasAsManyLayersAsAskedFor) {
  ASSERT_REPLY(const auto made, caller_.CreateOperator("op", SmallOperator(3)));
  EXPECT_EQ(made.operator_().layer_count(), 3);
  EXPECT_EQ(made.layers_size(), 3);
  Random random(1);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(SmallOperatorDims(), 5, random);
  v1::PrefillRequest request;
  request.set_session("sessions/op");
  *request.mutable_delta_rule() = DeltaRuleOf(inputs, {5});
  std::string first;
  for (const int layer : {2, 0}) {
    request.set_layer(layer);
    ASSERT_REPLY(const auto reply, caller_.Prefill(request));
    EXPECT_THAT(reply.output().shape(), ElementsAre(5, 4, 24));
    if (first.empty()) first = reply.output().data();
    EXPECT_EQ(reply.output().data(), first);
  }
  EXPECT_EQ(caller_.TokenCount("op", 0), 5);
  EXPECT_EQ(caller_.TokenCount("op", 1), 0);
  request.set_layer(3);
  EXPECT_EQ(caller_.Prefill(request).reason(), "LAYER_NOT_GDN");
}

// The order of initial states says nothing, and what is left out is zero.
TEST_F(Sessions, InitialStatesMayComeInAnyOrder) {
  const auto made_with = [&](const std::string& id, const std::vector<int>& layers) {
    v1::CreateSessionRequest request;
    request.set_session_id(id);
    v1::OperatorSpec& spec = *request.mutable_operator_();
    spec.set_key_heads(1);
    spec.set_value_heads(1);
    spec.set_key_dim(8);
    spec.set_value_dim(8);
    spec.set_layer_count(4);
    for (const int layer : layers) {
      v1::InitialState* initial = request.add_initial_states();
      initial->set_layer(layer);
      initial->set_token_count(10 * layer + 1);
      if (layer == 2) continue;
      *initial->mutable_recurrent_state() =
          AsTensor({1, 8, 8}, std::vector<float>(64, 0.5f + static_cast<float>(layer)));
    }
    return caller_.Create(request);
  };
  ASSERT_TRUE(made_with("up", {0, 2, 3}).ok());
  ASSERT_TRUE(made_with("down", {3, 2, 0}).ok());
  const std::string up = caller_.Export("up").reply, down = caller_.Export("down").reply;
  const SafetensorsFile files[] = {SafetensorsFile::Parse(up).value(), SafetensorsFile::Parse(down).value()};
  for (const int layer : {0, 2, 3}) {
    const std::string name = "layer." + std::to_string(layer) + ".recurrent_state";
    const float value = layer == 2 ? 0.0f : 0.5f + static_cast<float>(layer);
    for (const SafetensorsFile& file : files)
      EXPECT_EQ(file.Floats(name).value(), std::vector<float>(64, value)) << name;
  }
}

// A session made with `initial` states goes on as one that got them by computing.
TEST_F(Sessions, InitialStatesContinueWhereTheyWereTaken) {
  ASSERT_TRUE(caller_.Create("a", "next").ok());
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", 0, inputs_.Slice(0, 30))).ok());
  const std::string exported = caller_.Export("a").reply;
  const SafetensorsFile file = SafetensorsFile::Parse(exported).value();
  const std::vector<float> recurrent = file.Floats("layer.0.recurrent_state").value();
  const std::vector<float> conv = file.Floats("layer.0.conv_state").value();
  const auto with_states = [&](const std::string& id, const std::vector<float>& state, v1::DType dtype) {
    v1::CreateSessionRequest request;
    request.set_session_id(id);
    request.set_model("models/next");
    v1::InitialState* initial = request.add_initial_states();
    initial->set_layer(0);
    initial->set_token_count(30);
    *initial->mutable_recurrent_state() = AsTensor({4, 32, 32}, state, dtype);
    *initial->mutable_conv_state() = AsTensor({256, 3}, conv);
    return caller_.Create(request);
  };
  ASSERT_REPLY(const auto made, with_states("b", recurrent, v1::DTYPE_F32));
  EXPECT_EQ(made.layers(0).token_count(), 30);
  const std::vector<float> rounded = Floats(AsTensor({4, 32, 32}, recurrent, v1::DTYPE_F16));
  ASSERT_TRUE(with_states("half", recurrent, v1::DTYPE_F16).ok());
  ASSERT_TRUE(with_states("rounded", rounded, v1::DTYPE_F32).ok());
  for (int64_t token = 30; token < inputs_.count(); ++token) {
    ASSERT_REPLY(const auto reply, caller_.Decode(DecodeOf({"a", "b", "half", "rounded"}, 0,
                                                           std::vector<Tokens>(4, inputs_.Token(token)))));
    EXPECT_EQ(RowBytes(reply.output(), 1), RowBytes(reply.output(), 0)) << token;
    EXPECT_EQ(RowBytes(reply.output(), 3), RowBytes(reply.output(), 2)) << token;
  }
  EXPECT_EQ(caller_.State("b"), caller_.State("a"));
  EXPECT_NE(caller_.State("half"), caller_.State("a"));
}

TEST_F(Sessions, TheBudgetIsNotOverdrawnAndDeletionGivesItBack) {
  const int64_t bytes = caller_.Create("probe", "next").reply.state_bytes();
  TestServer small({.models = {{"next", GoldenPath(kSet)}}, .memory = {.device_state_bytes = 2 * bytes + bytes / 2}});
  const Caller caller(small);
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(caller.Create(id, "next").ok());
    for (int layer = 0; layer < 3; ++layer) {
      ASSERT_TRUE(caller.Prefill(PrefillOf(id, layer, inputs_.Slice(0, 9))).ok());
      ASSERT_TRUE(caller.Prefill(PrefillOf(id, layer, inputs_.Slice(9, 9))).ok()) << "there is room to write aside";
    }
  }
  const std::string state = caller.State("a");
  const auto refused = caller.Create("c", "next");
  EXPECT_TRUE(RefusedAs(refused, "STATE_BUDGET_EXHAUSTED",
                        {{"needed", std::to_string(bytes)}, {"available", std::to_string(bytes / 2)}}));
  EXPECT_TRUE(HasRetryInfo(refused.status));
  EXPECT_EQ(caller.Get("c").reason(), "SESSION_NOT_FOUND");
  EXPECT_EQ(caller.State("a"), state);
  EXPECT_EQ(caller.Info().reply.state_bytes_used(), 2 * bytes);

  EXPECT_TRUE(caller.CreateOperator("op", SmallOperator()).ok()) << "a smaller one still fits";
  ASSERT_TRUE(caller.Delete("op").ok() && caller.Delete("b").ok());
  ASSERT_TRUE(caller.Create("c", "next").ok());
  const auto fresh = caller.Decode(DecodeOf({"c"}, 0, {inputs_.Token(0)}));
  const auto expected = caller_.Decode(DecodeOf({"probe"}, 0, {inputs_.Token(0)}));
  EXPECT_EQ(fresh.reply.output().data(), expected.reply.output().data())
      << "nothing is left of the slot's former owner";
}

TEST_F(Sessions, InterleavedOnesEqualThoseRunApartToTheBit) {
  const std::vector<Tokens> tokens = {inputs_, GoldenInputs(kSet, 0, /*sequence=*/1)};
  constexpr int kSteps = 22;  // a prefill of 11, twenty decodes, a prefill of 6
  const auto step = [&](const std::string& kind, size_t who, int index) {
    const std::string id = kind + std::to_string(who);
    if (index == 0 || index == kSteps - 1) {
      const Tokens part = index == 0 ? tokens[who].Slice(0, 11) : tokens[who].Slice(31, 6);
      return caller_.Prefill(PrefillOf(id, 0, part)).reply.output().data();
    }
    return caller_.Decode(DecodeOf({id}, 0, {tokens[who].Token(10 + index)})).reply.output().data();
  };
  for (const char* id : {"apart0", "apart1", "mixed0", "mixed1"}) ASSERT_TRUE(caller_.Create(id, "next").ok());
  std::vector<std::vector<std::string>> expected(2), outputs(2);
  for (size_t who = 0; who < 2; ++who) {
    for (int i = 0; i < kSteps; ++i) expected[who].push_back(step("apart", who, i));
  }
  for (int i = 0; i < kSteps; ++i) {
    for (const size_t turn : {0, 1}) {
      const size_t who = i < kSteps - 1 ? turn : 1 - turn;
      outputs[who].push_back(step("mixed", who, i));
    }
  }
  EXPECT_EQ(outputs, expected);
  for (const char* who : {"0", "1"})
    EXPECT_EQ(caller_.State(std::string("mixed") + who), caller_.State(std::string("apart") + who));
}

// Nobody could end such a session: its name was in the reply that nobody waits for.
TEST(CancelledCreation, WithoutAnIdLeavesNoSession) {
  const v1::OperatorSpec spec = SmallOperator();
  TestServer probe;
  const int64_t bytes = Caller(probe).CreateOperator("probe", spec).reply.state_bytes();
  TestServer server({.memory = {.device_state_bytes = bytes, .host_state_bytes = 8 * bytes}});
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Operator(1);
  ASSERT_TRUE(feed.Create(caller, "busy").ok());
  {
    EngineBlocker blocker(server.batcher());
    auto step = std::async(std::launch::async, [&] { return caller.Decode(feed.Decode({"busy"}, TokenRange{0, 1})); });
    ASSERT_TRUE(WaitForQueuedSteps(server, 1));
    // It waits for room, which there is once the step has ended.
    const auto context = caller.NewContext();
    v1::CreateSessionRequest request;
    *request.mutable_operator_() = spec;
    auto creation = std::async(std::launch::async, [&] {
      v1::CreateSessionResponse response;
      return server.stub().CreateSession(context.get(), request, &response);
    });
    ASSERT_TRUE(WaitUntil([&] { return caller.Info().reply.session_count() == 2; }, "the creation to begin"));
    CancelAndSettle(caller, *context);
    EXPECT_EQ(creation.get().error_code(), grpc::StatusCode::CANCELLED);
    blocker.Release();
    EXPECT_TRUE(step.get().ok());
  }
  // Behind the one that was cancelled.
  ASSERT_TRUE(feed.Create(caller, "next").ok());
  EXPECT_TRUE(WaitUntil([&] { return caller.Info().reply.session_count() == 2; }, "what nobody knows of to end"));
  EXPECT_THAT(caller.List(10).reply.sessions_size(), 2);
}

}  // namespace
}  // namespace gdn::sessions_test
