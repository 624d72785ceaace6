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
#include "tests/integration/support/step_parts.h"
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

// Threads that step, accept, fork and delete the same sessions. At the end the sessions that are left are whole.
TEST_F(Concurrency, ManyStepsOfTheSameSessionsGetCanonicalAnswersAndLeaveNothingBehind) {
  constexpr int kThreads = 6;
  constexpr int kCallsPerThread = 50;
  const std::vector<std::string> ids = {"a", "b", "c", "d"};
  const std::set<std::string> allowed = {"",
                                         "SESSION_NOT_FOUND",
                                         "SESSION_BUSY",
                                         "SESSION_EXISTS",
                                         "CALL_CANCELLED",
                                         "DEADLINE_EXCEEDED",
                                         "DRAFT_PENDING",
                                         "TOO_MANY_TOKENS",
                                         "VALUE_OUT_OF_RANGE"};
  std::atomic<int> computed{0};
  const auto check = [&](const std::string& reason, const std::string& message) {
    computed += reason.empty() ? 1 : 0;
    EXPECT_EQ(allowed.count(reason), 1u) << message;
  };
  const auto check_status = [&](const grpc::Status& status) {
    if (status.error_code() == grpc::StatusCode::CANCELLED) return;
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return;
    check(status.ok() ? "" : ErrorInfoOf(status).reason(), status.error_message());
  };
  const auto client = [&](uint64_t seed) {
    Random random(seed);
    StepMixer mixer(seed);
    for (int i = 0; i < kCallsPerThread; ++i) {
      const std::string& id = ids[static_cast<size_t>(random.NextInt(0, 3))];
      switch (random.NextInt(0, 11)) {
        case 0:
          check_status(caller_.Create(id, "m").status);
          break;
        case 1:
          check_status(caller_.Delete(id).status);
          break;
        case 2:
          if (const std::string& child = ids[static_cast<size_t>(random.NextInt(0, 3))]; child != id) {
            check_status(caller_.Fork(id, {child}).status);
          }
          break;
        case 3:
          check_status(caller_.Export(id).status);
          break;
        case 4:
          check_status(caller_.Accept(id, random.NextInt(0, 2)).status);
          break;
        default: {
          std::vector<StepPart> parts;
          for (const std::string& row : ids) {
            if (random.NextInt(0, 1) == 0) continue;
            // Whatever draft the session may have by then.
            std::vector<int> draft;
            if (random.NextInt(0, 1) == 0) draft = {-1, 0, 0};
            parts.push_back(mixer.NextPart(row, draft));
          }
          if (parts.empty()) break;
          v1::StepRequest step = StepOf(parts, random.NextInt(0, 2));
          step.set_partial_ok(random.NextInt(0, 3) > 0);
          if (random.NextInt(0, 1) == 1) step.set_request_id("r" + std::to_string(random.Next()));
          const auto context = caller_.NewContext();
          std::thread cancel;
          if (const int end = random.NextInt(0, 5); end == 0) {
            context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Microseconds(random.NextInt(50, 3000))));
          } else if (end == 1) {
            cancel = std::thread([&] { context->TryCancel(); });
          }
          const auto outcome = caller_.Step(*context, step);
          if (cancel.joinable()) cancel.join();
          check_status(outcome.status);
          for (const auto& row : outcome.reply.row_statuses()) {
            check(row.code() == 0 ? "" : ErrorInfoOf(row).reason(), row.message());
          }
        }
      }
    }
  };
  for (const std::string& id : ids) ASSERT_TRUE(caller_.Create(id, "m").ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(client, 200 + static_cast<uint64_t>(i));
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(computed.load(), kThreads * kCallsPerThread / 10);
  for (const std::string& id : ids) {
    if (!caller_.Get(id).ok()) continue;
    for (int layer = 0; layer < 3; ++layer) EXPECT_TRUE(WaitForCalls(server_, id, layer, 0));
    // Its state can be exported, and goes on as the file's does.
    ASSERT_REPLY(const std::string file, caller_.Export(id));
    ASSERT_TRUE(caller_.Import(id + "-twin", "m", file).ok());
    EXPECT_EQ(caller_.State(id), caller_.State(id + "-twin"));
    for (int layer = 0; layer < 3; ++layer) {
      StepPart part = {.id = id, .tokens = inputs_.Slice(0, 2)};
      part.accept = 0;
      ASSERT_REPLY(const auto here, caller_.Step(StepOf({part}, layer)));
      EXPECT_EQ(here.output().data(), SendAlone(caller_, id + "-twin", part, layer)) << id << " layer " << layer;
    }
    EXPECT_TRUE(caller_.Delete(id).ok() && caller_.Delete(id + "-twin").ok());
  }
  const auto info = caller_.Info();
  EXPECT_EQ(info.reply.session_count(), 0);
  EXPECT_EQ(info.reply.state_bytes_used(), 0);
  EXPECT_EQ(server_.batcher().queued_steps(), 0u);
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

// A step with prompts is several jobs, which are all taken or none.
TEST_F(Concurrency, AStepWithMoreJobsThanThereIsRoomForIsRefusedAndLeavesNoTrace) {
  TestServer small({.models = {{"m", GoldenPath(kSet)}}, .engine = {.max_queued_steps = 3}});
  const Caller caller(small);
  const std::vector<std::string> ids = {"a", "b", "c", "d"};
  std::vector<StepPart> prompts;
  std::string fresh;
  for (const std::string& id : ids) {
    ASSERT_TRUE(caller.Create(id, "m").ok());
    fresh += caller.State(id);
    prompts.push_back({.id = id, .tokens = inputs_.Slice(0, 5), .kind = v1::STEP_KIND_PREFILL});
  }
  EXPECT_TRUE(RefusedAs(caller.Step(StepOf(prompts)), "QUEUE_FULL")) << "four jobs, even of an idle engine";
  v1::StepRequest partial = StepOf(prompts);
  partial.set_partial_ok(true);
  EXPECT_TRUE(RefusedAs(caller.Step(partial), "QUEUE_FULL"));
  std::string after;
  for (const std::string& id : ids) after += caller.State(id);
  EXPECT_EQ(after, fresh);
  prompts.front().kind = prompts.back().kind = v1::STEP_KIND_DECODE;
  ASSERT_REPLY(const auto reply, caller.Step(StepOf(prompts)));
  EXPECT_EQ(reply.token_counts_size(), 4);
  for (const int64_t count : reply.token_counts()) EXPECT_EQ(count, 5);
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
