// Steps through rings: the same replies, bits and errors as in messages, whatever the client does with its ring.
// The suites that end in _over_rings try the service's promises over rings.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "client/cpp/client.h"
#include "client/cpp/step_place.h"
#include "ring/ring_layout.h"
#include "server/rpc/transport/rpc_status.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/support/assert_ok.h"
#include "tests/support/random.h"
#include "tests/support/raw_ring.h"
#include "tests/support/temp_folder.h"

namespace gdn::ring_service_test {
namespace {

constexpr char kSet[] = "qwen3_next_1";
constexpr int kLayer = 0;

class RingService : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(client_.OpenRing({.entries = 16, .area_bytes = 1 << 20}).ok());
    for (const char* id : {"ring", "message"}) ASSERT_TRUE(caller_.Create(id, "next").ok());
  }
  // The outcome of a call of the client, for comparison with one of the caller's.
  template <typename Reply>
  static Outcome<Reply> OutcomeOf(const absl::StatusOr<Reply>& reply) {
    return {ToGrpcStatus(reply.status()), reply.ok() ? *reply : Reply()};
  }

  static std::map<std::string, std::string> Metadata(const grpc::Status& status) {
    const google::rpc::ErrorInfo info = ErrorInfoOf(status);
    return {info.metadata().begin(), info.metadata().end()};
  }

  const TempFolder folder_;
  TestServer server_{{.models = {{"next", GoldenPath(kSet)}}, .shared_memory = {.directory = folder_.path()}}};
  const Caller caller_{server_};
  Client client_{server_.channel()};
  const Tokens inputs_ = GoldenInputs(kSet, 0);
};

TEST_F(RingService, StepsHaveTheRepliesOfMessages) {
  const auto compare = [](auto ring, auto message) {
    ASSERT_TRUE(ring.ok()) << ring.status();
    ASSERT_TRUE(message.ok()) << message.status.error_message();
    ring->set_compute_time_us(message.reply.compute_time_us());
    EXPECT_EQ(ring->SerializeAsString(), message.reply.SerializeAsString());
  };
  compare(client_.Prefill(PrefillOf("ring", kLayer, inputs_.Slice(0, 40))),
          caller_.Prefill(PrefillOf("message", kLayer, inputs_.Slice(0, 40))));
  compare(client_.Decode(DecodeOf({"ring"}, kLayer, {inputs_.Token(40)})),
          caller_.Decode(DecodeOf({"message"}, kLayer, {inputs_.Token(40)})));
  compare(client_.Step(AsStep(DecodeOf({"ring"}, kLayer, {inputs_.Token(41)}))),
          caller_.Step(AsStep(DecodeOf({"message"}, kLayer, {inputs_.Token(41)}))));
  for (const char* id : {"ring", "message"}) {
    v1::DecodeRequest draft = DecodeOf({id}, kLayer, {inputs_.Slice(42, 3)});
    draft.set_draft(true);
    const auto drafted = client_.Decode(draft);
    ASSERT_TRUE(drafted.ok()) << drafted.status();
    const auto accepted = client_.AcceptTokens(AcceptOf({id}, {2}));
    ASSERT_TRUE(accepted.ok()) << accepted.status();
  }
  EXPECT_TRUE(client_.UsesRing());
  EXPECT_EQ(caller_.State("ring"), caller_.State("message"));
  EXPECT_EQ(caller_.TokenCount("ring", kLayer), 44);
}

