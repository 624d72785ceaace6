// Sessions of servers of some value heads: what they tell and refuse, how sessions move between ways of slicing a
// model, and what a client makes of a server that was away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "tests/integration/support/slice_servers.h"
#include "tests/support/assert_ok.h"
#include "tests/support/tcp_proxy.h"

namespace gdn::sliced_session_test {
namespace {

using ::testing::HasSubstr;

class HeadSliceSessions : public ::testing::Test {
 protected:
  const std::string path_ = GoldenPath("qwen3_next_1");
  const Tokens inputs_ = GoldenInputs("qwen3_next_1", 0);
};

TEST_F(HeadSliceSessions, AServerTellsItsHeads) {
  SliceServers servers(path_, kHalves);
  TestServer whole({.models = {{"m", path_}}});
  Client client(whole.channel());
  GDN_ASSERT_OK_AND_ASSIGN(const v1::Model all, client.GetModel("models/m"));
  EXPECT_FALSE(all.has_heads());
  EXPECT_EQ(all.whole_fingerprint(), all.fingerprint());
  EXPECT_GT(all.weight_bytes(), 0);
  EXPECT_FALSE(client.GetServerInfo()->has_heads());
  GDN_ASSERT_OK_AND_ASSIGN(const v1::Model high, servers.clients()[1]->GetModel("models/m"));
  EXPECT_EQ(high.heads().first_value_head(), 2);
  EXPECT_EQ(high.heads().value_heads(), 2);
  EXPECT_EQ(high.heads().total_value_heads(), 4);
  EXPECT_EQ(high.dims().value_heads(), 2);
  EXPECT_EQ(high.dims().key_heads(), 1);
  EXPECT_EQ(high.whole_fingerprint(), all.fingerprint());
  EXPECT_NE(high.fingerprint(), all.fingerprint());
  EXPECT_LT(high.weight_bytes(), all.weight_bytes() / 2 + 4096);
  EXPECT_LT(high.state_bytes_per_session(), all.state_bytes_per_session());
  GDN_ASSERT_OK_AND_ASSIGN(const auto info, servers.clients()[1]->GetServerInfo());
  EXPECT_EQ(info.heads().total_value_heads(), 4);
}

TEST_F(HeadSliceSessions, PartialSumsAreFloat32AndOnlyTheSumIsRounded) {
  SliceServers servers(path_, kHalves);
  const Caller low(servers.server(0));
  ASSERT_TRUE(low.Create("a", "m").ok());
  // A bfloat16 input's output would be bfloat16 elsewhere.
  v1::PrefillRequest request = PrefillOf("a", 0, inputs_.Slice(0, 4), v1::DTYPE_BF16);
  ASSERT_REPLY(const auto reply, low.Prefill(request));
  EXPECT_EQ(reply.output().dtype(), v1::DTYPE_F32);
  request.set_output_dtype(v1::DTYPE_BF16);
  EXPECT_TRUE(
      RefusedAs(low.Prefill(request), "INVALID_TENSOR_DTYPE", {{"field", "output_dtype"}, {"expected", "F32"}}));
  v1::DecodeRequest decode = DecodeOf({"a"}, 0, {inputs_.Token(4)});
  decode.set_output_dtype(v1::DTYPE_F16);
  EXPECT_TRUE(RefusedAs(low.Decode(decode), "INVALID_TENSOR_DTYPE"));
  EXPECT_EQ(low.TokenCount("a", 0), 4);

  GDN_ASSERT_OK_AND_ASSIGN(auto sliced, servers.Create("s"));
  request.clear_output_dtype();
  GDN_ASSERT_OK_AND_ASSIGN(const auto sum, sliced->Prefill(request));
  EXPECT_EQ(sum.output().dtype(), v1::DTYPE_F32);
  request.set_output_dtype(v1::DTYPE_BF16);
  GDN_ASSERT_OK_AND_ASSIGN(auto again, servers.Create("t"));
  GDN_ASSERT_OK_AND_ASSIGN(const auto narrow, again->Prefill(request));
  EXPECT_EQ(narrow.output().dtype(), v1::DTYPE_BF16);
  std::vector<float> rounded = Floats(sum.output());
  for (float& value : rounded) value = BF16ToFloat(FloatToBF16(value));
  EXPECT_EQ(Floats(narrow.output()), rounded);
}

// The channels, or features, of some heads of [tokens, all].
std::vector<float> Columns(const std::vector<float>& values, int64_t width,
                           std::vector<std::pair<int64_t, int64_t>> take) {
  std::vector<float> taken;
  for (size_t row = 0; row * static_cast<size_t>(width) < values.size(); ++row) {
    for (const auto& [begin, end] : take) {
      const auto at = values.begin() + static_cast<int64_t>(row) * width;
      taken.insert(taken.end(), at + begin, at + end);
    }
  }
  return taken;
}

TEST_F(HeadSliceSessions, StatesOfProjectedStepsAreTheWholeServersToTheBit) {
  constexpr int64_t kTokens = 21, kK = 32, kV = 32;  // H = 2, HV = 4
  TestServer whole({.models = {{"m", path_}}});
  SliceServers servers(path_, kHalves);
  const v1::ProjectedInput all = RandomProjected({kTokens}, /*seed=*/5);
  v1::PrefillRequest request;
  request.set_session("sessions/s");
  *request.mutable_projected() = all;
  const Caller caller(whole);
  ASSERT_TRUE(caller.Create("s", "m").ok());
  ASSERT_REPLY(const auto expected, caller.Prefill(request));
  for (size_t i = 0; i < 2; ++i) {
    const Caller part(servers.server(i));
    ASSERT_TRUE(part.Create("s", "m").ok());
    const auto h = static_cast<int64_t>(i);
    const auto floats = [&](const v1::Tensor& tensor, int64_t width, std::vector<std::pair<int64_t, int64_t>> take,
                            int64_t features) {
      return AsTensor({kTokens, features}, Columns(Floats(tensor), width, std::move(take)));
    };
    v1::ProjectedInput& in = *request.mutable_projected();
    in = {};
    *in.mutable_mixed_qkv() = floats(all.mixed_qkv(), 4 * kK + 4 * kV,
                                     {{h * kK, (h + 1) * kK},
                                      {2 * kK + h * kK, 2 * kK + (h + 1) * kK},
                                      {4 * kK + 2 * h * kV, 4 * kK + 2 * (h + 1) * kV}},
                                     2 * kK + 2 * kV);
    *in.mutable_z() = floats(all.z(), 4 * kV, {{2 * h * kV, 2 * (h + 1) * kV}}, 2 * kV);
    *in.mutable_b() = floats(all.b(), 4, {{2 * h, 2 * h + 2}}, 2);
    *in.mutable_a() = floats(all.a(), 4, {{2 * h, 2 * h + 2}}, 2);
    ASSERT_REPLY(const auto reply, part.Prefill(request));
    EXPECT_EQ(Floats(reply.output()), Columns(Floats(expected.output()), 4 * kV, {{2 * h * kV, 2 * (h + 1) * kV}}));
  }
  ASSERT_REPLY(const auto file, caller.Export("s"));
  EXPECT_EQ(WorstStateError(JoinFiles(servers.Export("s")), file), 0.0);
}

TEST_F(HeadSliceSessions, ASessionMovesToSlicesAndBackToTheBit) {
  TestServer whole({.models = {{"m", path_}}});
  const Caller caller(whole);
  ASSERT_TRUE(caller.Create("a", "m").ok());
  for (int layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(caller.Prefill(WithId(PrefillOf("a", layer, inputs_.Slice(0, 20)), "p")).ok());
    ASSERT_TRUE(caller.Decode(DecodeOf({"a"}, layer, {inputs_.Slice(20, 5)})).ok());
  }
  v1::DecodeRequest draft = DecodeOf({"a"}, 1, {inputs_.Slice(25, 3)});
  draft.set_draft(true);
  ASSERT_TRUE(caller.Decode(draft).ok());
  ASSERT_REPLY(const auto file, caller.Export("a"));

  // A server of some heads takes its part of the whole file, or a file of its part.
  SliceServers servers(path_, kHalves);
  const Caller low(servers.server(0));
  const Caller high(servers.server(1));
  ASSERT_TRUE(low.Import("a", "m", file).ok());
  GDN_ASSERT_OK_AND_ASSIGN(const std::string high_file, SliceStateFile(file, kHalves[1]));
  ASSERT_TRUE(high.Import("a", "m", high_file).ok());
  EXPECT_EQ(low.TokenCount("a", 0), 25);
  const std::string joined = JoinFiles(servers.Export("a"));
  ASSERT_REPLY(const auto back, caller.Import("b", "m", joined));
  EXPECT_EQ(back.layers(1).draft_length(), 3);
  EXPECT_EQ(caller.State("b"), caller.State("a"));
  // The last step with an id happened, and its output went with the other heads.
  EXPECT_TRUE(RefusedAs(high.Prefill(WithId(PrefillOf("a", 0, inputs_.Slice(0, 20)), "p")), "REPLY_DROPPED"));

  // And nothing else is taken for a part.
  EXPECT_TRUE(RefusedAs(low.Import("c", "m", high_file), "STATE_MISMATCH", {{"field", "heads"}}));
  EXPECT_TRUE(RefusedAs(caller.Import("c", "m", high_file), "STATE_MISMATCH", {{"field", "heads"}}));
  TestServer other({.models = {{"m", GoldenPath("qwen3_5_1")}}, .load = {.heads = kHalves[0]}});
  EXPECT_TRUE(RefusedAs(Caller(other).Import("c", "m", file), "STATE_MISMATCH", {{"field", "model_fingerprint"}}));
}

// The call, again where its time was over: on a busy machine it may be, though nothing is wrong.
template <typename Call>
auto Patiently(const Call& call) -> decltype(call()) {
  auto result = call();
  for (int i = 0; i < 200 && !result.ok(); ++i) result = call();
  return result;
}

TEST_F(HeadSliceSessions, AStepThatOneServerMissedIsMadeGoodByTheSameCall) {
  SliceServers servers(path_, kHalves);
  TcpProxy proxy(servers.server(1).server().port());
  const auto cut = Client::Connect("127.0.0.1:" + std::to_string(proxy.port()));
  const DurableSessionOptions hasty{.try_timeout = absl::Milliseconds(300), .overall_timeout = absl::Milliseconds(900)};
  GDN_ASSERT_OK_AND_ASSIGN(
      auto sliced, Patiently([&] {
        return SlicedSession::Create({servers.clients()[0], cut.get()}, SliceServers::RequestOf("s"), hasty);
      }));
  ASSERT_TRUE(Patiently([&] { return sliced->Prefill(PrefillOf("s", 0, inputs_.Slice(0, 20))); }).ok());
  const Caller low(servers.server(0));
  const Caller high(servers.server(1));
  const v1::DecodeRequest step = DecodeOf({"s"}, 0, {inputs_.Token(20)});
  proxy.DropReplies();                                  // it takes the step, and nobody hears of it
  constexpr char kWho[] = "the server of heads 2-3/4";  // once the other has answered
  std::string lost;
  for (int i = 0; i < 200 && lost.find(kWho) == std::string::npos; ++i) {
    lost = std::string(sliced->Decode(step).status().message());
  }
  EXPECT_THAT(lost, HasSubstr(kWho));
  EXPECT_EQ(low.TokenCount("s", 0), 21);
  EXPECT_EQ(sliced->Decode(DecodeOf({"s"}, 0, {inputs_.Token(21)})).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(sliced->AcceptTokens(0).ok());
  EXPECT_EQ(low.TokenCount("s", 0), 21);
  proxy.CloseConnections();
  GDN_ASSERT_OK_AND_ASSIGN(const auto made_good, Patiently([&] { return sliced->Decode(step); }));
  EXPECT_EQ(low.TokenCount("s", 0), 21);
  EXPECT_EQ(high.TokenCount("s", 0), 21);
  ASSERT_TRUE(Patiently([&] { return sliced->Decode(DecodeOf({"s"}, 0, {inputs_.Token(21)})); }).ok());

  // It is the sum that an undisturbed session gives.
  GDN_ASSERT_OK_AND_ASSIGN(auto calm, servers.Create("t"));
  ASSERT_TRUE(calm->Prefill(PrefillOf("t", 0, inputs_.Slice(0, 20))).ok());
  GDN_ASSERT_OK_AND_ASSIGN(const auto expected, calm->Decode(DecodeOf({"t"}, 0, {inputs_.Token(20)})));
  EXPECT_EQ(made_good.output().data(), expected.output().data());
  ASSERT_TRUE(Patiently([&] { return sliced->Delete(); }).ok());
  EXPECT_EQ(high.Get("s").reason(), "SESSION_NOT_FOUND");
}

TEST_F(HeadSliceSessions, WhatAllRefuseLeavesTheNextCallFree) {
  SliceServers servers(path_, kHalves);
  GDN_ASSERT_OK_AND_ASSIGN(auto sliced, servers.Create("s"));
  EXPECT_EQ(ErrorReason(sliced->Prefill(PrefillOf("s", 9, inputs_.Slice(0, 4))).status()), "LAYER_NOT_GDN");
  v1::PrefillRequest nothing;
  EXPECT_EQ(ErrorReason(sliced->Prefill(nothing).status()), "INPUT_MISSING");
  ASSERT_TRUE(sliced->Prefill(PrefillOf("s", 0, inputs_.Slice(0, 4))).ok());
  EXPECT_EQ(sliced->token_count(0), 4);
}

TEST_F(HeadSliceSessions, ServersThatAreNotOneModelAreRefusedAndMakeNoSession) {
  SliceServers servers(path_, kHalves);
  TestServer whole({.models = {{"m", path_}}});
  TestServer other({.models = {{"m", GoldenPath("qwen3_5_1")}}, .load = {.heads = kHalves[1]}});
  Client whole_client(whole.channel()), other_client(other.channel());
  Client* low = servers.clients()[0];
  Client* high = servers.clients()[1];
  const auto create = [](const std::vector<Client*>& clients) {
    return SlicedSession::Create(clients, SliceServers::RequestOf("s")).status();
  };
  const auto expect = [&](const std::vector<Client*>& clients, const char* field, const char* message) {
    const absl::Status status = create(clients);
    EXPECT_EQ(ErrorReason(status), reason::kStateMismatch) << status;
    EXPECT_EQ(ErrorMetadata(status)["field"], field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  expect({low}, "heads", "value heads 2 to 3");
  expect({high}, "heads", "value heads 0 to 1");
  expect({low, high, low}, "heads", "on two servers");
  expect({&whole_client, low}, "heads", "on two servers");
  expect({low, &other_client}, "model_fingerprint", "different models");
  EXPECT_EQ(ErrorReason(create({})), reason::kInvalidSpec);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(Caller(servers.server(i)).Get("s").reason(), "SESSION_NOT_FOUND");
  EXPECT_TRUE(create({high, low}).ok());
  EXPECT_TRUE(create({&whole_client}).ok());
}

}  // namespace
}  // namespace gdn::sliced_session_test
