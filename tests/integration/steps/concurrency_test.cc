// Many clients at once, and the orderly end of a server. Bounded work, so that it also runs under ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/support/random.h"

namespace gdn::concurrency_test {
namespace {

constexpr char kSet[] = "qwen3_next_1";

class Concurrency : public ::testing::Test {
 protected:
  TestServer server_{{.models = {{"m", GoldenPath(kSet)}}}};
  const Caller caller_{server_};
  const Tokens inputs_ = GoldenInputs(kSet, 0);
};

TEST_F(Concurrency, ManyClientsOnTheSameSessionsGetCanonicalAnswersAndLeaveNothingBehind) {
  constexpr int kThreads = 6;
  constexpr int kCallsPerThread = 60;
  const std::vector<std::string> ids = {"a", "b", "c", "d"};
  const std::set<std::string> allowed = {"", "SESSION_NOT_FOUND", "SESSION_BUSY", "SESSION_EXISTS", "CALL_CANCELLED"};
  std::atomic<int> computed{0};
  const auto check = [&](const grpc::Status& status) {
    if (status.ok()) return ++computed, void();
    if (status.error_code() == grpc::StatusCode::CANCELLED ||
        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
      return;
    EXPECT_EQ(allowed.count(ErrorInfoOf(status).reason()), 1u) << status.error_message();
  };
  const auto client = [&](uint64_t seed) {
    Random random(seed);
    for (int i = 0; i < kCallsPerThread; ++i) {
      const std::string& id = ids[static_cast<size_t>(random.NextInt(0, 3))];
      const std::string& other = ids[static_cast<size_t>(random.NextInt(0, 3))];
      const int layer = random.NextInt(0, 2);
      const Tokens token = inputs_.Token(random.NextInt(0, 40));
      const auto context = caller_.NewContext();
      switch (random.NextInt(0, 9)) {
        case 0:
          check(caller_.Create(id, "m").status);
          break;
        case 1:
          check(caller_.Delete(id).status);
          break;
        case 2:
          check(caller_.Export(id, /*include_recurrent_state=*/true).status);
          break;
        case 3:
          check(caller_.Prefill(PrefillOf(id, layer, inputs_.Slice(0, random.NextInt(0, 40)))).status);
          break;
        case 4:
          check(caller_.Prefill(PrefillOf(id, layer, RandomTokens(600, seed))).status);
          break;
        case 5: {
          context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Microseconds(random.NextInt(50, 3000))));
          check(caller_.Decode(*context, DecodeOf({id}, layer, {token})).status);
          break;
        }
        case 6: {
          std::thread cancel([&] { context->TryCancel(); });
          check(caller_.Prefill(*context, PrefillOf(id, layer, RandomTokens(600, seed))).status);
          cancel.join();
          break;
        }
        default: {
          v1::DecodeRequest step = DecodeOf({id}, layer, {token});
          if (id != other) step = DecodeOf({id, other}, layer, {token, token});
          step.set_partial_ok(random.NextInt(0, 1) == 1);
          if (random.NextInt(0, 1) == 1) step.set_request_id("r" + std::to_string(random.Next()));
          check(caller_.Decode(step).status);
        }
      }
    }
  };
  for (const std::string& id : ids) ASSERT_TRUE(caller_.Create(id, "m").ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(client, 100 + static_cast<uint64_t>(i));
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(computed.load(), kThreads * kCallsPerThread / 10);

  // Cancelled calls end by themselves. Then every session can be deleted, with its states.
  for (const std::string& id : ids) {
    if (!caller_.Get(id).ok()) continue;
    for (int layer = 0; layer < 3; ++layer) EXPECT_TRUE(WaitForCalls(server_, id, layer, 0));
    EXPECT_TRUE(caller_.Delete(id).ok());
  }
  const auto info = caller_.Info();
  EXPECT_EQ(info.reply.session_count(), 0);
  EXPECT_EQ(info.reply.state_bytes_used(), 0);
  EXPECT_EQ(server_.batcher().queued_steps(), 0u);
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  EXPECT_TRUE(caller_.Prefill(PrefillOf("a", 0, inputs_)).ok());
}

// Clients that retry until each of their steps is in: none is lost, none is applied twice, whoever else is decoding.
TEST_F(Concurrency, RetriedStepsOfContendedSessionsAreAllAppliedOnce) {
  constexpr int kClients = 4;
  constexpr int kSteps = 20;
  for (const char* id : {"shared", "reference"}) ASSERT_TRUE(caller_.Create(id, "m").ok());
  std::atomic<int> next{0};  // the step that may go next: clients fight over it
  const auto client = [&] {
    while (next.load() < kSteps) {
      const int step = next.load();
      if (step >= kSteps) return;
      v1::DecodeRequest request = WithId(DecodeOf({"shared"}, 0, {inputs_.Token(step)}), "step" + std::to_string(step));
      request.add_expected_token_counts(step);
      const auto reply = caller_.Decode(request);
      if (reply.ok()) {
        EXPECT_EQ(reply.reply.token_counts(0), step + 1);
        int expected = step;
        next.compare_exchange_strong(expected, step + 1);
      } else {
        EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::ABORTED) << reply.status.error_message();
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) threads.emplace_back(client);
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kSteps; ++t) ASSERT_TRUE(caller_.Decode(DecodeOf({"reference"}, 0, {inputs_.Token(t)})).ok());
  EXPECT_EQ(caller_.State("shared"), caller_.State("reference"));
}

TEST_F(Concurrency, ManyStreamsAtOnceGiveTheBitsOfOneAlone) {
  constexpr int kStreams = 4;
  constexpr int kSteps = 20;
  const auto run = [&](const std::string& id) {
    EXPECT_TRUE(caller_.Create(id, "m").ok());
    std::vector<v1::StreamDecodeRequest> steps;
    for (int t = 0; t < kSteps; ++t) steps.push_back(StreamStep(DecodeOf({id}, 0, {inputs_.Token(t)})));
    grpc::ClientContext context;
    std::vector<std::string> outputs;
    for (const auto& reply : Converse(*server_.stub().StreamDecode(&context), steps)) {
      outputs.push_back(reply.result().output().data());
    }
    return outputs;
  };
  const std::vector<std::string> alone = run("alone");
  std::vector<std::future<std::vector<std::string>>> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(std::async(std::launch::async, run, "s" + std::to_string(i)));
  }
  for (auto& stream : streams) EXPECT_EQ(stream.get(), alone);
}

TEST_F(Concurrency, AServerThatStopsRefusesNewStepsAndFinishesAcceptedOnes) {
  EXPECT_EQ(HealthOf(server_), 1);
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  ASSERT_TRUE(caller_.Create("b", "m").ok());
  v1::DecodeRequest done = WithId(DecodeOf({"b"}, 0, {inputs_.Token(0)}), "done");
  ASSERT_REPLY(const auto stored, caller_.Decode(done));
  EngineBlocker blocker(server_.batcher());
  auto decode = std::async(std::launch::async, [&] { return caller_.Decode(DecodeOf({"a"}, 0, {inputs_.Token(0)})); });
  auto prefill =
      std::async(std::launch::async, [&] { return caller_.Prefill(PrefillOf("a", 1, RandomTokens(1100, 1))); });
  EXPECT_TRUE(WaitForQueuedSteps(server_, 2));
  auto stopped = std::async(std::launch::async, [&] { return server_.server().rpc().Stop(absl::Seconds(60)); });
  while (HealthOf(server_) == 1) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(HealthOf(server_), 2);
  Outcome<v1::DecodeResponse> refused;
  // Health turns a moment before steps are refused, so a first one may still get in.
  for (int layer = 1; layer < 3; ++layer) {
    const auto context = caller_.NewContext();
    context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
    refused = caller_.Decode(*context, DecodeOf({"b"}, layer, {inputs_.Token(1)}));
    if (refused.status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) break;
  }
  EXPECT_TRUE(RefusedAs(refused, "SERVER_DRAINING"));
  EXPECT_EQ(caller_.Decode(done).reply.SerializeAsString(), stored.SerializeAsString())
      << "stored replies need no step";
  blocker.Release();
  EXPECT_TRUE(decode.get().ok());
  EXPECT_EQ(prefill.get().reply.token_count(), 1100);
  EXPECT_TRUE(stopped.get());
}

TEST_F(Concurrency, AServerThatMayNotWaitStopsAllTheSame) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  EngineBlocker blocker(server_.batcher());
  auto decode = std::async(std::launch::async, [&] { return caller_.Decode(DecodeOf({"a"}, 0, {inputs_.Token(0)})); });
  EXPECT_TRUE(WaitForQueuedSteps(server_, 1));
  auto stopped = std::async(std::launch::async, [&] { return server_.server().rpc().Stop(absl::Milliseconds(50)); });
  EXPECT_FALSE(decode.get().ok());
  blocker.Release();
  EXPECT_FALSE(stopped.get());
}

TEST_F(Concurrency, TooManyWaitingStepsAreRefusedAndLeaveNoTrace) {
  TestServer small({.models = {{"m", GoldenPath(kSet)}}, .engine = {.max_queued_steps = 2}});
  const Caller caller(small);
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(caller.Create(id, "m").ok());
  const std::string fresh = caller.State("c");
  EngineBlocker blocker(small.batcher());
  const auto later = [&](const std::string& id) {
    return std::async(std::launch::async,
                      [&caller, this, id] { return caller.Decode(DecodeOf({id}, 0, {inputs_.Token(0)})); });
  };
  auto first = later("a");
  auto second = later("b");
  EXPECT_TRUE(WaitForQueuedSteps(small, 2));
  EXPECT_TRUE(RefusedAs(caller.Decode(DecodeOf({"c"}, 0, {inputs_.Token(0)})), "QUEUE_FULL"));
  blocker.Release();
  EXPECT_TRUE(first.get().ok() && second.get().ok());
  EXPECT_EQ(caller.State("c"), fresh);
  EXPECT_TRUE(caller.Decode(DecodeOf({"c"}, 0, {inputs_.Token(0)})).ok());
}

}  // namespace
}  // namespace gdn::concurrency_test