TEST_F(RingService, EveryFieldOfARequestArrives) {
  // Each field in turn is wrong, and must be refused for the same reason.
  v1::DecodeRequest decode = DecodeOf({"ring"}, kLayer, {inputs_.Token(0)});
  const std::vector<std::function<void(v1::DecodeRequest&)>> changes = {
      [](auto& r) { r.set_layer(99); },
      [](auto& r) { r.add_lengths(5); },
      [](auto& r) { r.add_expected_token_counts(7); },
      [](auto& r) { r.add_session_epochs(99); },
      [](auto& r) { r.set_output_dtype(static_cast<v1::DType>(77)); },
      [](auto& r) { r.set_request_id(std::string(1000, 'x')); },
      [](auto& r) { r.set_draft(true), r.add_draft_parents(5); },
      [](auto& r) { r.mutable_output_shared()->set_region("none"); },
      [](auto& r) { r.mutable_hidden_states()->mutable_hidden_states()->set_data("odd"); },
      [](auto& r) { r.mutable_hidden_states()->mutable_hidden_states()->set_dtype(v1::DTYPE_UNSPECIFIED); },
      [](auto& r) { r.mutable_hidden_states()->mutable_hidden_states()->add_shape(3); },
      [](auto& r) { r.add_sessions("sessions/nobody"); },
      [](auto& r) { r.clear_hidden_states(); },
      [](auto& r) { r.mutable_delta_rule()->set_scale(1); },
      [](auto& r) {
        *r.mutable_projected() = RandomProjected({1, 1}, 3), r.mutable_projected()->mutable_b()->clear_data();
      },
      [](auto& r) { r.add_sessions("sessions/nobody"), r.set_partial_ok(true); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    v1::DecodeRequest bad = decode;
    changes[i](bad);
    const auto ring = OutcomeOf(client_.Decode(bad));
    const auto message = caller_.Decode(bad);
    EXPECT_FALSE(message.ok()) << i;
    EXPECT_EQ(ring.status.error_code(), message.status.error_code()) << i;
    EXPECT_EQ(ring.status.error_message(), message.status.error_message()) << i;
    EXPECT_EQ(ring.reason(), message.reason()) << i;
    EXPECT_EQ(Metadata(ring.status), Metadata(message.status)) << i;
  }
}

TEST_F(RingService, ARetryGetsTheReplyOfEitherWay) {
  for (const bool ring_first : {true, false}) {
    const std::string id = ring_first ? "ring" : "message", request_id = "r";
    const auto step = WithId(DecodeOf({id}, kLayer, {inputs_.Token(0)}), request_id);
    const auto first = ring_first ? OutcomeOf(client_.Decode(step)) : caller_.Decode(step);
    const auto second = ring_first ? caller_.Decode(step) : OutcomeOf(client_.Decode(step));
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(first.reply.output().data(), second.reply.output().data());
    EXPECT_EQ(caller_.TokenCount(id, kLayer), 1);
  }
}

TEST_F(RingService, ALongReplyIsFetchedInParts) {
  // F32 outputs of BF16 inputs are twice as long as the client expects.
  for (const char* id : {"ring", "message"}) {
    v1::PrefillRequest prompt = PrefillOf(id, kLayer, RandomTokens(1200, 5), v1::DTYPE_BF16);
    prompt.set_output_dtype(v1::DTYPE_F32);
    if (std::string(id) == "message") {
      ASSERT_REPLY(const auto expected, caller_.Prefill(prompt));
      v1::PrefillRequest same = prompt;
      same.set_session("sessions/ring");
      const auto reply = client_.Prefill(same);
      ASSERT_TRUE(reply.ok()) << reply.status();
      EXPECT_EQ(reply->output().data(), expected.output().data());
    }
  }
  EXPECT_TRUE(client_.UsesRing());
}

// Steps in a place, and the same in messages of another session.
class PlacedSteps : public RingService {
 protected:
  // The request without its tensor's data.
  template <typename Request>
  static Request Emptied(Request request) {
    request.mutable_hidden_states()->mutable_hidden_states()->clear_data();
    return request;
  }
  // Makes a step in the place and expects the reply and bits of a message.
  template <typename Request>
  void Compare(StepPlace& place, const Request& placed, const Request& message) {
    const std::string& data = placed.hidden_states().hidden_states().data();
    ASSERT_EQ(place.input().size(), data.size());
    std::ranges::copy(data, place.input().begin());
    auto reply = place.Call(Emptied(placed));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->output().data(), "");
    reply->mutable_output()->set_data(place.output().data(), place.output().size());
    auto expected = [&] {
      if constexpr (std::is_same_v<Request, v1::PrefillRequest>)
        return caller_.Prefill(message);
      else
        return caller_.Decode(message);
    }();
    ASSERT_TRUE(expected.ok()) << expected.status.error_message();
    reply->set_compute_time_us(expected.reply.compute_time_us());
    EXPECT_EQ(reply->SerializeAsString(), expected.reply.SerializeAsString());
    EXPECT_EQ(std::string(place.input().begin(), place.input().end()), data);
  }
  void CompareDecodes(StepPlace& place, int first, int count) {
    for (int token = first; token < first + count; ++token) {
      Compare(place, DecodeOf({"ring"}, kLayer, {inputs_.Token(token)}),
              DecodeOf({"message"}, kLayer, {inputs_.Token(token)}));
    }
  }
};

