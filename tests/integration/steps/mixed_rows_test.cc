// Rows that are not a number, refused, cancelled or expired share launches with healthy ones as they happen to come. No
// call gets other bits for it, and a step that was cancelled or has expired is in once it was made again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/count_limits.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/step_parts.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/random.h"

namespace gdn::mixed_rows_test {
namespace {

using ::testing::Each;

constexpr char kSet[] = "qwen3_next_1";
constexpr int kLayer = 0;
constexpr int kSteps = 12;
constexpr int kLongest = 3;  // tokens of a step
constexpr int kBlockedRounds = 3;

enum class Fate { kHealthy, kBesideARefusedRow, kNotANumber, kCancelled, kExpired };

struct Client {
  std::string id;
  Fate fate;
};

class MixedRows : public ::testing::Test {
 protected:
  // The client's steps, one after the other; their outputs, one behind the other.
  std::string Run(const Client& client, uint64_t seed) {
    Random lengths(seed), chance(seed + 1000);
    std::string outputs;
    int64_t first = 0;
    for (int step = 0; step < kSteps; ++step) {
      const int64_t length = lengths.NextInt(1, kLongest);
      const v1::DecodeRequest request = WithId(Request(client, first, length), client.id + "." + std::to_string(step));
      first += length;
      Interrupt(client.fate, request, chance);
      Outcome<v1::DecodeResponse> outcome;
      // The interrupted call may still be on its way out.
      WaitUntil([&] { return (outcome = caller_.Decode(request)).status.error_code() != grpc::StatusCode::ABORTED; },
                "a step to get in");
      EXPECT_TRUE(outcome.ok()) << client.id << " step " << step << ": " << outcome.status.error_message();
      if (!outcome.ok()) break;
      EXPECT_EQ(outcome.reply.token_counts(0), first);
      if (client.fate == Fate::kBesideARefusedRow) {
        EXPECT_EQ(ErrorInfoOf(outcome.reply.row_statuses(1)).reason(), "NON_FINITE_INPUT");
        EXPECT_THAT(RowBytes(outcome.reply.output(), 1), Each('\0'));
      }
      EXPECT_EQ(std::isnan(Floats(outcome.reply.output())[0]), client.fate == Fate::kNotANumber);
      outputs += RowTokens(outcome.reply.output(), 0, length);
    }
    ++ended_;
    return outputs;
  }

  Tokens Poisoned(Tokens tokens) const {
    tokens.values[5] = std::numeric_limits<float>::quiet_NaN();
    return tokens;
  }

  v1::DecodeRequest Request(const Client& client, int64_t first, int64_t length) const {
    const Tokens tokens = inputs_.Slice(first, length);
    v1::DecodeRequest request;
    if (client.fate == Fate::kBesideARefusedRow) {
      request = DecodeOf({client.id, "refused"}, kLayer, {tokens, Poisoned(inputs_.Token(0))});
      request.set_partial_ok(true);
    } else {
      const bool poisoned = client.fate == Fate::kNotANumber;
      request = DecodeOf({client.id}, kLayer, {poisoned ? Poisoned(tokens) : tokens});
      request.set_allow_non_finite(poisoned);
    }
    // A call that the server hears of after its client has made it again must not be a step.
    request.add_expected_token_counts(first);
    if (request.sessions_size() > 1) request.add_expected_token_counts(0);
    return request;
  }

  // Makes the call in vain where that is the client's fate, or too late to be in vain.
  void Interrupt(Fate fate, const v1::DecodeRequest& request, Random& chance) {
    if (fate != Fate::kCancelled && fate != Fate::kExpired) return;
    const auto context = caller_.NewContext();
    std::thread cancel;
    if (fate == Fate::kExpired) {
      context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Microseconds(chance.NextInt(50, 3000))));
    } else {
      cancel = std::thread([&context, yields = chance.NextInt(0, 1000)] {
        for (int i = 0; i < yields; ++i) std::this_thread::yield();
        context->TryCancel();
      });
    }
    const auto outcome = caller_.Decode(*context, request);
    if (cancel.joinable()) cancel.join();
    const grpc::StatusCode expected =
        fate == Fate::kExpired ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED;
    if (outcome.status.error_code() == expected) {
      ++(fate == Fate::kExpired ? expired_ : cancelled_);
    } else {
      EXPECT_TRUE(outcome.ok()) << outcome.status.error_message();
    }
  }

  TestServer server_{{.models = {{"m", GoldenPath(kSet)}}}};
  const Caller caller_{server_};
  const Tokens inputs_ = RandomTokens(kSteps * kLongest, 1);
  std::atomic<int> cancelled_{0}, expired_{0}, ended_{0};
};

