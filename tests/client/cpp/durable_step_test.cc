// Step of durable sessions: rows of every kind, with acceptances, on servers that know Step and on older ones.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "client/cpp/durable_batch.h"
#include "client/cpp/testing/server_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/durable_rows_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::durable_step_test {
namespace {

using ::testing::HasSubstr;

constexpr int kLayers = kDurableLayers;
constexpr size_t kRows = kDurableRows;

struct Part {
  v1::StepKind kind;
  int64_t tokens;
  std::vector<int32_t> parents = {};
  std::optional<DraftChoice> accept = {};
};

constexpr v1::StepKind kDecode = v1::STEP_KIND_DECODE;
constexpr v1::StepKind kDraft = v1::STEP_KIND_DRAFT;
constexpr v1::StepKind kPrefill = v1::STEP_KIND_PREFILL;

DraftChoice First(int32_t tokens) { return {.first_tokens = tokens}; }

// The steps of a run, each with a part of every session. Both layers take all of them.
const std::vector<std::vector<Part>>& Plan() {
  static const auto* const plan = new std::vector<std::vector<Part>>{
      {{kPrefill, 5}, {kPrefill, 3}, {kPrefill, 0}},
      {{kDecode, 1}, {kDraft, 3}, {kPrefill, 2}},
      {{kDraft, 4, {-1, 0, 0, 1}}, {kDecode, 1, {}, First(2)}, {kDecode, 2}},
      {{kDraft, 3, {}, DraftChoice{.path = {0, 2}}}, {kPrefill, 6}, {kDecode, 0}},
      {{kDecode, 1, {}, First(0)}, {kDraft, 2}, {kDraft, 4}},
      {{kPrefill, 2}, {kDecode, 0, {}, First(2)}, {kDraft, 4, {}, First(0)}},
      {{kDecode, 1}, {kDraft, 1}, {kPrefill, 3, {}, First(3)}},
      {{kDraft, 2}, {kPrefill, 0, {}, First(0)}, {kDecode, 2}},
      {{kDraft, 2, {}, First(1)}, {kDecode, 1}, {kDecode, 1}},
      {{kDecode, 1, {}, First(2)}, {kDecode, 1}, {kDraft, 2}},
  };
  return *plan;
}
int PlannedCalls() { return kLayers * static_cast<int>(Plan().size()); }

v1::StepRequest StepOf(int32_t layer, uint64_t seed, const std::vector<Part>& parts) {
  v1::StepRequest request;
  request.set_layer(layer);
  v1::Tensor* const packed = request.mutable_hidden_states()->mutable_hidden_states();
  *packed = Input({0}, 0);
  for (size_t row = 0; row < parts.size(); ++row) {
    const Part& part = parts[row];
    packed->mutable_data()->append(Input({part.tokens}, seed + row).data());
    packed->set_shape(0, packed->shape(0) + part.tokens);
    v1::StepRow* const added = request.add_rows();
    added->set_kind(part.kind);
    added->set_token_count(static_cast<int32_t>(part.tokens));
    added->mutable_draft_parents()->Add(part.parents.begin(), part.parents.end());
    if (!part.accept.has_value()) continue;
    added->mutable_accept_before()->set_accepted_tokens(part.accept->first_tokens);
    added->mutable_accept_before()->mutable_path()->Add(part.accept->path.begin(), part.accept->path.end());
  }
  return request;
}

// How the sessions take their steps: by the methods before Step, in a batch, or each in a Step of its own.
enum class By { kOtherMethods, kBatch, kOwnStep };

class DurableSteps : public DurableRows {
 protected:
  void ByOtherMethods(DurableSession& session, int32_t layer, uint64_t seed, const Part& part, std::string& output) {
    // An acceptance of AcceptTokens is that of all layers.
    if (part.accept.has_value() && layer == 0) {
      ASSERT_TRUE((part.accept->path.empty() ? session.AcceptTokens(part.accept->first_tokens)
                                             : session.AcceptPath(part.accept->path))
                      .ok());
    }
    if (part.kind == kPrefill) {
      GDN_ASSERT_OK_AND_ASSIGN(const auto reply, session.Prefill(PrefillOf(layer, part.tokens, seed)));
      output += reply.output().data();
    } else if (part.tokens > 0) {
      v1::DecodeRequest decode = DecodeOf(layer, seed, part.tokens, part.kind == kDraft);
      decode.mutable_draft_parents()->Add(part.parents.begin(), part.parents.end());
      GDN_ASSERT_OK_AND_ASSIGN(const auto reply, session.Decode(decode));
      output += reply.output().data();
    }
  }
  void OneStep(By by, int32_t layer, uint64_t seed, const std::vector<Part>& parts) {
    for (size_t row = 0; row < kRows && by != By::kBatch; ++row) {
      if (by == By::kOtherMethods) {
        ASSERT_NO_FATAL_FAILURE(ByOtherMethods(*sessions_[row], layer, seed + row, parts[row], row_outputs_[row]));
        continue;
      }
      GDN_ASSERT_OK_AND_ASSIGN(const auto reply, sessions_[row]->Step(StepOf(layer, seed + row, {parts[row]})));
      ASSERT_EQ(reply.output().shape(0), parts[row].tokens);
      EXPECT_EQ(reply.token_counts(0), sessions_[row]->token_count(layer));
      row_outputs_[row] += reply.output().data();
    }
    if (by != By::kBatch) return;
    GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply reply, batch_->Step(Sessions(), StepOf(layer, seed, parts)));
    const size_t bytes = kToyHidden * sizeof(float);
    size_t first = 0;
    for (size_t row = 0; row < kRows; ++row) {
      ASSERT_EQ(reply.rows[row], absl::OkStatus()) << "row " << row << ", layer " << layer << ", seed " << seed;
      row_outputs_[row] += reply.output.data().substr(first * bytes, static_cast<size_t>(parts[row].tokens) * bytes);
      first += static_cast<size_t>(parts[row].tokens);
    }
    ASSERT_EQ(reply.output.shape(0), static_cast<int64_t>(first));
  }
  void Run(By by) {
    uint64_t seed = 0;
    for (const std::vector<Part>& parts : Plan()) {
      for (int32_t layer = 0; layer < kLayers; ++layer) ASSERT_NO_FATAL_FAILURE(OneStep(by, layer, seed += 10, parts));
    }
  }
  // Compares each run with one that nothing disturbs and that uses the methods before Step.
  void FindTruth() {
    Start({});
    Run(By::kOtherMethods);
    true_outputs_ = row_outputs_;
    true_states_ = AllStates();
  }
  void ExpectTruth() {
    // A fault of the last call has met the sessions that this call did not name, too; a call of theirs finds out.
    for (const auto& session : sessions_) ASSERT_TRUE(session->Checkpoint().ok());
    EXPECT_TRUE(row_outputs_ == true_outputs_);
    EXPECT_EQ(AllStates(), true_states_);
  }
  void ForEachFault(By by, bool old, const std::vector<int64_t>& checkpoint_every, int calls) {
    FindTruth();
    for (const Fault fault : kHiddenFaults) {
      for (const int64_t every : checkpoint_every) {
        for (int call = 0; call < calls; ++call) {
          SCOPED_TRACE(StrCat("fault ", static_cast<int>(fault), ", call ", call, ", checkpoint every ", every));
          Start({.checkpoint_every_tokens = every, .no_step = old});
          service_->Plan(call, fault);
          Run(by);
          ExpectTruth();
        }
      }
    }
  }

