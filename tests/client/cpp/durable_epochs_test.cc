// Calls that use a session's state, as the first ones after a crash: none is of the older state that the crash has
// left, whether the server knows session_epoch or not.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "client/cpp/async_client.h"
#include "client/cpp/reply_epoch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/durable_session_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::durable_epochs_test {
namespace {

using ::testing::HasSubstr;

constexpr char kChild[] = "sessions/child";
constexpr Fault kFaults[] = {Fault::kUnavailable, Fault::kLoseReply, Fault::kLate,     Fault::kCrashBefore,
                             Fault::kCrashAfter,  Fault::kDropReply, Fault::kRollBack, Fault::kLoseState};

class DurableEpochs : public Durable {
 protected:
  // The loss that the server suffers before the first call.
  enum class Loss { kNothing, kCrash, kSetBack, kLostState };

  void Lose(Loss loss) {
    if (loss == Loss::kCrash) service_->Crash();
    if (loss == Loss::kSetBack) service_->SetStoreBack(kName, "");
    if (loss == Loss::kLostState) service_->LoseState(kName);
  }

  // A prompt and two tokens of each layer, of which a durable copy has the first, or none; then a draft.
  void Begin(bool copy, bool draft) {
    RunPlain(2, 1);
    if (copy) {
      ASSERT_TRUE(session_->Checkpoint().ok());
    }
    for (int32_t layer = 0; layer < 2; ++layer) ASSERT_EQ(Decode(layer, 20 + layer), absl::OkStatus());
    for (int32_t layer = 0; layer < 2 && draft; ++layer) {
      ASSERT_EQ(Decode(layer, 30 + layer, /*tokens=*/3, /*draft=*/true), absl::OkStatus());
    }
  }
  void GoOn(bool draft) {
    if (draft) {
      ASSERT_TRUE(session_->AcceptTokens(2).ok());
    }
    for (int32_t layer = 0; layer < 2; ++layer) ASSERT_EQ(Decode(layer, 40 + layer), absl::OkStatus());
  }

  // run(loss, copy, draft) once undisturbed, and then with each loss, with and without a durable copy, on servers of
  // today and of before; what it answers and leaves must be the same.
  void ForEachLoss(const std::function<void(Loss, bool copy, bool draft)>& run,
                   const std::function<std::string()>& left = nullptr) {
    for (const bool draft : {false, true}) {
      const Truth truth = Undisturbed(2, [&] { run(Loss::kNothing, true, draft); });
      const std::string also = left == nullptr ? "" : left();
      for (const Loss loss : {Loss::kCrash, Loss::kSetBack, Loss::kLostState}) {
        for (const bool copy : {false, true}) {
          for (const bool old : {false, true}) {
            SCOPED_TRACE(StrCat("loss ", static_cast<int>(loss), ", copy ", copy, ", draft ", draft, ", old ", old));
            Start({.layers = 2, .ignore_session_epochs = old});
            run(loss, copy, draft);
            ExpectLike(truth);
            if (left != nullptr) {
              EXPECT_EQ(left(), also);
            }
            EXPECT_EQ(session_->stats().recoveries, 1);
          }
        }
      }
    }
  }
};

TEST_F(DurableEpochs, AForkIsOfTheStateThatThisSideKnows) {
  ForEachLoss(
      [this](Loss loss, bool copy, bool draft) {
        Begin(copy, draft);
        Lose(loss);
        GDN_ASSERT_OK_AND_ASSIGN(const auto drawn, session_->Fork({"", ""}));
        ASSERT_EQ(drawn.size(), 2u);
        EXPECT_EQ(service_->States(drawn[0]->name()), service_->States(kName));
        EXPECT_EQ(service_->States(drawn[1]->name()), service_->States(kName));
        GDN_ASSERT_OK_AND_ASSIGN(const auto named, session_->Fork({"child"}));
        ASSERT_EQ(named.size(), 1u);
        EXPECT_EQ(named[0]->name(), kChild);
        if (draft) {
          ASSERT_TRUE(named[0]->AcceptTokens(1).ok());
        }
        ASSERT_TRUE(named[0]->Decode(DecodeOf(0, 50)).ok());
        GoOn(draft);
      },
      [this] { return service_->States(kChild); });
}

TEST_F(DurableEpochs, AnExportIsOfTheStateThatThisSideKnows) {
  ForEachLoss([this](Loss loss, bool copy, bool draft) {
    Begin(copy, draft);
    Lose(loss);
    GDN_ASSERT_OK_AND_ASSIGN(const std::string file, session_->ExportState());
    GDN_ASSERT_OK_AND_ASSIGN(const StateFileOrigin origin, ReadStateFileOrigin(file));
    EXPECT_EQ(origin.epoch, session_->epoch());
    EXPECT_EQ(origin.seen.at(0), (SeenTokens{.tokens = 7, .draft = draft ? 3 : 0}));
    GoOn(draft);
  });
}

TEST_F(DurableEpochs, ACheckpointIsOfTheStateThatThisSideKnowsAndARestoreGoesBackToIt) {
  for (const char* id : {"", "mine"}) {
    ForEachLoss([this, id](Loss loss, bool copy, bool draft) {
      Begin(copy, draft);
      Lose(loss);
      GDN_ASSERT_OK_AND_ASSIGN(const v1::Checkpoint made, session_->Checkpoint(id));
      EXPECT_EQ(made.layers(0).token_count(), 7);
      GoOn(draft);
      GDN_ASSERT_OK_AND_ASSIGN(const v1::Session restored, session_->Restore(id));
      for (int32_t layer = 0; layer < 2; ++layer) {
        EXPECT_EQ(restored.layers(layer).token_count(), 7);
        EXPECT_EQ(session_->token_count(layer), 7);
        ASSERT_EQ(Decode(layer, 60), absl::OkStatus());
      }
    });
  }
}

TEST_F(DurableEpochs, ARestoreAsTheFirstCallTellsWhereItIsBack) {
  Start({.layers = 2});
  Begin(/*copy=*/true, /*draft=*/false);
  service_->Crash();
  GDN_ASSERT_OK_AND_ASSIGN(const v1::Session restored, session_->Restore());
  EXPECT_EQ(restored.layers(0).token_count(), 6);
  EXPECT_EQ(session_->epoch(), restored.epoch());
  ASSERT_EQ(Decode(0, 7), absl::OkStatus());
  EXPECT_EQ(session_->token_count(0), 7);
}

TEST_F(DurableEpochs, ARestoreSaysSoWhereTheNewestCopyIsOlderThanTheServerHadSaid) {
  Start({});
  RunPlain(1, 1);
  ASSERT_TRUE(session_->Checkpoint("old").ok());
  ASSERT_EQ(Decode(0, 2), absl::OkStatus());
  ASSERT_TRUE(session_->Checkpoint().ok());
  service_->SetStoreBack(kName, "old");
  const absl::Status status = session_->Restore().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("back at token 6 of layer 0, and its newest checkpoint had 7"));
  EXPECT_EQ(Decode(0, 3).code(), absl::StatusCode::kDataLoss) << "nothing goes on from there unnoticed";
}