TEST_F(PlacedSteps, HaveTheRepliesOfMessages) {
  const auto prefill = PrefillOf("ring", kLayer, inputs_.Slice(0, 40));
  const auto prefills = StepPlace::Make(client_, Emptied(prefill));
  ASSERT_TRUE(prefills.ok()) << prefills.status();
  Compare(**prefills, prefill, PrefillOf("message", kLayer, inputs_.Slice(0, 40)));
  EXPECT_TRUE((*prefills)->in_ring());
  const auto decodes = StepPlace::Make(client_, Emptied(DecodeOf({"ring"}, kLayer, {inputs_.Token(40)})));
  ASSERT_TRUE(decodes.ok()) << decodes.status();
  CompareDecodes(**decodes, 40, 5);
  EXPECT_TRUE((*decodes)->in_ring());
  EXPECT_EQ(caller_.State("ring"), caller_.State("message"));
}

TEST_F(PlacedSteps, AreMessagesWithoutARingAndWithoutRoomInIt) {
  Client plain(server_.channel());
  const auto outside = StepPlace::Make(plain, Emptied(DecodeOf({"ring"}, kLayer, {inputs_.Token(0)})));
  ASSERT_TRUE(outside.ok()) << outside.status();
  CompareDecodes(**outside, 0, 2);
  EXPECT_FALSE((*outside)->in_ring());

  std::vector<std::unique_ptr<StepPlace>> places;
  for (int i = 0; i < 9; ++i) {  // one more than half of the ring's entries
    auto made = StepPlace::Make(client_, Emptied(DecodeOf({"ring"}, kLayer, {inputs_.Token(0)})));
    ASSERT_TRUE(made.ok()) << made.status();
    places.push_back(*std::move(made));
    CompareDecodes(*places.back(), 2 + i, 1);
    EXPECT_EQ(places.back()->in_ring(), i < 8) << i;
  }
  places.front() = nullptr;
  CompareDecodes(*places.back(), 11, 1);
  EXPECT_TRUE(places.back()->in_ring()) << "room was made";
  // A call that the ring would have room for without them.
  const auto prefill = PrefillOf("ring", kLayer, RandomTokens(1900, 5));
  const auto reply = client_.Prefill(prefill);
  EXPECT_TRUE(reply.ok()) << reply.status();
}

TEST_F(PlacedSteps, MoveToAnotherRingWithTheirInputs) {
  const auto place = StepPlace::Make(client_, Emptied(DecodeOf({"ring"}, kLayer, {inputs_.Token(0)})));
  ASSERT_TRUE(place.ok()) << place.status();
  CompareDecodes(**place, 0, 2);
  const std::string input((*place)->input().begin(), (*place)->input().end());
  ASSERT_TRUE(client_.OpenRing({.entries = 2, .area_bytes = 1 << 20}).ok());
  const auto again = (*place)->Call(Emptied(DecodeOf({"ring"}, kLayer, {inputs_.Token(1)})));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(std::string((*place)->input().begin(), (*place)->input().end()), input);
  EXPECT_TRUE((*place)->in_ring());
  EXPECT_EQ(caller_.TokenCount("ring", kLayer), 3);
}