  std::vector<std::string> true_outputs_;
  std::string true_states_;
};

TEST_F(DurableSteps, GiveTheBitsOfTheOtherMethodsOnEveryServer) {
  FindTruth();
  for (const By by : {By::kBatch, By::kOwnStep}) {
    for (const bool old : {false, true}) {
      SCOPED_TRACE(StrCat("by ", static_cast<int>(by), ", old ", old));
      Start({.no_step = old});
      Run(by);
      ExpectTruth();
      EXPECT_EQ(client_->StepIsUnimplemented(), old);
      const auto calls = service_->log().identified_calls;
      EXPECT_EQ(calls.contains("Step"), !old);
      EXPECT_EQ(calls.contains("Prefill"), old);
      if (by == By::kBatch && !old) {
        EXPECT_EQ(service_->log().steps, PlannedCalls()) << "one call for all rows";
      }
      for (const auto& session : sessions_) EXPECT_EQ(session->stats().retries, 0);
    }
  }
}

TEST_F(DurableSteps, ApplyEachRowOnceWhateverFailsAtWhicheverCall) {
  ForEachFault(By::kBatch, /*old=*/false, {0, 1, 3, 100}, PlannedCalls());
}

TEST_F(DurableSteps, ApplyARowAloneOnceWhateverFailsAtWhicheverCall) {
  ForEachFault(By::kOwnStep, /*old=*/false, {3}, PlannedCalls() * static_cast<int>(kRows));
}

