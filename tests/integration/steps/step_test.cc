// Step: decodes, drafts and prefills of many sessions in one call. Each row has the bits of the same row sent alone by
// Decode, Prefill and AcceptTokens, is applied once, and is refused for the same reasons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/step_parts.h"

namespace gdn::step_test {
namespace {

constexpr char kSet[] = "qwen3_next_1";
constexpr int kLayer = 0;

using Part = StepPart;
using Mixer = StepMixer;

class StepTest : public ::testing::Test {
 protected:
  Tokens Next(int64_t count) { return RandomTokens(count, ++seed_); }

  Part Decode(const std::string& id, int64_t count) { return {.id = id, .tokens = Next(count)}; }
  Part Draft(const std::string& id, int64_t count) {
    return {.id = id, .tokens = Next(count), .kind = v1::STEP_KIND_DRAFT};
  }
  Part Prefill(const std::string& id, int64_t count) {
    return {.id = id, .tokens = Next(count), .kind = v1::STEP_KIND_PREFILL};
  }

  // Sends the part to the session `id` by the methods of old. Returns the bytes of its output.
  std::string Alone(const std::string& id, const Part& part) { return SendAlone(caller_, id, part, kLayer); }

  void Create(const std::string& id) { ASSERT_TRUE(caller_.Create(id, "m").ok()); }