TEST_F(PlacedSteps, AreRefusedAsMessagesAre) {
  const v1::DecodeRequest good = DecodeOf({"ring"}, kLayer, {inputs_.Token(0)});
  EXPECT_EQ(ErrorReason(StepPlace::Make(client_, good).status()), reason::kInvalidTensorData) << "it has data";
  v1::DecodeRequest bad = Emptied(good);
  bad.mutable_hidden_states()->mutable_hidden_states()->set_shape(0, -1);
  EXPECT_EQ(ErrorReason(StepPlace::Make(client_, bad).status()), reason::kInvalidTensorShape);
  bad.mutable_hidden_states()->mutable_hidden_states()->set_shape(0, int64_t{1} << 40);
  EXPECT_EQ(ErrorReason(StepPlace::Make(client_, bad).status()), reason::kMessageTooLarge) << "before memory is taken";

  const auto place = StepPlace::Make(client_, Emptied(good));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ((*place)->input(1).size(), 0u);
  EXPECT_EQ((*place)->input(99).size(), 0u);
  CompareDecodes(**place, 0, 1);
  v1::DecodeRequest nobody = Emptied(good);
  nobody.set_sessions(0, "sessions/nobody");
  EXPECT_EQ(ErrorReason((*place)->Call(nobody).status()), reason::kSessionNotFound);
  EXPECT_EQ((*place)->output().size(), 0u);
  v1::DecodeRequest larger = Emptied(good);
  larger.mutable_hidden_states()->mutable_hidden_states()->set_shape(1, 2);
  EXPECT_EQ(ErrorReason((*place)->Call(larger).status()), reason::kInvalidTensorShape);
  v1::DecodeRequest long_id = Emptied(good);
  long_id.set_request_id(std::string(10'000, 'x'));  // more than the place has room for: a message
  EXPECT_EQ(ErrorReason((*place)->Call(long_id).status()),
            ErrorReason(client_.Decode(WithId(good, long_id.request_id())).status()));
  EXPECT_EQ(caller_.TokenCount("ring", kLayer), 1);
}

TEST_F(RingService, WhatDoesNotFitGoesAsAMessage) {
  const auto reply = client_.Prefill(PrefillOf("ring", kLayer, RandomTokens(4000, 6)));  // 1 MB and as much again
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_REPLY(const auto expected, caller_.Prefill(PrefillOf("message", kLayer, RandomTokens(4000, 6))));
  EXPECT_EQ(reply->output().data(), expected.output().data());
}

TEST_F(RingService, AClientThatIsToUseOneOpensItWithItsFirstStep) {
  const auto client = Client::Connect(server_.address(), {.ring = RingOptions{.entries = 16, .area_bytes = 1 << 20}});
  EXPECT_TRUE(client->GetServerInfo().ok());
  EXPECT_FALSE(client->UsesRing()) << "no step has needed it";
  EXPECT_EQ(client->Decode(DecodeOf({"message"}, kLayer, {inputs_.Token(0)})).status(), absl::OkStatus());
  EXPECT_TRUE(client->UsesRing());

  const int port = server_.server().port();
  const auto elsewhere = Client::Connect("dns:///127.0.0.1:" + std::to_string(port), {.ring = RingOptions()});
  EXPECT_EQ(elsewhere->Decode(DecodeOf({"message"}, kLayer, {inputs_.Token(1)})).status(), absl::OkStatus());
  EXPECT_FALSE(elsewhere->UsesRing()) << "its target might be any host";
}

TEST_F(RingService, AClientThatGetsNoneGoesOnInMessages) {
  const auto client = Client::Connect(server_.address(), {.ring = RingOptions{.area_bytes = int64_t{1} << 40}});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client->Decode(DecodeOf({"message"}, kLayer, {inputs_.Token(i)})).status(), absl::OkStatus());
  }
  EXPECT_FALSE(client->UsesRing());
}