TEST_F(DurableSteps, ApplyEachRowOnceOnAnOlderServerWhateverFailsAtWhicheverCall) {
  const int acceptances = 9;  // of the plan, with AcceptTokens once for both layers
  ForEachFault(By::kBatch, /*old=*/true, {0, 4}, PlannedCalls() * static_cast<int>(kRows) + acceptances);
}

TEST_F(DurableSteps, ApplyEachRowOnceOnAServerThatForgetsItsReplies) {
  FindTruth();
  for (const By by : {By::kBatch, By::kOwnStep}) {
    for (int call = 0; call < PlannedCalls() * (by == By::kBatch ? 1 : static_cast<int>(kRows)); ++call) {
      SCOPED_TRACE(StrCat("by ", static_cast<int>(by), ", call ", call));
      Start({.forget_stored_replies = true});
      service_->Plan(call, Fault::kLoseReply);
      Run(by);
      ExpectTruth();
    }
  }
}

TEST_F(DurableSteps, WaitForTheirSessionWhereItMoves) {
  Start({});
  const absl::Status moved = MakeError(absl::StatusCode::kUnavailable, reason::kSessionMoved, "it is on its way");
  for (int i = 0; i < 3; ++i) service_->RefuseNext("Step", ServerError(moved));
  OneStep(By::kBatch, 0, 1, Plan()[0]);
  EXPECT_EQ(sessions_[0]->stats().retries, 3);
  EXPECT_EQ(sessions_[0]->stats().recoveries, 0);
}

// A fleet may have servers of two versions. The step was applied by a server that knows Step, the reply was lost, and
// an older server has the session now.
TEST_F(DurableSteps, ThatMayHaveBeenAppliedAreLookedForBeforeAnOlderServerGetsThem) {
  const std::vector<std::vector<Part>> ends = {{{kDecode, 1, {}, First(2)}}, {{kDraft, 3, {}, First(2)}},
                                               {{kDraft, 1, {}, First(2)}},  {{kDraft, 3, {}, First(0)}},
                                               {{kDecode, 0, {}, First(2)}}, {{kPrefill, 70, {}, First(1)}}};
  for (const std::vector<Part>& end : ends) {
    for (const int64_t every : {0, 1, 4}) {
      std::string output, states;
      for (const bool older : {false, true}) {
        SCOPED_TRACE(StrCat("kind ", end[0].kind, ", tokens ", end[0].tokens, ", checkpoint every ", every));
        Start({.checkpoint_every_tokens = every});
        DurableSession& session = *sessions_[0];
        ASSERT_TRUE(session.Step(StepOf(0, 1, {{kPrefill, 5}})).ok());
        ASSERT_TRUE(session.Step(StepOf(0, 2, {{kDraft, 3}})).ok());
        if (older) {
          service_->Plan(0, Fault::kLoseReply);
          DurableSessionOptions hasty = Quick();
          hasty.overall_timeout = absl::Seconds(30);
          hasty.first_backoff = hasty.longest_backoff = absl::Hours(1);
          DurableBatch batch(*client_, hasty);
          GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply late, batch.Step({&session}, StepOf(0, 3, end)));
          ASSERT_EQ(late.rows[0].code(), absl::StatusCode::kUnavailable);
          service_->RefuseNext("Step", grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""));
        }
        const auto reply = session.Step(StepOf(0, 3, end));
        const bool copied = every > 0 && end[0].accept->tokens() + end[0].tokens >= every;
        if (older && copied && end[0].kind != kDraft && end[0].tokens > 0) {
          // The only copy has the step in it, and the inputs of the copy before are not kept.
          EXPECT_EQ(ErrorReason(reply.status()), reason::kReplyDropped);
          continue;
        }
        ASSERT_TRUE(reply.ok()) << reply.status();
        if (older) {
          EXPECT_EQ(reply->output().data(), output);
          EXPECT_EQ(service_->States(session.name()), states);
        }
        output = reply->output().data();
        states = service_->States(session.name());
      }
    }
  }
}