  uint64_t seed_ = 0;
  TestServer server_{{.models = {{"m", GoldenPath(kSet)}}}};
  const Caller caller_{server_};
};

TEST_F(StepTest, MixedRowsHaveTheBitsOfTheirOwnCalls) {
  constexpr int kSessions = 7;
  constexpr int kRounds = 12;
  std::vector<std::vector<int>> drafts(kSessions);
  for (int i = 0; i < kSessions; ++i) {
    Create("s" + std::to_string(i));
    Create("t" + std::to_string(i));
  }
  Mixer mixer(7);
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    std::vector<Part> parts;
    for (int i = 0; i < kSessions; ++i) {
      parts.push_back(mixer.NextPart("s" + std::to_string(i), drafts[static_cast<size_t>(i)]));
    }
    ASSERT_REPLY(const auto reply, caller_.Step(StepOf(parts)));
    int64_t first = 0;
    for (int i = 0; i < kSessions; ++i) {
      const Part& part = parts[static_cast<size_t>(i)];
      SCOPED_TRACE(part.id + " kind " + std::to_string(part.kind) + " tokens " + std::to_string(part.tokens.count()) +
                   " accepts " + std::to_string(part.accept.value_or(-1)) + " path " +
                   ::testing::PrintToString(part.path));
      const std::string twin = "t" + std::to_string(i);
      const bool equal = TokenBytes(reply.output(), first, part.tokens.count()) == Alone(twin, part);
      EXPECT_TRUE(equal) << "other bits than alone";
      EXPECT_EQ(reply.token_counts(i), caller_.TokenCount(twin, kLayer));
      first += part.tokens.count();
    }
    if (HasFailure()) return;
  }
  for (int i = 0; i < kSessions; ++i) {
    EXPECT_EQ(caller_.State("s" + std::to_string(i)), caller_.State("t" + std::to_string(i))) << i;
  }
}

// Forks share their states until they write.
TEST_F(StepTest, AcceptsInForksAsAcceptTokensDoes) {
  for (const int64_t decoded : {0, 5, 12, 15}) {
    for (const v1::StepKind kind : {v1::STEP_KIND_DECODE, v1::STEP_KIND_PREFILL}) {
      SCOPED_TRACE(std::to_string(decoded) + " decoded, kind " + std::to_string(kind));
      const std::string id = "d" + std::to_string(decoded) + "-" + std::to_string(kind);
      Create(id);
      Alone(id, Prefill(id, 3));
      for (int64_t i = 0; i < decoded; ++i) Alone(id, Decode(id, 1));
      Part draft = Draft(id, 6);
      draft.parents = {-1, 0, 0, 1, 2, 4};
      Alone(id, draft);
      ASSERT_TRUE(caller_.Fork(id, {id + "-a", id + "-b", id + "-c"}).ok());
      Part next{.id = id + "-a", .tokens = Next(2), .kind = kind, .path = {0, 2, 4, 5}};
      ASSERT_REPLY(const auto reply, caller_.Step(StepOf({next})));
      EXPECT_TRUE(reply.output().data() == Alone(id + "-b", next));
      EXPECT_EQ(caller_.State(id + "-a"), caller_.State(id + "-b"));
      EXPECT_EQ(caller_.State(id), caller_.State(id + "-c")) << "the siblings stay as they were";
    }
  }
}

TEST_F(StepTest, AnAcceptanceAloneNeedsNoTokens) {
  Create("a");
  Create("b");
  for (const std::string id : {"a", "b"}) {
    for (int i = 0; i < 14; ++i) Alone(id, {.id = id, .tokens = RandomTokens(1, static_cast<uint64_t>(i))});
    Alone(id, {.id = id, .tokens = RandomTokens(5, 99), .kind = v1::STEP_KIND_DRAFT});
  }
  ASSERT_REPLY(const auto reply, caller_.Step(StepOf({{.id = "a", .tokens = RandomTokens(0, 1), .accept = 4}})));
  EXPECT_EQ(reply.token_counts(0), 18);
  ASSERT_TRUE(caller_.Accept("b", 4).ok());
  EXPECT_EQ(caller_.State("a"), caller_.State("b"));
}

// A state without tokens is not exported, so it must not have an input kind that an export would lose.
TEST_F(StepTest, NoTokensLeaveAFreshLayerFresh) {
  for (const v1::StepKind kind : {v1::STEP_KIND_DECODE, v1::STEP_KIND_PREFILL}) {
    const std::string id = "fresh-" + std::to_string(kind);
    Create(id);
    ASSERT_TRUE(caller_.Step(StepOf({{.id = id, .tokens = RandomTokens(0, 1), .kind = kind, .accept = 0}})).ok());
    ASSERT_REPLY(const std::string file, caller_.Export(id));
    ASSERT_TRUE(caller_.Import(id + "-twin", "m", file).ok());
    EXPECT_EQ(caller_.State(id), caller_.State(id + "-twin"));
  }
}

TEST_F(StepTest, AcceptsTheDraftOfItsLayerAlone) {
  for (const char* const id : {"a", "b"}) Create(id);
  const Tokens tokens = Next(8);
  for (const int layer : {0, 1}) {
    ASSERT_TRUE(
        caller_.Step(StepOf({{.id = "a", .tokens = tokens.Slice(0, 4 - layer), .kind = v1::STEP_KIND_DRAFT}}, layer))
            .ok());
  }
  const auto accepts = [&](int layer, int count) {
    Part part = {.id = "a", .tokens = tokens.Token(7), .kind = v1::STEP_KIND_DECODE};
    part.accept = count;
    part.expected = count;
    return caller_.Step(StepOf({part}, layer));
  };
  EXPECT_TRUE(accepts(0, 4).ok());
  EXPECT_TRUE(RefusedAs(caller_.Step(StepOf({{.id = "a", .tokens = tokens.Token(7)}}, 1)), "DRAFT_PENDING"));
  EXPECT_TRUE(RefusedAs(accepts(1, 4), "TOO_MANY_TOKENS"));
  EXPECT_TRUE(accepts(1, 2).ok());
  for (const int layer : {0, 1}) {
    for (int i = 0; i < 4 - 2 * layer; ++i) {
      ASSERT_TRUE(caller_.Decode(DecodeOf({"b"}, layer, {tokens.Token(i)})).ok());
    }
    ASSERT_TRUE(caller_.Decode(DecodeOf({"b"}, layer, {tokens.Token(7)})).ok());
  }
  EXPECT_EQ(caller_.State("a"), caller_.State("b"));
}

TEST_F(StepTest, ARefusedRowKeepsItsDraft) {
  Create("a");
  Alone("a", Decode("a", 1));
  Alone("a", Draft("a", 3));
  const std::string before = caller_.State("a");
  Part next = Decode("a", 1);
  EXPECT_TRUE(RefusedAs(caller_.Step(StepOf({next})), "DRAFT_PENDING"));
  next.accept = 4;
  EXPECT_TRUE(RefusedAs(caller_.Step(StepOf({next})), "TOO_MANY_TOKENS"));
  next.accept = 2;
  next.expected = 1;
  EXPECT_TRUE(RefusedAs(caller_.Step(StepOf({next})), "TOKEN_COUNT_MISMATCH", {{"token_count", "3"}}));
  next.expected = 3;
  next.path = {0, 1};
  EXPECT_TRUE(RefusedAs(caller_.Step(StepOf({next})), "INVALID_LENGTHS"));
  next.accept = {};
  next.path = {1, 0};
  EXPECT_TRUE(RefusedAs(caller_.Step(StepOf({next})), "VALUE_OUT_OF_RANGE"));
  EXPECT_EQ(caller_.State("a"), before);
  next.path = {0, 1};
  ASSERT_REPLY(const auto reply, caller_.Step(StepOf({next})));
  EXPECT_EQ(reply.token_counts(0), 4);
}

TEST_F(StepTest, ARetryGetsTheFirstAnswer) {
  for (const char* const id : {"a", "b", "c"}) Create(id);
  Alone("b", Draft("b", 3));
  Part accepts = Decode("b", 2);
  accepts.accept = 2;
  const v1::StepRequest request = WithId(StepOf({Prefill("a", 40), accepts, Draft("c", 2)}), "r");
  ASSERT_REPLY(const auto first, caller_.Step(request));
  const std::string states = caller_.State("a") + caller_.State("b") + caller_.State("c");
  ASSERT_REPLY(const auto again, caller_.Step(request));
  EXPECT_TRUE(first.output().data() == again.output().data());
  EXPECT_THAT(again.token_counts(), ::testing::ElementsAre(40, 4, 0));
  EXPECT_EQ(caller_.State("a") + caller_.State("b") + caller_.State("c"), states);

  v1::StepRequest other = request;
  other.mutable_rows(1)->mutable_accept_before()->set_accepted_tokens(1);
  EXPECT_TRUE(RefusedAs(caller_.Step(other), "REQUEST_ID_REUSED", {{"session", "sessions/b"}}));
  other.mutable_rows(1)->clear_accept_before();
  EXPECT_TRUE(RefusedAs(caller_.Step(other), "REQUEST_ID_REUSED"));
  other = request;
  other.mutable_rows(2)->set_kind(v1::STEP_KIND_DECODE);
  EXPECT_TRUE(RefusedAs(caller_.Step(other), "REQUEST_ID_REUSED", {{"session", "sessions/c"}}));
}

TEST_F(StepTest, RowsFailOnTheirOwnIfTheCallAllowsIt) {
  for (const char* const id : {"a", "b"}) Create(id);
  Part bad = Decode("a", 1);
  bad.expected = 5;
  v1::StepRequest request = StepOf({bad, Prefill("unknown", 3), Prefill("b", 33)});
  EXPECT_TRUE(RefusedAs(caller_.Step(request), "SESSION_NOT_FOUND"));
  EXPECT_EQ(caller_.TokenCount("b", kLayer), 0);
  request.set_partial_ok(true);
  ASSERT_REPLY(const auto reply, caller_.Step(request));
  EXPECT_EQ(ErrorInfoOf(reply.row_statuses(0)).reason(), "TOKEN_COUNT_MISMATCH");
  EXPECT_EQ(ErrorInfoOf(reply.row_statuses(1)).reason(), "SESSION_NOT_FOUND");
  EXPECT_EQ(reply.row_statuses(2).code(), 0);
  EXPECT_THAT(reply.token_counts(), ::testing::ElementsAre(0, 0, 33));
  EXPECT_THAT(TokenBytes(reply.output(), 0, 4), ::testing::Each('\0'));
}

TEST_F(StepTest, RefusesBadRows) {
  for (const char* const id : {"a", "b"}) Create(id);
  const auto refused = [&](const std::string& name, const std::string& reason, const auto& change) {
    v1::StepRequest request = StepOf({Decode("a", 1), Prefill("b", 3)});
    change(request);
    return BadCall{name, reason, "", [this, request] { return caller_.Step(request).status; }};
  };
  const auto row = [](v1::StepRequest& request, int i) { return request.mutable_rows(i); };
  ExpectRefused(
      {
          refused("no rows", "BATCH_TOO_LARGE", [&](auto& r) { r.clear_rows(); }),
          refused("no kind", "VALUE_OUT_OF_RANGE", [&](auto& r) { row(r, 0)->clear_kind(); }),
          refused("unknown kind", "VALUE_OUT_OF_RANGE",
                  [&](auto& r) { row(r, 0)->set_kind(static_cast<v1::StepKind>(9)); }),
          refused("negative length", "INVALID_LENGTHS", [&](auto& r) { row(r, 0)->set_token_count(-1); }),
          refused("too few tokens", "INVALID_TENSOR_SHAPE", [&](auto& r) { row(r, 0)->set_token_count(2); }),
          refused("lengths that overflow", "INVALID_TENSOR_SHAPE",
                  [&](auto& r) {
                    row(r, 0)->set_token_count(2147483647);
                    row(r, 1)->set_token_count(2147483647);
                    row(r, 1)->set_kind(v1::STEP_KIND_PREFILL);
                    row(r, 0)->set_kind(v1::STEP_KIND_PREFILL);
                  }),
          refused("a long decode", "TOO_MANY_TOKENS", [&](auto& r) { r = StepOf({Decode("a", 9)}); }),
          refused("a long draft", "TOO_MANY_TOKENS", [&](auto& r) { r = StepOf({Draft("a", 9)}); }),
          refused("parents of a decode", "INVALID_LENGTHS", [&](auto& r) { row(r, 0)->add_draft_parents(-1); }),
          refused("too few parents", "INVALID_LENGTHS",
                  [&](auto& r) {
                    r = StepOf({Draft("a", 2)});
                    row(r, 0)->add_draft_parents(-1);
                  }),
          refused("a session twice", "DUPLICATE_SESSION",
                  [&](auto& r) { row(r, 1)->set_session(row(r, 0)->session()); }),
          refused("no input", "INPUT_MISSING", [&](auto& r) { r.clear_hidden_states(); }),
          refused("not finite", "NON_FINITE_INPUT",
                  [&](auto& r) {
                    std::string& data = *r.mutable_hidden_states()->mutable_hidden_states()->mutable_data();
                    data.replace(4, 4, std::string("\x00\x00\x80\x7f", 4));
                  }),
          refused("a long path", "TOO_MANY_TOKENS",
                  [&](auto& r) {
                    for (int i = 0; i < 9; ++i) row(r, 0)->mutable_accept_before()->add_path(i);
                  }),
          refused("an acceptance without a draft", "TOO_MANY_TOKENS",
                  [&](auto& r) { row(r, 0)->mutable_accept_before()->set_accepted_tokens(1); }),
      },
      [&] { return caller_.State("a") + caller_.State("b"); });
}

// Each prefill is a job of its own, and takes a slot aside.
TEST_F(StepTest, AsManyPrefillsAsACallMayHaveRunInOne) {
  constexpr int kRows = 512;  // the default of --max-batch
  std::vector<Part> parts;
  for (int i = 0; i < kRows; ++i) {
    const std::string id = "s" + std::to_string(i);
    Create(id);
    parts.push_back(Prefill(id, 1 + i % 3));
  }
  for (int round = 0; round < 2; ++round) {  // into new slots, then aside
    ASSERT_REPLY(const auto reply, caller_.Step(WithId(StepOf(parts), "r" + std::to_string(round))));
    int64_t first = 0;
    for (int i = 0; i < kRows; ++i) {
      const Part& part = parts[static_cast<size_t>(i)];
      ASSERT_EQ(reply.token_counts(i), (round + 1) * part.tokens.count()) << i;
      const std::string output = TokenBytes(reply.output(), first, part.tokens.count());
      first += part.tokens.count();
      if (i % 100 != 0) continue;
      const std::string twin = "t" + std::to_string(i);
      if (round == 0) Create(twin);
      EXPECT_TRUE(output == Alone(twin, part)) << i;
    }
  }
  parts.push_back(Prefill("one-more", 1));
  EXPECT_TRUE(RefusedAs(caller_.Step(StepOf(parts)), "BATCH_TOO_LARGE"));
}

// A call with a deadline that passes in its long prompt says which rows it applied; a retry runs the rest.
TEST_F(StepTest, ADeadlineInALongPromptLeavesEachRowAppliedOrNot) {
  const std::vector<std::string> ids = {"a", "b", "c"};
  for (const std::string& id : ids) {
    Create(id);
    Create(id + "-twin");
  }
  const std::vector<Part> parts = {Decode("a", 2), Prefill("b", 4000), Draft("c", 3)};
  const v1::StepRequest request = WithId(StepOf(parts), "r");
  for (const int micros : {300, 1000, 3000, 10'000, 30'000}) {
    const auto context = caller_.NewContext();
    context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Microseconds(micros)));
    const auto outcome = caller_.Step(*context, request);
    EXPECT_TRUE(outcome.ok() || outcome.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
        << outcome.status.error_message();
  }
  Outcome<v1::StepResponse> outcome;
  WaitUntil([&] { return (outcome = caller_.Step(request)).status.error_code() != grpc::StatusCode::ABORTED; },
            "the step to get in");
  ASSERT_TRUE(outcome.ok()) << outcome.status.error_message();
  std::string alone;
  for (const Part& part : parts) alone += Alone(part.id + "-twin", part);
  EXPECT_TRUE(outcome.reply.output().data() == alone);
  for (const std::string& id : ids) EXPECT_EQ(caller_.State(id), caller_.State(id + "-twin")) << id;
}