TEST_F(RingService, ManyThreadsHaveTheBitsOfTheirOwnSessions) {
  constexpr int kThreads = 6, kSteps = 30;
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int thread = 0; thread < kThreads; ++thread) {
    const std::string id = "t" + std::to_string(thread);
    ASSERT_TRUE(caller_.Create(id, "next").ok());
    ASSERT_TRUE(caller_.Create(id + "m", "next").ok());
    threads.emplace_back([&, thread, id] {
      const Tokens tokens = RandomTokens(kSteps, static_cast<uint64_t>(thread));
      for (int i = 0; i < kSteps; ++i) {
        const auto reply = client_.Decode(DecodeOf({id}, kLayer, {tokens.Token(i)}));
        const auto expected = caller_.Decode(DecodeOf({id + "m"}, kLayer, {tokens.Token(i)}));
        if (reply.ok() && expected.ok() && reply->output().data() == expected.reply.output().data()) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kThreads * kSteps);
}

TEST_F(RingService, ATimeoutEndsACallThatWaits) {
  constexpr absl::Duration kTimeout = absl::Seconds(2);  // long enough for the step to be queued by then
  EngineBlocker blocker(server_.batcher());
  absl::Status late;
  std::thread call(
      [&] { late = client_.Decode(DecodeOf({"ring"}, kLayer, {inputs_.Token(0)}), {.timeout = kTimeout}).status(); });
  ASSERT_TRUE(WaitForQueuedSteps(server_, 1));
  const absl::Time queued = absl::Now();
  call.join();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  absl::SleepFor(queued + kTimeout + absl::Milliseconds(50) - absl::Now());  // the server's deadline has passed too
  blocker.Release();
  EXPECT_TRUE(WaitUntil([&] { return server_.batcher().queued_steps() == 0; }, "the step to be dropped"));
  EXPECT_EQ(caller_.TokenCount("ring", kLayer), 0) << "it was dropped before it began";
  EXPECT_EQ(client_.Decode(DecodeOf({"ring"}, kLayer, {inputs_.Token(0)})).status(), absl::OkStatus());
}

TEST_F(RingService, ADrainAnswersWhatIsInFlightAndEndsTheRing) {
  absl::StatusOr<v1::DecodeResponse> reply = absl::UnknownError("none");
  auto blocker = std::make_unique<EngineBlocker>(server_.batcher());
  std::thread call([&] { reply = client_.Decode(DecodeOf({"ring"}, kLayer, {inputs_.Token(0)})); });
  ASSERT_TRUE(WaitForQueuedSteps(server_, 1));
  std::thread drain([&] { EXPECT_TRUE(server_.Drain()); });
  absl::SleepFor(absl::Milliseconds(50));
  blocker->Release();
  call.join();
  EXPECT_EQ(reply.status(), absl::OkStatus());
  drain.join();
  EXPECT_FALSE(client_.UsesRing());
}

TEST_F(RingService, IsChargedAndRefusedAsOtherSharedMemory) {
  Client other(server_.channel());
  const absl::Status large = other.OpenRing({.entries = 16, .area_bytes = int64_t{1} << 40});
  EXPECT_EQ(large.code(), absl::StatusCode::kResourceExhausted) << large;
  EXPECT_EQ(ErrorReason(large), reason::kSharedMemoryExhausted);
  for (const int32_t entries : {-1, 3, 512}) {
    const absl::Status odd = other.OpenRing({.entries = entries, .area_bytes = 4096});
    EXPECT_EQ(odd.code(), absl::StatusCode::kInvalidArgument) << odd;
    EXPECT_EQ(ErrorMetadata(odd).at("field"), "ring_entries");
  }
  EXPECT_FALSE(other.UsesRing());
  EXPECT_EQ(caller_.Info().reply.shared_memory_bytes(), 1 << 20) << "what was refused holds nothing";
}

// A client that writes to its ring what it likes.
class HostileRing : public RingService {
 protected:
  std::unique_ptr<RawRing> Open() { return RawRing::Open(server_.stub(), std::make_unique<grpc::ClientContext>()); }
  // A decode of a session in the area, as the rules want it.
  static gdn_ring_submission Decode(const RawRing& opened, const std::string& id, const Tokens& token,
                                    uint64_t number) {
    v1::DecodeRequest request = DecodeOf({id}, kLayer, {token});
    const std::string data = request.hidden_states().hidden_states().data();
    request.mutable_hidden_states()->mutable_hidden_states()->clear_data();
    const std::string message = request.SerializeAsString();
    message.copy(opened.area(), message.size());
    data.copy(opened.area() + gdn_ring_aligned(message.size()), data.size());
    gdn_ring_submission submission = {};
    submission.id = number;
    submission.method = GDN_RING_DECODE;
    submission.message_bytes = message.size();
    submission.tensor_bytes[0] = data.size();
    submission.reply_offset = 8192;
    submission.reply_room = 8192;
    return submission;
  }
  void ExpectServed() {
    EXPECT_EQ(client_.Decode(DecodeOf({"message"}, kLayer, {RandomTokens(1, 9)})).status(), absl::OkStatus());
  }
};

TEST_F(HostileRing, BadSubmissionsEndTheRingAndNothingElse) {
  const std::vector<std::function<void(gdn_ring_submission&)>> changes = {
      [](auto& s) { s.method = 0; },
      [](auto& s) { s.method = 77; },
      [](auto& s) { s.request_offset = 64 << 10; },
      [](auto& s) { s.request_offset = ~uint64_t{0}; },
      [](auto& s) { s.message_bytes = ~uint64_t{0} - 10; },
      [](auto& s) { s.tensor_bytes[4] = ~uint64_t{0}; },
      [](auto& s) { s.tensor_bytes[0] = s.tensor_bytes[1] = uint64_t{1} << 63; },
      [](auto& s) { s.reply_offset = ~uint64_t{0}; },
      [](auto& s) { s.reply_room = ~uint64_t{0}; },
      [](auto& s) { s.method = GDN_RING_FETCH, s.reply_room = ~uint64_t{0}; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    const auto opened = Open();
    gdn_ring_submission bad = Decode(*opened, "ring", inputs_.Token(0), 1);
    changes[i](bad);
    opened->Submit(bad);
    EXPECT_TRUE(opened->EndsAs(GDN_RING_BROKEN)) << i;
    EXPECT_EQ(GDN_RING_LOAD(opened->header().completed), 0u) << i;
    ExpectServed();
  }
  EXPECT_EQ(caller_.TokenCount("ring", kLayer), 0);
}

TEST_F(HostileRing, ANumberThatIsInFlightMayNotComeAgain) {
  const auto opened = Open();
  EngineBlocker blocker(server_.batcher());
  const gdn_ring_submission step = Decode(*opened, "ring", inputs_.Token(0), 1);
  opened->Submit(step);
  ASSERT_TRUE(WaitForQueuedSteps(server_, 1));
  opened->Submit(step);
  EXPECT_TRUE(opened->EndsAs(GDN_RING_BROKEN));
  blocker.Release();
  ExpectServed();
}

TEST_F(HostileRing, MessagesThatAreRewrittenWhileTheyAreReadAreReadOnce) {
  // Whatever the server sees of this, it checks what it computes: the call succeeds or is refused.
  const auto opened = Open();
  const gdn_ring_submission step = Decode(*opened, "ring", inputs_.Token(0), 0);
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (uint64_t i = 0; !over; ++i) opened->area()[i * 7919 % (step.message_bytes + 64)] ^= static_cast<char>(i);
  });
  for (uint64_t number = 1; number <= 300; ++number) {
    gdn_ring_submission next = step;
    next.id = number;
    opened->Submit(next);
    ASSERT_TRUE(RawRing::Becomes([&] { return GDN_RING_LOAD(opened->header().completed) == number; })) << number;
  }
  over = true;
  writer.join();
  EXPECT_EQ(GDN_RING_LOAD(opened->header().ended), GDN_RING_OPEN);
  ExpectServed();
}

TEST_F(HostileRing, RandomSubmissionsHarmNobodyElse) {
  Random random(11);
  for (int round = 0; round < 40; ++round) {
    const auto opened = Open();
    for (int i = 0; i < 8; ++i) {
      gdn_ring_submission submission = Decode(*opened, "ring", inputs_.Token(0), static_cast<uint64_t>(i));
      auto* const bytes = reinterpret_cast<unsigned char*>(&submission);
      for (int change = random.NextInt(1, 3); change > 0; --change) {
        bytes[random.NextInt(0, sizeof(submission) - 1)] = static_cast<unsigned char>(random.NextInt(0, 255));
      }
      opened->Submit(submission);
    }
  }
  ExpectServed();
}

TEST_F(HostileRing, AClientThatGoesLeavesNothing) {
  {
    const auto opened = Open();
    EngineBlocker blocker(server_.batcher());
    opened->Submit(Decode(*opened, "ring", inputs_.Token(0), 1));
    ASSERT_TRUE(WaitForQueuedSteps(server_, 1));
    opened->Leave();
    blocker.Release();
  }
  const auto released = [this] { return caller_.Info().reply.shared_memory_bytes() == 1 << 20; };
  for (int i = 0; i < 10'000 && !released(); ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(released());
  ExpectServed();
}

// A refusal waits a little before it is sent, and a cancellation ends that wait on the poller's own thread.
TEST_F(HostileRing, ACancelledRefusalHoldsNobodyUp) {
  TestServer full({.models = {{"next", GoldenPath(kSet)}},
                   .memory = {.call_bytes = 24 << 10},  // enough for one call
                   .shared_memory = {.directory = folder_.path()}});
  const auto opened = RawRing::Open(full.stub(), std::make_unique<grpc::ClientContext>());
  ASSERT_NE(opened, nullptr);
  const Caller caller(full);
  ASSERT_TRUE(caller.Create("ring", "next").ok());
  gdn_ring_submission step = Decode(*opened, "ring", inputs_.Token(0), 1000);
  EngineBlocker blocker(full.batcher());
  opened->Submit(step);  // holds what there is
  ASSERT_TRUE(WaitForQueuedSteps(full, 1));
  for (uint32_t number = 1; number <= 20; ++number) {
    step.id = number;
    opened->Submit(step);
    gdn_ring_submission cancel = {};
    cancel.id = number;
    cancel.method = GDN_RING_CANCEL;
    opened->Submit(cancel);
    ASSERT_TRUE(RawRing::Becomes([&] { return GDN_RING_LOAD(opened->header().completed) == number; })) << number;
    const auto code = static_cast<absl::StatusCode>(opened->completion(number - 1).code);
    ASSERT_EQ(code, absl::StatusCode::kResourceExhausted) << "only such a refusal waits";
  }
}

}  // namespace
}  // namespace gdn::ring_service_test