TEST_F(DurableSteps, SurviveRandomFaultsInARow) {
  FindTruth();
  for (uint64_t seed = 0; seed < 90; ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    Random random(seed);
    const bool old = seed % 3 == 0;
    Start({.checkpoint_every_tokens = random.NextInt(0, 5), .no_step = old});
    for (int i = 0; i < 8; ++i) {
      service_->Plan(random.NextInt(0, old ? 100 : 40), kHiddenFaults[random.NextInt(0, std::size(kHiddenFaults) - 1)]);
    }
    Run(seed % 2 == 0 ? By::kBatch : By::kOwnStep);
    ExpectTruth();
  }
}

TEST_F(DurableSteps, DoNotAskAnOlderServerTwice) {
  Start({});
  service_->RefuseNext("Step", grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""));
  OneStep(By::kBatch, 0, 1, Plan()[0]);
  OneStep(By::kBatch, 0, 2, Plan()[1]);
  OneStep(By::kOwnStep, 0, 3, Plan()[2]);
  EXPECT_FALSE(service_->log().identified_calls.contains("Step")) << "the server has had it since";
  EXPECT_TRUE(client_->StepIsUnimplemented());
  EXPECT_FALSE(server_->Connect()->StepIsUnimplemented()) << "another connection asks anew";
}

TEST_F(DurableSteps, ReportAnUnimplementedStepThatHasAReason) {
  Start({});
  service_->RefuseNext(
      "Step", ServerError(MakeError(absl::StatusCode::kUnimplemented, reason::kSharedMemoryNotOffered, "not this")));
  EXPECT_EQ(sessions_[0]->Step(StepOf(0, 1, {{kDecode, 1}})).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(client_->StepIsUnimplemented());
  EXPECT_TRUE(sessions_[0]->Step(StepOf(0, 1, {{kDecode, 1}})).ok());
}

TEST_F(DurableSteps, AcceptTheDraftOfTheirLayerOnly) {
  Start({});
  DurableSession& session = *sessions_[0];
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(session.Step(StepOf(layer, 10 + layer, {{kDraft, 3}})).ok());
  }
  ASSERT_TRUE(session.Step(StepOf(0, 20, {{kDecode, 1, {}, First(2)}})).ok());
  EXPECT_EQ(session.token_count(0), 3);
  EXPECT_EQ(session.token_count(1), 0);
  EXPECT_EQ(ErrorReason(session.Step(StepOf(1, 21, {{kDecode, 1}})).status()), reason::kDraftPending);
  ASSERT_TRUE(session.Step(StepOf(1, 21, {{kDecode, 1, {}, First(3)}})).ok());
  EXPECT_EQ(session.token_count(1), 4);
  EXPECT_EQ(service_->token_count(session.name(), 1), 4);
}

TEST_F(DurableSteps, OfAnOlderServerAcceptTheSameTokensInAllLayers) {
  Start({.no_step = true});
  DurableSession& session = *sessions_[0];
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(session.Step(StepOf(layer, 10 + layer, {{kDraft, 3}})).ok());
  }
  ASSERT_TRUE(session.Step(StepOf(0, 20, {{kDecode, 1, {}, First(2)}})).ok());
  EXPECT_EQ(session.token_count(1), 2);
  const absl::Status other = session.Step(StepOf(1, 21, {{kDecode, 1, {}, First(3)}})).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr("has accepted 2 tokens"));
  ASSERT_TRUE(session.Step(StepOf(1, 21, {{kDecode, 1, {}, First(2)}})).ok());
  EXPECT_EQ(session.token_count(1), 3);
}