TEST_F(StepTest, StreamsSteps) {
  Create("a");
  Create("b");
  const Part prompt = Prefill("a", 35), token = Decode("a", 1), bad = Decode("nobody", 1);
  std::vector<v1::StreamStepRequest> messages(3);
  *messages[0].mutable_step() = StepOf({prompt});
  *messages[1].mutable_step() = StepOf({bad});
  *messages[2].mutable_step() = StepOf({token});
  const auto context = caller_.NewContext();
  const auto stream = server_.stub().StreamStep(context.get());
  const auto replies = Converse(*stream, messages);
  EXPECT_TRUE(replies[0].result().output().data() == Alone("b", prompt));
  EXPECT_EQ(ErrorInfoOf(replies[1].status()).reason(), "SESSION_NOT_FOUND");
  EXPECT_TRUE(replies[2].result().output().data() == Alone("b", token));
  EXPECT_EQ(caller_.State("a"), caller_.State("b"));
}

// Steps of several callers share launches as they happen to come.
TEST_F(StepTest, ArrivingAtRandomChangesNoBits) {
  constexpr int kCallers = 4;
  constexpr int kSteps = 10;
  std::vector<std::thread> threads;
  for (int i = 0; i < kCallers; ++i) {
    for (const char* const side : {"s", "t"}) {
      Create(side + std::to_string(i) + "-0");
      Create(side + std::to_string(i) + "-1");
    }
  }
  std::vector<std::vector<std::vector<Part>>> sent(kCallers);
  std::vector<std::vector<std::string>> outputs(kCallers);
  for (int i = 0; i < kCallers; ++i) {
    threads.emplace_back([&, i] {
      Mixer mixer(static_cast<uint64_t>(100 + i));
      std::vector<std::vector<int>> drafts(2);
      for (int step = 0; step < kSteps; ++step) {
        std::vector<Part> parts;
        for (int row = 0; row < 2; ++row) {
          const std::string id = "s" + std::to_string(i) + "-" + std::to_string(row);
          parts.push_back(mixer.NextPart(id, drafts[static_cast<size_t>(row)]));
        }
        const auto reply = caller_.Step(StepOf(parts));
        EXPECT_TRUE(reply.ok()) << reply.status.error_message();
        outputs[static_cast<size_t>(i)].push_back(reply.reply.output().data());
        sent[static_cast<size_t>(i)].push_back(parts);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kCallers; ++i) {
    for (int step = 0; step < kSteps; ++step) {
      std::string alone;
      for (int row = 0; row < 2; ++row) {
        alone += Alone("t" + std::to_string(i) + "-" + std::to_string(row),
                       sent[static_cast<size_t>(i)][static_cast<size_t>(step)][static_cast<size_t>(row)]);
      }
      EXPECT_TRUE(outputs[static_cast<size_t>(i)][static_cast<size_t>(step)] == alone) << i << " step " << step;
    }
  }
}

}  // namespace
}  // namespace gdn::step_test