TEST_F(DurableEpochs, FaultsOfTheCallItselfAreHidden) {
  for (const char* call : {"ForkSession", "ExportState", "CheckpointSession"}) {
    const auto run = [&](bool copy, const std::vector<Fault>& faults) {
      Begin(copy, /*draft=*/false);
      service_->PlanNext(call, faults);
      GDN_ASSERT_OK_AND_ASSIGN(const auto drawn, session_->Fork({""}));
      EXPECT_EQ(service_->States(drawn[0]->name()), service_->States(kName));
      GDN_ASSERT_OK_AND_ASSIGN(const std::string file, session_->ExportState());
      ASSERT_TRUE(session_->Checkpoint().ok());
      GoOn(/*draft=*/false);
    };
    const Truth truth = Undisturbed(2, [&] { run(true, {}); });
    for (const Fault fault : kFaults) {
      for (const bool copy : {false, true}) {
        for (const bool old : {false, true}) {
          SCOPED_TRACE(StrCat(call, " fault ", static_cast<int>(fault), ", copy ", copy, ", old ", old));
          Start({.layers = 2, .ignore_session_epochs = old});
          run(copy, {fault, Fault::kUnavailable, fault});
          ExpectLike(truth);
        }
      }
    }
  }
}

TEST_F(DurableEpochs, AChildThatTheServerLosesIsMadeAnewWhereAllInputsAreKept) {
  Start({.layers = 2});
  Begin(/*copy=*/false, /*draft=*/true);
  GDN_ASSERT_OK_AND_ASSIGN(const auto children, session_->Fork({"child", "other"}));
  ASSERT_TRUE(children[0]->AcceptTokens(2).ok());
  ASSERT_TRUE(children[0]->Decode(DecodeOf(1, 70)).ok());
  const std::string before = service_->States(kChild), parent = service_->States(kName);
  service_->Crash();
  ASSERT_TRUE(service_->session_names().empty());
  ASSERT_TRUE(children[0]->Checkpoint().ok());
  EXPECT_EQ(service_->States(kChild), before);
  ASSERT_TRUE(children[1]->Checkpoint().ok());
  EXPECT_EQ(service_->States("sessions/other"), parent) << "with the draft";
}

TEST_F(DurableEpochs, AForkUnderAnIdThatIsAtOtherCountsIsRefusedAndNothingIsDeleted) {
  Start({});
  RunPlain(1, 1);
  GDN_ASSERT_OK_AND_ASSIGN(const auto first, session_->Fork({"child"}));
  ASSERT_TRUE(first[0]->Decode(DecodeOf(0, 5)).ok());
  const absl::Status again = session_->Fork({"child"}).status();
  EXPECT_EQ(ErrorReason(again), reason::kSessionExists) << again;
  EXPECT_EQ(service_->token_count(kChild, 0), 7);
}

