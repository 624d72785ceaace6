// A session whose state is lost, and calls over several devices of which one fails midway.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/support/failing_backend.h"
#include "tests/support/temp_folder.h"

namespace gdn::lost_session_test {
namespace {

constexpr int64_t kPrompt = 4;
// The operation of a decode from which on the state may have changed: what normalises q and k comes first.
constexpr int64_t kFold = 1;

std::unique_ptr<FailingBackend> MakeFailing() {
  return std::make_unique<FailingBackend>(*MakeCpuBackend({.threads = 1}));
}

// A server of one device, and sessions that a decode after 15 folds.
class LostSession : public testing::Test {
 protected:
  explicit LostSession(GdnServerOptions options = {})
      : backend_(MakeFailing()), device_(backend_.get()), server_(std::move(options), std::move(backend_)) {}

  const TokenFeed feed_ = TokenFeed::Operator(1);
  std::unique_ptr<FailingBackend> backend_;
  FailingBackend* const device_;
  TestServer server_;
  const Caller caller_{server_};
};

TEST_F(LostSession, IsWhatCallsThatHaveJoinedTheStepHearOf) {
  feed_.Start(caller_, "a", {0, kPrompt}, 15);
  const v1::DecodeRequest step = WithId(feed_.Decode({"a"}, TokenRange{kPrompt + 15, 1}), "step");
  EngineBlocker engine(server_.batcher());
  const auto send = [&] { return caller_.Decode(step); };
  auto first = std::async(std::launch::async, send);
  auto second = std::async(std::launch::async, send);
  ASSERT_TRUE(WaitForCalls(server_, "a", 0, 2));
  device_->Fail({.first = kFold, .all_after = true});
  engine.Release();
  EXPECT_TRUE(RefusedAs(first.get(), "STATE_LOST", {{"session", "sessions/a"}, {"layer", "0"}}));
  EXPECT_TRUE(RefusedAs(second.get(), "STATE_LOST", {{"session", "sessions/a"}, {"layer", "0"}}));
  device_->Stop();
  EXPECT_TRUE(RefusedAs(caller_.Decode(step), "STATE_LOST"));
  ASSERT_REPLY(const auto listed, caller_.List(10));
  EXPECT_EQ(listed.sessions_size(), 1);
  ASSERT_TRUE(caller_.Delete("a").ok());
  feed_.Start(caller_, "a", {0, kPrompt}, 15);
  EXPECT_TRUE(caller_.Decode(step).ok()) << "the name is free";
}

TEST_F(LostSession, IsWhatRowsThatHaveJoinedAnAcceptingStepHearOf) {
  for (const char* id : {"a", "b"}) feed_.Start(caller_, id, {0, kPrompt}, 14);
  ASSERT_TRUE(caller_.Decode(feed_.Draft({"a"}, {{kPrompt + 14, 4}})).ok());
  const std::string before = caller_.State("b");
  FeedPart accepts = {.id = "a", .range = {kPrompt + 18, 1}};
  accepts.accept = 3;  // with these the log is folded
  const v1::StepRequest step =
      WithId(feed_.Step({accepts, {.id = "b", .range = {kPrompt + 14, 5}, .kind = v1::STEP_KIND_PREFILL}}), "step");
  EngineBlocker engine(server_.batcher());
  const auto send = [&] { return caller_.Step(step); };
  auto first = std::async(std::launch::async, send);
  auto second = std::async(std::launch::async, send);
  ASSERT_TRUE(WaitForCalls(server_, "a", 0, 2));
  ASSERT_TRUE(WaitForCalls(server_, "b", 0, 2));
  device_->Fail({.first = 0, .all_after = true});
  engine.Release();
  for (auto* const call : {&first, &second}) {
    EXPECT_TRUE(RefusedAs(call->get(), "STATE_LOST", {{"session", "sessions/a"}, {"layer", "0"}}));
  }
  device_->Stop();
  EXPECT_TRUE(RefusedAs(caller_.Step(step), "STATE_LOST", {{"session", "sessions/a"}}));
  EXPECT_EQ(caller_.State("b"), before) << "a prefill writes aside";
  const v1::StepRequest other =
      WithId(feed_.Step({{.id = "b", .range = {kPrompt + 14, 5}, .kind = v1::STEP_KIND_PREFILL}}), "step");
  ASSERT_REPLY(const auto again, caller_.Step(other));
  EXPECT_EQ(again.token_counts(0), kPrompt + 19);
}

TEST(LostSessionOnDisk, ComesBackFromItsCopyInANewEpochAfterAStop) {
  const TempFolder folder;
  const TokenFeed feed = TokenFeed::Operator(1);
  GdnServerOptions options;
  options.states.disk.directory = folder.path();
  {
    auto made = MakeFailing();
    FailingBackend* const device = made.get();
    TestServer server(options, std::move(made));
    const Caller caller(server);
    for (const char* id : {"a", "b"}) {
      feed.Start(caller, id, {0, kPrompt}, 13);
      ASSERT_TRUE(caller.Checkpoint(id).ok());
      feed.DecodeAll(caller, id, {kPrompt + 13, 2});
    }
    device->Fail({.first = kFold, .all_after = true});
    EXPECT_TRUE(RefusedAs(caller.Decode(feed.Decode({"a"}, TokenRange{kPrompt + 15, 1})), "STATE_ROLLED_BACK"));
    device->Stop();
    ASSERT_TRUE(server.Drain()) << "a lost session keeps nobody's state from being durable";
  }
  TestServer server(options, MakeFailing());
  const Caller caller(server);
  ASSERT_REPLY(const v1::Session kept, caller.Get("b"));
  EXPECT_EQ(kept.epoch(), 1) << "of an orderly stop";
  EXPECT_EQ(caller.TokenCount("b", 0), kPrompt + 15);
  ASSERT_REPLY(const v1::Session restored, caller.Get("a"));
  EXPECT_EQ(restored.epoch(), 2);
  EXPECT_EQ(caller.TokenCount("a", 0), kPrompt + 13);
  v1::DecodeRequest step = feed.Decode({"a"}, TokenRange{kPrompt + 13, 1});
  step.add_session_epochs(1);
  EXPECT_TRUE(RefusedAs(caller.Decode(step), "EPOCH_MISMATCH"));
  step.set_session_epochs(0, 2);
  EXPECT_TRUE(caller.Decode(step).ok());
}

// Two devices with a session each, and calls over both of which one device refuses its part.
class OneDeviceFails : public testing::Test {
 protected:
  OneDeviceFails() : server_({}, MakeBackends()) {
    for (const char* id : {"a", "b"}) {
      v1::CreateSessionRequest creation = feed_.Creation(id);
      creation.set_affinity(id);
      EXPECT_TRUE(caller_.Create(creation).ok());
      EXPECT_TRUE(caller_.Prefill(feed_.Prefill(id, {0, kPrompt})).ok());
      feed_.DecodeAll(caller_, id, {kPrompt, 13});
    }
    // A session's device is the one that counts an operation of its step.
    devices_.back()->Fail({});
    feed_.DecodeAll(caller_, "a", {kPrompt + 13, 1});
    feed_.DecodeAll(caller_, "b", {kPrompt + 13, 1});
    EXPECT_GT(devices_.back()->Stop(), 0);
  }