TEST_F(DurableSteps, OfAnOlderServerKeepTheDraftsOfOtherLayersIfTheirOwnHasNone) {
  Start({.no_step = true});
  DurableSession& session = *sessions_[0];
  ASSERT_TRUE(session.Step(StepOf(1, 11, {{kDraft, 3}})).ok());
  ASSERT_TRUE(session.Step(StepOf(0, 20, {{kDecode, 1, {}, First(0)}})).ok());
  ASSERT_TRUE(session.Step(StepOf(1, 21, {{kDecode, 1, {}, First(3)}})).ok());
  EXPECT_EQ(session.token_count(1), 4);
}

TEST_F(DurableSteps, ThatAreRefusedCanBeSentAgainWithTheirAcceptance) {
  for (const bool old : {false, true}) {
    Start({.no_step = old});
    DurableSession& session = *sessions_[0];
    ASSERT_TRUE(session.Step(StepOf(0, 10, {{kDraft, 3}})).ok());
    service_->Plan(old ? 1 : 0, Fault::kRefuse);  // an older server has taken the acceptance before
    EXPECT_EQ(ErrorReason(session.Step(StepOf(0, 20, {{kDecode, 1, {}, First(2)}})).status()), reason::kNonFiniteInput);
    EXPECT_EQ(session.token_count(0), old ? 2 : 0);
    ASSERT_TRUE(session.Step(StepOf(0, 30, {{kDecode, 1, {}, First(2)}})).ok());
    EXPECT_EQ(session.token_count(0), 3);
    EXPECT_EQ(service_->token_count(session.name(), 0), 3);
  }
}

TEST_F(DurableSteps, WhoseTimeIsOverAreFinishedByTheSameCall) {
  FindTruth();
  for (const bool old : {false, true}) {
    Start({.no_step = old});
    DurableSessionOptions hasty = Quick();  // one wait is longer than all the time there is
    hasty.overall_timeout = absl::Seconds(30);
    hasty.first_backoff = hasty.longest_backoff = absl::Hours(1);
    DurableBatch batch(*client_, hasty);
    for (size_t step = 0; step < 2; ++step) OneStep(By::kBatch, 0, 10 * step, Plan()[step]);
    const std::vector<Part>& parts = Plan()[2];
    for (int call = 0; call < (old ? 3 : 1); ++call) service_->Plan(call, Fault::kLoseReply);
    const v1::StepRequest request = StepOf(0, 77, parts);
    GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply late, batch.Step(Sessions(), request));
    EXPECT_EQ(late.output.shape_size(), 0);
    for (const absl::Status& status : late.rows) EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(sessions_[1]->Decode(DecodeOf(0, 5)).status().code(), absl::StatusCode::kFailedPrecondition);
    GDN_ASSERT_OK_AND_ASSIGN(const auto alone, sessions_[1]->Step(StepOf(0, 78, {parts[1]})));
    GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply rest,
                             batch_->Step({sessions_[0].get()}, StepOf(0, 77, {parts[0]})));
    EXPECT_EQ(rest.rows[0], absl::OkStatus());
    EXPECT_EQ(sessions_[1]->token_count(0), 3 + 2 + 1);
    EXPECT_EQ(service_->token_count("sessions/row-1", 0), 3 + 2 + 1) << "applied once";
  }
}

TEST_F(DurableSteps, AreTakenAgainIfTheirOutputIsTooLongToBeStored) {
  for (const bool old : {false, true}) {
    std::string output;
    for (const bool lost : {false, true}) {
      Start({.no_step = old});
      ASSERT_TRUE(sessions_[0]->Step(StepOf(0, 1, {{kDraft, 3}})).ok());
      if (lost) service_->Plan(old ? 1 : 0, Fault::kLoseReply);
      GDN_ASSERT_OK_AND_ASSIGN(const auto reply, sessions_[0]->Step(StepOf(0, 2, {{kPrefill, 70, {}, First(2)}})));
      EXPECT_EQ(sessions_[0]->stats().rewinds, lost ? 1 : 0);
      EXPECT_EQ(service_->token_count("sessions/row-0", 0), 72);
      if (lost) {
        EXPECT_TRUE(reply.output().data() == output);
      }
      output = reply.output().data();
    }
  }
}

