// Sessions that outlive their server: checkpoints, restores, orderly ends and crashes.
//
// A TestServer that is destroyed without Drain leaves the disk as a killed process does.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::durability_test {
namespace {

constexpr TokenRange kPrompt = {0, 7};

class Durability : public ::testing::Test {
 protected:
  Durability() { Start(); }

  void Start(GdnServerOptions options = {}) {
    server_ = nullptr;  // frees the folder
    options.models = TokenFeed::Models();
    options.states.disk.directory = folder_.path();
    server_ = std::make_unique<TestServer>(std::move(options));
    caller_ = std::make_unique<Caller>(*server_);
  }
  void StartAfterAnOrderlyEnd() {
    EXPECT_TRUE(server_->Drain());
    Start();
  }
  void StartAfterACrash(GdnServerOptions options = {}) { Start(std::move(options)); }

  // The prompt, and `decoded` tokens one by one; on any server.
  void Feed(const Caller& caller, const std::string& id, int64_t decoded) { feed_.Start(caller, id, kPrompt, decoded); }
  std::string Decode(const Caller& caller, const std::string& id, int64_t first, int64_t count) {
    return feed_.DecodeAll(caller, id, {first, count});
  }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(2);
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Caller> caller_;
  TestServer steady_server_{{.models = TokenFeed::Models()}};
  const Caller steady_{steady_server_};  // one that never ends
};

TEST_F(Durability, ACheckpointSaysWhatItHoldsAndARestoreGoesBackToIt) {
  Feed(*caller_, "a", 3);
  ASSERT_REPLY(const auto made, caller_->Checkpoint("a"));
  EXPECT_EQ(made.checkpoint_id(), "");
  EXPECT_EQ(made.epoch(), 1);
  EXPECT_GT(made.written_bytes(), 0);
  EXPECT_GT(made.create_time().seconds(), 0);
  ASSERT_EQ(made.layers_size(), 2);
  EXPECT_EQ(made.layers(0).token_count(), kPrompt.count + 3);
  EXPECT_EQ(made.layers(0).durable_token_count(), kPrompt.count + 3);
  const std::string state = caller_->State("a");
  EXPECT_EQ(caller_->Get("a").reply.layers(0).durable_token_count(), kPrompt.count + 3);
  EXPECT_TRUE(caller_->Get("a").reply.has_durable_time());

  Decode(*caller_, "a", 50, 20);
  ASSERT_REPLY(const auto restored, caller_->Restore("a"));
  EXPECT_EQ(restored.epoch(), 2);
  EXPECT_EQ(restored.layers(0).token_count(), kPrompt.count + 3);
  EXPECT_EQ(caller_->State("a"), state);
  Feed(steady_, "a", 3);
  EXPECT_EQ(Decode(*caller_, "a", 80, 20), Decode(steady_, "a", 80, 20)) << "as if the others had never been";
  EXPECT_EQ(caller_->State("a"), steady_.State("a"));
}

TEST_F(Durability, NamedCheckpointsStayBesideLaterOnes) {
  Feed(*caller_, "a", 1);
  EXPECT_EQ(caller_->Restore("a").reason(), "CHECKPOINT_NOT_FOUND");
  std::vector<std::string> states;
  for (const char* name : {"one", "two"}) {
    ASSERT_TRUE(caller_->Checkpoint("a", name).ok());
    states.push_back(caller_->State("a"));
    Decode(*caller_, "a", 60, 9);
  }
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  const std::string newest = caller_->State("a");
  Decode(*caller_, "a", 90, 1);
  EXPECT_TRUE(RefusedAs(caller_->Restore("a", "three"), "CHECKPOINT_NOT_FOUND", {{"checkpoint", "three"}}));
  ASSERT_TRUE(caller_->Restore("a").ok());
  EXPECT_EQ(caller_->State("a"), newest);
  ASSERT_TRUE(caller_->Restore("a", "one").ok());
  EXPECT_EQ(caller_->State("a"), states[0]);
  ASSERT_TRUE(caller_->Restore("a", "two").ok());
  EXPECT_EQ(caller_->State("a"), states[1]);
  EXPECT_EQ(caller_->Get("a").reply.epoch(), 4);
  StartAfterACrash();
  EXPECT_EQ(caller_->State("a"), states[1]) << "what was restored is durable";
  ASSERT_TRUE(caller_->Restore("a", "one").ok()) << "and the named ones are there";
  EXPECT_EQ(caller_->State("a"), states[0]);
  ASSERT_TRUE(caller_->Delete("a").ok());
  EXPECT_TRUE(FilesBelow(folder_, ".safetensors").empty());
}

TEST_F(Durability, ARestoreBringsBackTheReplyOfThatTime) {
  Feed(*caller_, "a", 0);
  v1::DecodeRequest step = WithId(feed_.Decode({"a"}, TokenRange{30, 1}), "s");
  const auto first = caller_->Decode(step);
  ASSERT_TRUE(caller_->Checkpoint("a", "then").ok());
  v1::DecodeRequest later = WithId(feed_.Decode({"a"}, TokenRange{31, 1}), "t");
  ASSERT_TRUE(caller_->Decode(later).ok());
  ASSERT_TRUE(caller_->Restore("a", "then").ok());
  EXPECT_EQ(caller_->Decode(step).reply.output().data(), first.reply.output().data());
  EXPECT_EQ(caller_->TokenCount("a", 0), kPrompt.count + 1) << "it was stored, not computed";
  ASSERT_TRUE(caller_->Decode(later).ok());
  EXPECT_EQ(caller_->TokenCount("a", 0), kPrompt.count + 2) << "it was computed: it had been undone";
}

TEST_F(Durability, AnOrderlyEndKeepsEpochsBitsAndReplies) {
  for (const std::string id : {"a", "b"}) {
    Feed(*caller_, id, id == "a" ? 13 : 0);
    Feed(steady_, id, id == "a" ? 13 : 0);
  }
  v1::DecodeRequest step = WithId(feed_.Decode({"a"}, TokenRange{40, 1}), "s");
  const auto reply = caller_->Decode(step);
  ASSERT_TRUE(reply.ok() && steady_.Decode(step).ok());
  for (int restart = 0; restart < 2; ++restart) {
    StartAfterAnOrderlyEnd();
    EXPECT_EQ(caller_->Info().reply.recovered_sessions(), 2);
    EXPECT_EQ(caller_->Get("a").reply.epoch(), 1);
    EXPECT_EQ(caller_->Decode(step).reply.output().data(), reply.reply.output().data());
    for (const char* id : {"a", "b"}) EXPECT_EQ(caller_->State(id), steady_.State(id));
  }
  v1::DecodeRequest next = feed_.Decode({"a"}, TokenRange{41, 1});
  next.add_session_epochs(1);
  ASSERT_REPLY(const auto after, caller_->Decode(next));
  EXPECT_EQ(after.output().data(), Decode(steady_, "a", 41, 1));
}

TEST_F(Durability, AStartThatFailsLeavesTheNextOneWhatItFound) {
  Feed(*caller_, "a", 3);
  EXPECT_TRUE(server_->Drain());
  server_ = nullptr;
  const std::string taken = steady_server_.address();
  for (const std::string& address : {taken, std::string("127.0.0.1:0")}) {
    GdnServerOptions options{.models = TokenFeed::Models(), .listen = {address}};
    options.states.disk.directory = folder_.path();
    options.http_listen = taken;
    auto server = GdnServer::Make(MakeTestBackend(/*threads=*/1), options);
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_FALSE((*server)->Start().ok());
  }
  Start();
  EXPECT_EQ(caller_->Get("a").reply.epoch(), 1);
}

TEST_F(Durability, ACrashLosesWhatCameAfterTheCheckpointAndAReplayGivesTheSameBits) {
  Feed(*caller_, "a", 10);
  Feed(steady_, "a", 10);
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  Feed(*caller_, "lost", 1);
  const std::string lost = Decode(*caller_, "a", 30, 9);
  EXPECT_EQ(lost, Decode(steady_, "a", 30, 9));
  int64_t epoch = 1;
  for (int crash = 0; crash < 2; ++crash) {
    StartAfterACrash();
    EXPECT_EQ(caller_->Info().reply.recovered_sessions(), 1);
    v1::DecodeRequest old = feed_.Decode({"a"}, TokenRange{39, 1});
    old.add_session_epochs(epoch);
    const auto refused = caller_->Decode(old);
    EXPECT_TRUE(RefusedAs(refused, "EPOCH_MISMATCH", {{"token_count", std::to_string(kPrompt.count + 10)}}));
    const v1::Session now = caller_->Get("a").reply;
    EXPECT_GT(now.epoch(), epoch) << "every crash gives another";
    EXPECT_EQ(refused.metadata("epoch"), std::to_string(now.epoch()));
    EXPECT_EQ(now.layers(0).token_count(), kPrompt.count + 10);
    EXPECT_EQ(now.layers(0).durable_token_count(), kPrompt.count + 10);
    epoch = now.epoch();
    EXPECT_EQ(Decode(*caller_, "a", 30, 9), lost);
    EXPECT_EQ(caller_->State("a"), steady_.State("a"));
  }
}

TEST_F(Durability, AnOrderlyEndAfterACrashDoesNotBringBackTheOldEpoch) {
  Feed(*caller_, "a", 2);
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  Decode(*caller_, "a", 30, 3);  // answered, and lost
  StartAfterACrash();
  const int64_t epoch = caller_->Get("a").reply.epoch();
  EXPECT_GT(epoch, 1);
  StartAfterAnOrderlyEnd();  // though the session has not moved since
  EXPECT_EQ(caller_->Get("a").reply.epoch(), epoch);
  v1::DecodeRequest old = feed_.Decode({"a"}, TokenRange{33, 1});
  old.add_session_epochs(1);
  EXPECT_EQ(caller_->Decode(old).reason(), "EPOCH_MISMATCH");
}

TEST_F(Durability, APrefillOrAnAcceptanceOfAnOldEpochIsRefused) {
  Feed(*caller_, "a", 2);
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  StartAfterACrash();
  v1::PrefillRequest prompt = feed_.Prefill("a", {50, 4});
  prompt.set_session_epoch(1);
  EXPECT_EQ(caller_->Prefill(prompt).reason(), "EPOCH_MISMATCH");
  v1::AcceptTokensRequest verdict = AcceptOf({"a"}, {0});
  verdict.mutable_acceptances(0)->set_session_epoch(1);
  EXPECT_EQ(caller_->Accept(verdict).reason(), "EPOCH_MISMATCH");
  for (const v1::StepKind kind : {v1::STEP_KIND_DECODE, v1::STEP_KIND_DRAFT, v1::STEP_KIND_PREFILL}) {
    v1::StepRequest step = feed_.Step({{.id = "a", .range = {50, 4}, .kind = kind}});
    step.mutable_rows(0)->set_session_epoch(1);
    EXPECT_EQ(caller_->Step(step).reason(), "EPOCH_MISMATCH");
    step.mutable_rows(0)->mutable_accept_before();
    EXPECT_EQ(caller_->Step(step).reason(), "EPOCH_MISMATCH");
  }
  prompt.set_session_epoch(caller_->Get("a").reply.epoch());
  EXPECT_TRUE(caller_->Prefill(prompt).ok());
}

TEST_F(Durability, APolicyByTokensBoundsWhatACrashLoses) {
  constexpr int64_t kEvery = 8;
  Start({.states = {.policy = {.every_tokens = kEvery}}});
  Feed(*caller_, "a", 0);
  Feed(steady_, "a", 0);
  for (int crash = 0; crash < 3; ++crash) {
    const int64_t before = caller_->TokenCount("a", 0);
    const std::string outputs = Decode(*caller_, "a", before, 21);
    EXPECT_EQ(outputs, Decode(steady_, "a", before, 21));
    StartAfterACrash({.states = {.policy = {.every_tokens = kEvery}}});
    const int64_t kept = caller_->TokenCount("a", 0);
    EXPECT_GE(kept, before + 21 - kEvery);
    Decode(*caller_, "a", kept, before + 21 - kept);
    EXPECT_EQ(caller_->State("a"), steady_.State("a"));
  }
}

// Tokens that a step accepts count as those that it decodes.
TEST_F(Durability, APolicyByTokensBoundsWhatACrashLosesOfAcceptedTokens) {
  constexpr int64_t kEvery = 8;
  constexpr int64_t kDraft = 6;
  Start({.states = {.policy = {.every_tokens = kEvery}}});
  Feed(*caller_, "a", 0);
  int64_t sent = 0;  // tokens of the feed
  for (int crash = 0; crash < 3; ++crash) {
    int64_t counted = caller_->TokenCount("a", 0);
    for (int round = 0; round < 6; ++round) {
      FeedPart draft = {.id = "a", .range = {sent, kDraft}, .kind = v1::STEP_KIND_DRAFT};
      if (round > 0) draft.accept = kDraft;
      sent += kDraft;
      ASSERT_REPLY(const auto reply, caller_->Step(feed_.Step({draft})));
      counted += round > 0 ? kDraft : 0;
      ASSERT_EQ(reply.token_counts(0), counted);
      EXPECT_LE(counted - reply.durable_token_counts(0), kEvery) << "round " << round;
    }
    FeedPart last = {.id = "a", .range = {sent, 2}, .kind = v1::STEP_KIND_PREFILL};
    last.accept = kDraft;
    sent += 2;
    ASSERT_REPLY(const auto reply, caller_->Step(feed_.Step({last})));
    counted += kDraft + 2;
    ASSERT_EQ(reply.token_counts(0), counted);
    StartAfterACrash({.states = {.policy = {.every_tokens = kEvery}}});
    EXPECT_GE(caller_->TokenCount("a", 0), counted - kEvery);
    ASSERT_TRUE(caller_->Accept("a", 0).ok());  // the copy may have a draft
  }
}

TEST_F(Durability, APolicyByTimeMakesWhatRestsDurable) {
  Start({.states = {.policy = {.every = absl::Milliseconds(50)}}});
  Feed(*caller_, "a", 5);
  const std::string state = caller_->State("a");
  const auto durable = [&] { return caller_->Get("a").reply.layers(0).durable_token_count() == kPrompt.count + 5; };
  EXPECT_TRUE(WaitUntil(durable, "a checkpoint"));
  StartAfterACrash();
  EXPECT_EQ(caller_->State("a"), state);
}

TEST_F(Durability, ACheckpointOfTheSameBaseWritesTheLogAlone) {
  Feed(*caller_, "a", 1);
  ASSERT_REPLY(const auto whole, caller_->Checkpoint("a"));
  EXPECT_FALSE(whole.incremental());
  for (int64_t token = 0; token < 3; ++token) {
    Decode(*caller_, "a", 30 + token, 1);
    ASSERT_REPLY(const auto delta, caller_->Checkpoint("a"));
    EXPECT_TRUE(delta.incremental());
    EXPECT_LT(delta.written_bytes(), whole.written_bytes());
  }
  const std::string state = caller_->State("a");
  StartAfterACrash();
  EXPECT_EQ(caller_->State("a"), state);
  Decode(*caller_, "a", 40, 20);  // over a fold, after which the base is another
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  const std::string folded = caller_->State("a");
  StartAfterACrash();
  EXPECT_EQ(caller_->State("a"), folded);
}

TEST_F(Durability, APendingDraftOutlivesTheServer) {
  Feed(*caller_, "a", 12);
  ASSERT_TRUE(caller_->Decode(feed_.Draft({"a"}, {TokenRange{60, 8}})).ok());
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  StartAfterACrash();
  EXPECT_EQ(caller_->Get("a").reply.layers(0).draft_length(), 8);
  ASSERT_TRUE(caller_->Accept("a", 6).ok());
  Feed(steady_, "a", 12);
  Decode(steady_, "a", 60, 6);
  EXPECT_EQ(caller_->State("a"), steady_.State("a"));
}

TEST_F(Durability, ForksAreDurableEachByItself) {
  Feed(*caller_, "p", 4);
  ASSERT_TRUE(caller_->Fork("p", {"c"}).ok());
  Decode(*caller_, "c", 60, 2);
  for (const char* id : {"p", "c"}) ASSERT_TRUE(caller_->Checkpoint(id).ok());
  const std::string parent = caller_->State("p"), child = caller_->State("c");
  StartAfterACrash();
  EXPECT_EQ(caller_->State("p"), parent);
  EXPECT_EQ(caller_->State("c"), child);
}

TEST_F(Durability, WithoutADiskSaysSo) {
  Feed(steady_, "a", 1);
  for (const auto& refused : {steady_.Checkpoint("a").status, steady_.Restore("a").status}) {
    EXPECT_TRUE(RefusedAs(refused, "NO_DURABLE_TIER"));
  }
}

TEST_F(Durability, ADiskThatFailsIsAClearErrorAndStepsGoOn) {
  Feed(*caller_, "a", 1);
  Feed(steady_, "a", 1);
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  // A file where the session's folder was: no permission is needed to fail, so root sees it too.
  const std::vector<std::string> files = FilesBelow(folder_, "s-a/state.safetensors");
  ASSERT_EQ(files.size(), 1u);
  const std::filesystem::path session = std::filesystem::path(files[0]).parent_path();
  const std::filesystem::path aside = folder_.path() + "/aside";
  std::filesystem::rename(session, aside);
  std::filesystem::create_symlink("/dev/null", session);
  EXPECT_EQ(Decode(*caller_, "a", 30, 20), Decode(steady_, "a", 30, 20));
  const auto refused = caller_->Checkpoint("a");
  EXPECT_TRUE(RefusedAs(refused, "TIER_UNAVAILABLE"));
  EXPECT_TRUE(HasRetryInfo(refused.status));
  EXPECT_EQ(caller_->Info().reply.checkpoint_failures(), 1);
  EXPECT_GT(TierNamed(*caller_, "disk").failures(), 0);
  EXPECT_EQ(Decode(*caller_, "a", 50, 1), Decode(steady_, "a", 50, 1));
  std::filesystem::remove(session);
  std::filesystem::rename(aside, session);
  // A tier that failed is left alone for a moment.
  ASSERT_TRUE(WaitUntil([this] { return caller_->Checkpoint("a").ok(); }, "a checkpoint"));
  const std::string state = caller_->State("a");
  StartAfterACrash();
  EXPECT_EQ(caller_->State("a"), state);
}

}  // namespace
}  // namespace gdn::durability_test