  std::vector<std::unique_ptr<Backend>> MakeBackends() {
    std::vector<std::unique_ptr<Backend>> backends;
    for (int i = 0; i < 2; ++i) {
      auto made = MakeFailing();
      devices_.push_back(made.get());
      backends.push_back(std::move(made));
    }
    return backends;
  }

  const TokenFeed feed_ = TokenFeed::Operator(1);
  std::vector<FailingBackend*> devices_;
  TestServer server_;
  const Caller caller_{server_};
};

TEST_F(OneDeviceFails, AndADecodeSaysWhichRowsHaveHappened) {
  const v1::DecodeRequest step = WithId(feed_.Decode({"a", "b"}, TokenRange{kPrompt + 14, 1}), "step");
  devices_[1]->Fail({.first = 0, .all_after = true});
  const auto refused = caller_.Decode(step);
  devices_[1]->Stop();
  EXPECT_TRUE(RefusedAs(refused, "STATE_BUDGET_EXHAUSTED", {{"applied_rows", "0"}, {"session", "sessions/b"}}));
  EXPECT_EQ(caller_.TokenCount("a", 0), kPrompt + 15);
  EXPECT_EQ(caller_.TokenCount("b", 0), kPrompt + 14);
  ASSERT_REPLY(const auto again, caller_.Decode(step));
  EXPECT_EQ(again.token_counts(0), kPrompt + 15) << "from its stored reply";
  EXPECT_EQ(again.token_counts(1), kPrompt + 15);
  EXPECT_EQ(RowBytes(again.output(), 0), RowBytes(again.output(), 1)) << "they have seen the same";

  v1::DecodeRequest each = feed_.Decode({"a", "b"}, TokenRange{kPrompt + 15, 1});
  each.set_partial_ok(true);
  devices_[1]->Fail({.first = kFold, .all_after = true});
  ASSERT_REPLY(const auto partly, caller_.Decode(each));
  devices_[1]->Stop();
  EXPECT_EQ(partly.row_statuses(0).code(), 0);
  EXPECT_EQ(ErrorInfoOf(partly.row_statuses(1)).reason(), "STATE_LOST") << "its fold had begun";
}

TEST_F(OneDeviceFails, AndAStepSaysWhichRowsHaveHappened) {
  const v1::StepRequest step =
      WithId(feed_.Step({{.id = "a", .range = {kPrompt + 14, 1}},
                         {.id = "b", .range = {kPrompt + 14, 5}, .kind = v1::STEP_KIND_PREFILL}}),
             "step");
  devices_[1]->Fail({.first = 0, .all_after = true});
  const auto refused = caller_.Step(step);
  devices_[1]->Stop();
  EXPECT_TRUE(RefusedAs(refused, "STATE_BUDGET_EXHAUSTED", {{"applied_rows", "0"}, {"session", "sessions/b"}}));
  EXPECT_EQ(caller_.TokenCount("a", 0), kPrompt + 15);
  EXPECT_EQ(caller_.TokenCount("b", 0), kPrompt + 14);
  ASSERT_REPLY(const auto again, caller_.Step(step));
  EXPECT_EQ(again.token_counts(0), kPrompt + 15) << "from its stored reply";
  EXPECT_EQ(again.token_counts(1), kPrompt + 19);

  // A draft on each device, which both rows accept first.
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(caller_.Decode(feed_.Draft({id}, {{kPrompt + 30, 3}})).ok());
  }
  std::vector<FeedPart> rows = {{.id = "a", .range = {kPrompt + 40, 1}}, {.id = "b", .range = {kPrompt + 40, 1}}};
  for (FeedPart& row : rows) row.accept = 3;
  v1::StepRequest each = feed_.Step(rows);
  each.set_partial_ok(true);
  devices_[0]->Fail({.first = 0, .all_after = true});
  ASSERT_REPLY(const auto partly, caller_.Step(each));
  devices_[0]->Stop();
  EXPECT_EQ(ErrorInfoOf(partly.row_statuses(0)).reason(), "STATE_LOST") << "its fold had begun";
  EXPECT_EQ(partly.row_statuses(1).code(), 0);
  EXPECT_EQ(partly.token_counts(1), kPrompt + 23);
}

TEST_F(OneDeviceFails, AndAnAcceptanceSaysWhichRowsHaveHappened) {
  ASSERT_TRUE(caller_.Decode(feed_.Draft({"a", "b"}, {{kPrompt + 14, 3}, {kPrompt + 14, 3}})).ok());
  const v1::AcceptTokensRequest verdict = WithId(AcceptOf({"a", "b"}, {3, 3}), "verdict");
  devices_[1]->Fail({.first = 0, .all_after = true});
  const auto refused = caller_.Accept(verdict);
  devices_[1]->Stop();
  EXPECT_TRUE(RefusedAs(refused, "STATE_LOST", {{"applied_rows", "0"}, {"session", "sessions/b"}}));
  EXPECT_EQ(caller_.TokenCount("a", 0), kPrompt + 17);
}

}  // namespace
}  // namespace gdn::lost_session_test