TEST_F(MixedRows, GetTheBitsOfRowsAloneWhateverBecomesOfTheirNeighbours) {
  const std::vector<Client> clients = {{"a", Fate::kHealthy},      {"b", Fate::kHealthy},
                                       {"c", Fate::kHealthy},      {"beside", Fate::kBesideARefusedRow},
                                       {"nan", Fate::kNotANumber}, {"cancelled", Fate::kCancelled},
                                       {"expired", Fate::kExpired}};
  ASSERT_TRUE(caller_.Create("refused", "m").ok());
  const std::string fresh = caller_.State("refused");
  for (const Client& client : clients) ASSERT_TRUE(caller_.Create(client.id, "m").ok());

  std::vector<std::future<std::string>> outputs;
  for (int round = 0; round < kBlockedRounds; ++round) {
    // Steps that arrive while the engine is blocked share one launch. In the first round, some of them are cancelled or
    // expire.
    EngineBlocker blocker(server_.batcher());
    for (size_t i = outputs.size(); i < clients.size(); ++i) {
      outputs.push_back(std::async(std::launch::async, [&, i] { return Run(clients[i], i); }));
    }
    EXPECT_TRUE(WaitUntil(
        [&] {
          const bool interrupted = cancelled_.load() > 0 && expired_.load() > 0;
          return ended_.load() > 0 || (interrupted && server_.batcher().queued_steps() >= clients.size());
        },
        "every client's step to be queued"));
  }
  std::vector<std::string> mixed;
  for (auto& output : outputs) mixed.push_back(output.get());
  for (size_t i = 0; i < clients.size(); ++i) {
    if (clients[i].fate == Fate::kNotANumber) continue;
    SCOPED_TRACE(clients[i].id);
    const Client reference = {clients[i].id + ".alone", Fate::kHealthy};
    ASSERT_TRUE(caller_.Create(reference.id, "m").ok());
    EXPECT_EQ(mixed[i], Run(reference, i));
    EXPECT_EQ(caller_.State(clients[i].id), caller_.State(reference.id));
  }
  EXPECT_EQ(caller_.State("refused"), fresh);
}

// The next part of a session that has seen `count` tokens and has a draft of `draft` tokens; moves both on. Every part
// but a draft raises the count, so that a call that the server hears of too late is refused for its count.
StepPart NextPart(const std::string& id, Random& random, int64_t& count, int& draft) {
  StepPart part{.id = id};
  if (draft > 0) part.accept = random.NextInt(1, draft);
  count += part.accept.value_or(0);
  part.expected = count;
  part.kind = static_cast<v1::StepKind>(random.NextInt(1, 3));
  int tokens = random.NextInt(1, kLongest);
  if (part.kind == v1::STEP_KIND_PREFILL)
    tokens = std::vector<int>{1, 5, 40, 300}[static_cast<size_t>(random.NextInt(0, 3))];
  part.tokens = RandomTokens(tokens, random.NextInt(1, 1 << 30));
  draft = part.kind == v1::STEP_KIND_DRAFT ? tokens : 0;
  count += part.kind == v1::STEP_KIND_DRAFT ? 0 : tokens;
  return part;
}