TEST_F(DurableEpochs, ALostStateIsMadeAnewOnlyWhereAllInputsAreKept) {
  Start({.layers = 2, .durable_tier = false});
  RunPlain(2, 1);
  GDN_ASSERT_OK_AND_ASSIGN(const auto attached, DurableSession::Attach(*client_, kName, Quick()));
  service_->LoseState(kName);
  const absl::Status lost = attached->Decode(DecodeOf(0, 5)).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(lost), reason::kCheckpointNotFound);
  EXPECT_THAT(std::string(lost.message()), HasSubstr("has lost the state of sessions/chat"));
  EXPECT_THAT(std::string(lost.message()), HasSubstr("of layer 0 only the inputs from token 6 on are kept"));
  EXPECT_EQ(service_->session_names().count(kName), 1u) << "it is not deleted where it cannot be made anew";
  EXPECT_EQ(Decode(0, 7), absl::OkStatus());
  EXPECT_EQ(session_->stats().recreations, 1);
  EXPECT_EQ(service_->log().sessions_created, 2);
}

TEST_F(DurableEpochs, ALostStateIsMadeAnewWhateverHappensOnTheWay) {
  const Truth truth = Undisturbed(2, [this] { RunPlain(2, 3); });
  for (const bool tier : {false, true}) {
    for (int call = 0; call < 8; ++call) {
      SCOPED_TRACE(StrCat("call ", call, ", tier ", tier));
      Start({.layers = 2, .durable_tier = tier});
      service_->Plan(call, Fault::kLoseState);
      for (const char* method : {"GetSession", "RestoreCheckpoint", "DeleteSession", "CreateSession"}) {
        service_->PlanNext(method, {Fault::kUnavailable, Fault::kLoseReply});
      }
      RunPlain(2, 3);
      ExpectLike(truth);
      EXPECT_EQ(session_->stats().recreations, 1);
    }
  }
}

TEST_F(DurableEpochs, AClientBelievesNoReplyOfAnotherEpochToAnOlderServer) {
  Start({.layers = 2, .ignore_session_epochs = true});
  RunPlain(2, 1);
  ASSERT_TRUE(session_->Checkpoint().ok());
  service_->Crash();
  const auto refused = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_EQ(ErrorReason(status), reason::kEpochMismatch) << status;
  };
  v1::CheckpointSessionRequest checkpoint;
  checkpoint.set_name(kName);
  checkpoint.set_session_epoch(1);
  refused(client_->CheckpointSession(checkpoint).status());
  v1::ExportStateRequest exported;
  exported.set_name(kName);
  exported.set_session_epoch(1);
  size_t seen = 0;
  refused(client_->ExportState(exported, [&seen](std::string_view piece) {
    seen += piece.size();
    return absl::OkStatus();
  }));
  EXPECT_EQ(seen, 0u);
  v1::WatchStateRequest watched;
  watched.set_name(kName);
  watched.set_every_tokens(1);
  watched.set_session_epoch(1);
  GDN_ASSERT_OK_AND_ASSIGN(StateWatch watch, client_->WatchState(watched));
  refused(watch.Next().status());
  {
    AsyncClient async(*client_);
    absl::Status status;
    async.CheckpointSession(checkpoint, [&status](auto reply) { status = reply.status(); });
    async.WaitForAll();
    refused(status);
  }
  exported.set_session_epoch(2);
  GDN_ASSERT_OK_AND_ASSIGN(const std::string file, client_->ExportState(exported));
  exported.clear_session_epoch();
  GDN_ASSERT_OK_AND_ASSIGN(const std::string same, client_->ExportState(exported));
  EXPECT_EQ(file, same);
  v1::RestoreCheckpointRequest restore;
  restore.set_name(kName);
  restore.set_session_epoch(1);
  refused(client_->RestoreCheckpoint(restore).status());
  restore.set_session_epoch(3);
  EXPECT_TRUE(client_->RestoreCheckpoint(restore).ok());
}

TEST_F(DurableEpochs, AStateWithOtherCountsInTheSameEpochIsNotTakenForTheKnownOne) {
  const std::map<std::string, std::function<absl::Status()>> calls = {
      {"a fork", [this] { return session_->Fork({""}).status(); }},
      {"an export", [this] { return session_->ExportState().status(); }},
      {"a checkpoint", [this] { return session_->Checkpoint().status(); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    Start({});
    RunPlain(1, 3);
    service_->MoveLayer(kName, 0, 2);
    const absl::Status status = call();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("somebody else"));
  }
}

}  // namespace
}  // namespace gdn::durable_epochs_test