TEST_F(DurableSteps, LetARowFailByItself) {
  for (const bool old : {false, true}) {
    Start({.no_step = old});
    for (const std::vector<Part>& parts : {Plan()[0], Plan()[1]}) OneStep(By::kBatch, 0, 1, parts);
    ASSERT_TRUE(sessions_[2]->Checkpoint().ok());
    ASSERT_TRUE(client_->DeleteSession("sessions/row-2").ok());  // and its inputs are not kept any more
    GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply reply, batch_->Step(Sessions(), StepOf(0, 9, Plan()[2])));
    EXPECT_EQ(reply.rows[0], absl::OkStatus());
    EXPECT_EQ(reply.rows[1], absl::OkStatus());
    EXPECT_EQ(reply.rows[2].code(), absl::StatusCode::kDataLoss);
    ASSERT_EQ(reply.output.shape(0), 7);
    const size_t bytes = kToyHidden * sizeof(float);
    EXPECT_EQ(reply.output.data().substr(5 * bytes), std::string(2 * bytes, '\0'));
    EXPECT_NE(reply.output.data().substr(4 * bytes, bytes), std::string(bytes, '\0'));
  }
}

TEST_F(DurableSteps, AreRefusedAsAWholeWhereTheyMakeNoSense) {
  Start({});
  DurableSession* const a = sessions_[0].get();
  DurableSession* const b = sessions_[1].get();
  const v1::StepRequest two = StepOf(0, 1, {{kDecode, 1}, {kPrefill, 3}});
  const auto refused = [&](std::vector<DurableSession*> sessions, const std::function<void(v1::StepRequest&)>& change) {
    v1::StepRequest request = two;
    change(request);
    const absl::Status status = batch_->Step(sessions, request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return ErrorReason(status);
  };
  const auto as_it_is = [](v1::StepRequest&) {};
  EXPECT_EQ(refused({}, as_it_is), reason::kBatchTooLarge);
  EXPECT_EQ(refused({a, a}, as_it_is), reason::kDuplicateSession);
  EXPECT_EQ(refused({a}, as_it_is), reason::kInvalidLengths);
  EXPECT_EQ(refused({a, b}, [](auto& step) { step.mutable_rows(0)->set_token_count(2); }), reason::kInvalidTensorShape);
  EXPECT_EQ(refused({a, b}, [](auto& step) { step.mutable_rows(0)->set_token_count(-1); }), reason::kInvalidLengths);
  EXPECT_EQ(refused({a, b}, [](auto& step) { step.mutable_rows(0)->clear_kind(); }), reason::kValueOutOfRange);
  EXPECT_EQ(refused({a, b}, [](auto& step) { step.mutable_rows(1)->add_draft_parents(-1); }), reason::kInvalidLengths);
  EXPECT_EQ(refused({a, b}, [](auto& step) { step.mutable_output_shared()->set_region("region"); }),
            reason::kInvalidSharedRange);
  EXPECT_EQ(
      refused({a, b},
              [](auto& step) { step.mutable_hidden_states()->mutable_hidden_states()->mutable_data()->pop_back(); }),
      reason::kInvalidTensorData);
  EXPECT_EQ(ErrorReason(a->Step(two).status()), reason::kBatchTooLarge);
  EXPECT_EQ(service_->log().steps, 0);
  // A row's own errors.
  GDN_ASSERT_OK_AND_ASSIGN(const DurableBatch::Reply reply,
                           batch_->Step({a, b}, StepOf(0, 1, {{kDecode, 1, {}, First(1)}, {kPrefill, 3}})));
  EXPECT_EQ(ErrorReason(reply.rows[0]), reason::kTooManyTokens);
  EXPECT_EQ(reply.rows[1], absl::OkStatus());
}

}  // namespace
}  // namespace gdn::durable_step_test