TEST_F(MixedRows, OfStepsThatEndAtAnyMomentAreAppliedOnceAndGetTheBitsOfRowsAlone) {
  constexpr int kClients = 5;
  constexpr int kCalls = 20;
  constexpr int kRows = 2;
  const auto id_of = [](int client, int row) { return "s" + std::to_string(client) + "-" + std::to_string(row); };
  struct Sent {
    std::vector<StepPart> parts;
    std::string output;
  };
  std::vector<std::vector<Sent>> sent(kClients);
  const auto run = [&](int client) {
    Random random(static_cast<uint64_t>(client)), chance(static_cast<uint64_t>(client + 1000));
    std::vector<int64_t> counts(kRows, 0);
    std::vector<int> drafts(kRows, 0);
    for (int call = 0; call < kCalls; ++call) {
      Sent step;
      for (int row = 0; row < kRows; ++row) {
        const auto r = static_cast<size_t>(row);
        step.parts.push_back(NextPart(id_of(client, row), random, counts[r], drafts[r]));
      }
      const v1::StepRequest request = WithId(StepOf(step.parts), "r" + std::to_string(call));
      if (client > 0) {  // whose calls go in undisturbed
        const auto context = caller_.NewContext();
        std::thread cancel;
        if (call % 2 == 0) {
          context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Microseconds(chance.NextInt(50, 6000))));
        } else {
          cancel = std::thread([&context, wait = absl::Microseconds(chance.NextInt(0, 6000))] {
            absl::SleepFor(wait);
            context->TryCancel();
          });
        }
        const auto outcome = caller_.Step(*context, request);
        if (cancel.joinable()) cancel.join();
        const grpc::StatusCode code = outcome.status.error_code();
        EXPECT_TRUE(outcome.ok() || code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::DEADLINE_EXCEEDED)
            << outcome.status.error_message();
      }
      Outcome<v1::StepResponse> outcome;
      WaitUntil([&] { return (outcome = caller_.Step(request)).status.error_code() != grpc::StatusCode::ABORTED; },
                "a step to get in");
      EXPECT_TRUE(outcome.ok()) << id_of(client, 0) << " call " << call << ": " << outcome.status.error_message();
      if (!outcome.ok()) return;
      for (int row = 0; row < kRows; ++row)
        EXPECT_EQ(outcome.reply.token_counts(row), counts[static_cast<size_t>(row)]);
      step.output = outcome.reply.output().data();
      sent[static_cast<size_t>(client)].push_back(std::move(step));
    }
  };
  for (int client = 0; client < kClients; ++client) {
    for (int row = 0; row < kRows; ++row) {
      ASSERT_TRUE(caller_.Create(id_of(client, row), "m").ok());
      ASSERT_TRUE(caller_.Create(id_of(client, row) + ".alone", "m").ok());
    }
  }
  std::vector<std::thread> threads;
  for (int client = 0; client < kClients; ++client) threads.emplace_back(run, client);
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Sent>& calls : sent) {
    EXPECT_EQ(calls.size(), static_cast<size_t>(kCalls));
    for (const Sent& step : calls) {
      std::string alone;
      for (const StepPart& part : step.parts) alone += SendAlone(caller_, part.id + ".alone", part, kLayer);
      EXPECT_TRUE(step.output == alone) << step.parts.front().id;
    }
  }
  for (int client = 0; client < kClients; ++client) {
    for (int row = 0; row < kRows; ++row) {
      EXPECT_EQ(caller_.State(id_of(client, row)), caller_.State(id_of(client, row) + ".alone"));
    }
  }
}

TEST_F(MixedRows, ARowAtTheEndOfItsCountIsRefusedAndItsNeighbourSteps) {
  v1::CreateSessionRequest create;
  create.set_session_id("full");
  create.set_model("models/m");
  create.add_initial_states()->set_layer(kLayer);
  create.mutable_initial_states(0)->set_token_count(std::numeric_limits<int64_t>::max() - 1);
  EXPECT_TRUE(RefusedAs(caller_.Create(create), "INVALID_SPEC", {{"field", "token_count"}}));
  create.mutable_initial_states(0)->set_token_count(kMaxTokenCount - 2);
  ASSERT_TRUE(caller_.Create(create).ok());
  for (const char* id : {"a", "alone"}) ASSERT_TRUE(caller_.Create(id, "m").ok());

  for (int64_t token = 0; token < 4; ++token) {
    const Tokens input = inputs_.Token(token);
    v1::DecodeRequest request = DecodeOf({"a", "full"}, kLayer, {input, input});
    request.set_partial_ok(true);
    ASSERT_REPLY(const auto mixed, caller_.Decode(request));
    ASSERT_REPLY(const auto alone, caller_.Decode(DecodeOf({"alone"}, kLayer, {input})));
    EXPECT_EQ(RowBytes(mixed.output(), 0), RowBytes(alone.output(), 0));
    EXPECT_EQ(mixed.token_counts(0), token + 1);
    const bool refused = token >= 2;
    EXPECT_EQ(mixed.row_statuses(1).code() != 0, refused) << token;
    EXPECT_EQ(ErrorInfoOf(mixed.row_statuses(1)).reason(), refused ? "COUNT_LIMIT" : "") << token;
  }
  for (const v1::StepKind kind : {v1::STEP_KIND_DECODE, v1::STEP_KIND_DRAFT, v1::STEP_KIND_PREFILL}) {
    const StepPart more = {.id = "full", .tokens = inputs_.Token(0), .kind = kind};
    EXPECT_TRUE(RefusedAs(caller_.Step(StepOf({more}, kLayer)), "COUNT_LIMIT")) << v1::StepKind_Name(kind);
  }
  EXPECT_TRUE(RefusedAs(caller_.Prefill(PrefillOf("full", kLayer, inputs_.Slice(0, 2))), "COUNT_LIMIT"));
  EXPECT_EQ(caller_.TokenCount("full", kLayer), kMaxTokenCount);
}

}  // namespace
}  // namespace gdn::mixed_rows_test
