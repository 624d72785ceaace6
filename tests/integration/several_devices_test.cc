// One server with two devices: where sessions go, calls over both, and one that fails.
#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/server/batcher/recording_backend.h"

namespace gdn::several_devices_test {
namespace {

absl::Status Lost() {
  return MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, "the device fell off the bus");
}

// A server on two backends like the one that the run is about. They are recorded where that one is the CPU's, whose
// operators and copies all go through the interface.
class TwoDevices {
 public:
  explicit TwoDevices(GdnServerOptions options = {}) : server_(std::move(options), MakeBackends()) {}

  static bool Recorded() { return TestBackendName() == "cpu"; }
  TestServer& server() { return server_; }
  const Caller& caller() const { return caller_; }
  RecordingBackend& device(int number) { return *recorders_[static_cast<size_t>(number)]; }

  v1::DeviceInfo Info(int number) const {
    const auto info = caller_.Info();
    EXPECT_EQ(info.reply.devices_size(), 2);
    return info.reply.devices_size() == 2 ? info.reply.devices(number) : v1::DeviceInfo();
  }
  // Sessions "a0", "a1", .. on the first device and "b0", .. on the second, each after `prompt` tokens of the feed.
  void StartOnBoth(const TokenFeed& feed, int each, int64_t prompt) const {
    for (int i = 0; i < each; ++i) {
      for (const char* group : {"a", "b"}) {
        const std::string id = group + std::to_string(i);
        v1::CreateSessionRequest creation = feed.Creation(id);
        creation.set_affinity(group);
        const auto made = caller_.Create(creation);
        EXPECT_TRUE(made.ok()) << made.status.error_message();
        if (prompt > 0) {
          EXPECT_TRUE(caller_.Prefill(feed.Prefill(id, {0, prompt})).ok()) << id;
        }
      }
    }
    EXPECT_EQ(Info(0).session_count(), each) << "those of one affinity are together";
    EXPECT_EQ(Info(1).session_count(), each);
  }

 private:
  std::vector<std::unique_ptr<Backend>> MakeBackends() {
    std::vector<std::unique_ptr<Backend>> backends;
    for (int i = 0; i < 2; ++i) {
      computing_.push_back(MakeTestBackend(/*threads=*/1));
      if (!Recorded()) {
        backends.push_back(std::move(computing_.back()));
        continue;
      }
      auto recorder = std::make_unique<RecordingBackend>(*computing_.back());
      recorders_.push_back(recorder.get());
      backends.push_back(std::move(recorder));
    }
    return backends;
  }

  std::vector<std::unique_ptr<Backend>> computing_;  // outlive the server
  std::vector<RecordingBackend*> recorders_;         // the server's
  TestServer server_;
  Caller caller_{server_};
};

int64_t DecodesOf(const RecordingBackend& device, int rows) {
  int64_t count = 0;
  for (const std::string& event : device.events()) count += event == "decode of " + std::to_string(rows) ? 1 : 0;
  return count;
}

TEST(SeveralDevices, CallsOverBothGiveTheBitsOfOneDevice) {
  for (const TokenFeed& feed : {TokenFeed::Operator(2), TokenFeed::Model()}) {
    GdnServerOptions options;
    options.models = TokenFeed::Models();
    TwoDevices world(options);
    TestServer one_device(options);
    const Caller alone(one_device);
    world.StartOnBoth(feed, /*each=*/2, /*prompt=*/70);
    const std::vector<std::string> ids = {"a0", "b0", "b1", "a1"};
    for (const std::string& id : ids) feed.Start(alone, id, {0, 70});
    for (int64_t t = 70; t < 90; ++t) {
      ASSERT_REPLY(const v1::DecodeResponse both, world.caller().Decode(feed.Decode(ids, TokenRange{t, 1})));
      ASSERT_REPLY(const v1::DecodeResponse one, alone.Decode(feed.Decode(ids, TokenRange{t, 1})));
      ASSERT_EQ(both.output().data(), one.output().data()) << feed.name() << " token " << t;
      ASSERT_EQ(both.token_counts(0), t + 1);
    }
    for (const std::string& id : ids) EXPECT_EQ(world.caller().State(id), alone.State(id)) << id;
    if (!TwoDevices::Recorded()) continue;
    EXPECT_EQ(DecodesOf(world.device(0), 2), 20) << "one launch a call on each device";
    EXPECT_EQ(DecodesOf(world.device(1), 2), 20);
  }
}

TEST(SeveralDevices, AStepsRowsOfEveryKindGiveTheBitsOfOneDevice) {
  for (const TokenFeed& feed : {TokenFeed::Operator(2), TokenFeed::Model()}) {
    SCOPED_TRACE(feed.name());
    GdnServerOptions options;
    options.models = TokenFeed::Models();
    TwoDevices world(options);
    TestServer one_device(options);
    const Caller alone(one_device);
    world.StartOnBoth(feed, /*each=*/3, /*prompt=*/14);
    const std::vector<std::string> ids = {"a0", "b0", "b1", "a1", "a2", "b2"};
    for (const std::string& id : ids) feed.Start(alone, id, {0, 14});
    // Each kind of row comes behind a draft.
    constexpr v1::StepKind kKinds[] = {v1::STEP_KIND_DECODE, v1::STEP_KIND_DRAFT, v1::STEP_KIND_DRAFT,
                                       v1::STEP_KIND_PREFILL, v1::STEP_KIND_DRAFT};
    for (size_t round = 0; round < 10; ++round) {
      std::vector<FeedPart> parts;
      for (size_t i = 0; i < ids.size(); ++i) {
        FeedPart part = {.id = ids[i], .range = {static_cast<int64_t>(20 + 10 * round + i), 1}};
        part.kind = kKinds[(i + round) % std::size(kKinds)];
        if (part.kind != v1::STEP_KIND_DECODE) part.range.count = 5;
        if (round > 0 && kKinds[(i + round - 1) % std::size(kKinds)] == v1::STEP_KIND_DRAFT) part.accept = 2;
        parts.push_back(part);
      }
      ASSERT_REPLY(const v1::StepResponse both, world.caller().Step(feed.Step(parts)));
      ASSERT_REPLY(const v1::StepResponse one, alone.Step(feed.Step(parts)));
      ASSERT_EQ(both.output().data(), one.output().data()) << "round " << round;
      for (int i = 0; i < both.token_counts_size(); ++i) ASSERT_EQ(both.token_counts(i), one.token_counts(i)) << i;
    }
    for (const std::string& id : ids) EXPECT_EQ(world.caller().State(id), alone.State(id)) << id;
  }
}

TEST(SeveralDevices, SessionsWithoutAffinityGoWhereThereIsMostRoom) {
  const TwoDevices world;
  const TokenFeed feed = TokenFeed::Operator(1);
  for (const std::string& id : SessionIds(10)) ASSERT_TRUE(feed.Create(world.caller(), id).ok());
  EXPECT_EQ(world.Info(0).session_count(), 5);
  EXPECT_EQ(world.Info(1).session_count(), 5);
  EXPECT_EQ(world.Info(0).state_bytes_used(), world.Info(1).state_bytes_used());
}

TEST(SeveralDevices, ForksAndDraftsStayWithTheirParent) {
  TwoDevices world;
  const TokenFeed feed = TokenFeed::Operator(1);
  TestServer one_device;
  const Caller alone(one_device);
  world.StartOnBoth(feed, /*each=*/1, /*prompt=*/14);
  for (const char* id : {"a0", "b0"}) {
    feed.Start(alone, id, {0, 14});
    for (const Caller* caller : {&world.caller(), &alone}) {
      ASSERT_TRUE(caller->Fork(id, {std::string(id) + "x", std::string(id) + "y"}).ok());
    }
  }
  EXPECT_EQ(world.Info(0).session_count(), 3);
  EXPECT_EQ(world.Info(1).session_count(), 3);
  const std::vector<std::string> ids = {"a0", "b0x", "a0y", "b0"};
  const std::vector<TokenRange> drafts = {{14, 4}, {20, 3}, {30, 2}, {14, 4}};
  for (const Caller* caller : {&world.caller(), &alone}) {
    ASSERT_TRUE(caller->Decode(feed.Draft(ids, drafts)).ok());
    ASSERT_TRUE(caller->Accept(AcceptOf(ids, {3, 3, 0, 4})).ok());  // the first and the last fold
  }
  ASSERT_REPLY(const v1::DecodeResponse both, world.caller().Decode(feed.Decode(ids, TokenRange{50, 1})));
  ASSERT_REPLY(const v1::DecodeResponse one, alone.Decode(feed.Decode(ids, TokenRange{50, 1})));
  EXPECT_EQ(both.output().data(), one.output().data());
  for (const char* id : {"a0", "a0x", "a0y", "b0", "b0x", "b0y"}) {
    EXPECT_EQ(world.caller().State(id), alone.State(id)) << id;
  }
}

TEST(SeveralDevices, StatesMoveThroughTheTiersToWhicheverHasRoom) {
  const TokenFeed feed = TokenFeed::Operator(1);
  GdnServerOptions options;
  {
    TestServer scout;
    const Caller caller(scout);
    ASSERT_TRUE(feed.Create(caller, "scout").ok());
    options.memory.device_state_bytes = 2 * caller.Get("scout").reply.state_bytes();
  }
  options.memory.host_state_bytes = int64_t{1} << 24;
  const TwoDevices world(options);
  TestServer one_device;
  const Caller alone(one_device);
  const std::vector<std::string> ids = SessionIds(9);
  for (const std::string& id : ids) {
    feed.Start(world.caller(), id, {0, 20});
    feed.Start(alone, id, {0, 20});
  }
  for (int64_t t = 20; t < 30; ++t) {
    for (size_t i = 0; i + 2 < ids.size(); i += 3) {  // three are more than a device holds
      const std::vector<std::string> rows = {ids[i], ids[i + 1], ids[i + 2]};
      ASSERT_REPLY(const v1::DecodeResponse both, world.caller().Decode(feed.Decode(rows, TokenRange{t, 1})));
      ASSERT_REPLY(const v1::DecodeResponse one, alone.Decode(feed.Decode(rows, TokenRange{t, 1})));
      ASSERT_EQ(both.output().data(), one.output().data()) << t;
    }
  }
  EXPECT_LE(world.Info(0).session_count(), 2);
  EXPECT_LE(world.Info(1).session_count(), 2);
  const auto too_many = world.caller().Decode(feed.Decode({"s0", "s1", "s2", "s3", "s4"}, TokenRange{30, 1}));
  EXPECT_TRUE(RefusedAs(too_many, "STATE_BUDGET_EXHAUSTED")) << "five at a time fit on no two devices of two each";
}

TEST(SeveralDevices, OneThatFailsTakesOnlyItsOwnSessions) {
  if (!TwoDevices::Recorded()) GTEST_SKIP() << "made to fail by the recorder";
  int told = 0;
  GdnServerOptions options;
  options.on_device_failure = [&told] { ++told; };
  TwoDevices world(options);
  const Caller& caller = world.caller();
  const TokenFeed feed = TokenFeed::Operator(1);
  world.StartOnBoth(feed, /*each=*/2, /*prompt=*/0);

  world.device(1).FailNext(Lost());
  EXPECT_TRUE(RefusedAs(caller.Decode(feed.Decode({"b0"}, TokenRange{0, 1})), "DEVICE_FAILED"));
  EXPECT_EQ(caller.Export("b1").reason(), "DEVICE_FAILED") << "nobody knows what the state is";
  EXPECT_EQ(HealthOf(world.server()), 1);
  EXPECT_EQ(HealthOf(world.server(), "devices"), 2);
  EXPECT_EQ(world.Info(0).failure(), "");
  EXPECT_NE(world.Info(1).failure(), "");
  EXPECT_TRUE(world.server().server().device_status().ok());

  // A call over both: refused whole, or with its row.
  EXPECT_TRUE(RefusedAs(caller.Decode(feed.Decode({"a0", "b1"}, TokenRange{0, 1})), "DEVICE_FAILED",
                        {{"session", "sessions/b1"}}));
  EXPECT_EQ(caller.TokenCount("a0", 0), 0) << "nothing of it was computed";
  v1::DecodeRequest partial = feed.Decode({"a0", "b1"}, TokenRange{0, 1});
  partial.set_partial_ok(true);
  ASSERT_REPLY(const v1::DecodeResponse rows, caller.Decode(partial));
  EXPECT_EQ(rows.row_statuses(0).code(), 0);
  EXPECT_EQ(ErrorInfoOf(rows.row_statuses(1)).reason(), "DEVICE_FAILED");
  EXPECT_EQ(rows.token_counts(0), 1);

  std::vector<FeedPart> parts = {{.id = "a0", .range = {1, 3}, .kind = v1::STEP_KIND_PREFILL},
                                 {.id = "b1", .range = {1, 1}},
                                 {.id = "b0", .range = {1, 3}, .kind = v1::STEP_KIND_PREFILL}};
  v1::StepRequest mixed = feed.Step(parts);
  EXPECT_TRUE(RefusedAs(caller.Step(mixed), "DEVICE_FAILED"));
  EXPECT_EQ(caller.TokenCount("a0", 0), 1) << "nothing of it was computed";
  mixed.set_partial_ok(true);
  ASSERT_REPLY(const v1::StepResponse stepped, caller.Step(mixed));
  EXPECT_EQ(stepped.row_statuses(0).code(), 0);
  for (const int lost : {1, 2}) EXPECT_EQ(ErrorInfoOf(stepped.row_statuses(lost)).reason(), "DEVICE_FAILED") << lost;
  EXPECT_EQ(stepped.token_counts(0), 4);

  // New sessions go where something works, whatever their affinity, and lost ones can be ended.
  v1::CreateSessionRequest creation = feed.Creation("b2");
  creation.set_affinity("b");
  ASSERT_TRUE(caller.Create(creation).ok());
  EXPECT_TRUE(caller.Decode(feed.Decode({"b2", "a1"}, TokenRange{0, 1})).ok());
  EXPECT_TRUE(caller.Delete("b0").ok());
  EXPECT_EQ(told, 0);

  world.device(0).FailNext(Lost());
  EXPECT_TRUE(RefusedAs(caller.Decode(feed.Decode({"a0"}, TokenRange{1, 1})), "DEVICE_FAILED"));
  EXPECT_TRUE(RefusedAs(feed.Create(caller, "c"), "DEVICE_FAILED"));
  EXPECT_EQ(HealthOf(world.server()), 2);
  EXPECT_EQ(told, 1);
}

TEST(SeveralDevices, WhatRestsBelowComesBackOnTheOneThatIsLeft) {
  if (!TwoDevices::Recorded()) GTEST_SKIP() << "made to fail by the recorder";
  const TokenFeed feed = TokenFeed::Operator(1);
  GdnServerOptions options;
  options.memory.host_state_bytes = int64_t{1} << 24;
  {
    TestServer scout;
    const Caller caller(scout);
    ASSERT_TRUE(feed.Create(caller, "scout").ok());
    options.memory.device_state_bytes = caller.Get("scout").reply.state_bytes();
  }
  TwoDevices world(options);
  for (const std::string& id : SessionIds(6)) feed.Start(world.caller(), id, {0, 20});  // the last two are on devices
  world.device(0).FailNext(Lost());
  int lost = 0;
  for (const std::string& id : SessionIds(6)) {
    const auto reply = world.caller().Decode(feed.Decode({id}, TokenRange{20, 1}));
    if (reply.ok()) continue;
    EXPECT_EQ(reply.reason(), "DEVICE_FAILED");
    ++lost;
  }
  EXPECT_GE(lost, 1) << "of the sessions that were on it, or came to it";
  EXPECT_LE(lost, 2);
  for (int round = 1; round < 4; ++round) {
    int answered = 0;
    for (const std::string& id : SessionIds(6)) {
      const int64_t seen = world.caller().TokenCount(id, 0);
      answered += world.caller().Decode(feed.Decode({id}, TokenRange{seen, 1})).ok() ? 1 : 0;
    }
    EXPECT_EQ(answered, 6 - lost) << "all others, through the device that is left";
  }
}

TEST(SeveralDevices, ACallOverBothIsTakenByBothEnginesOrNone) {
  TwoDevices world;
  const TokenFeed feed = TokenFeed::Operator(1);
  world.StartOnBoth(feed, /*each=*/1, /*prompt=*/0);
  Engines& engines = world.server().server().engines();
  engines.at(1).RefuseSteps();
  EXPECT_TRUE(RefusedAs(world.caller().Decode(feed.Decode({"a0", "b0"}, TokenRange{0, 1})), "SERVER_DRAINING"));
  const v1::StepRequest step =
      feed.Step({{.id = "a0", .range = {0, 1}}, {.id = "b0", .range = {0, 9}, .kind = v1::STEP_KIND_PREFILL}});
  EXPECT_TRUE(RefusedAs(world.caller().Step(step), "SERVER_DRAINING"));
  EXPECT_EQ(world.caller().TokenCount("a0", 0), 0);
  EXPECT_TRUE(world.caller().Decode(feed.Decode({"a0"}, TokenRange{0, 1})).ok());
  EXPECT_TRUE(engines.Drain(absl::Seconds(60))) << "no place is held for what was refused";
}

TEST(SeveralDevices, DevicesOfOtherBitsAreRefused) {
  if (!TwoDevices::Recorded()) GTEST_SKIP() << "a CPU and a backend that computes nothing";
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(MakeTestBackend(1));
  backends.push_back(MakeBackend("null").value());
  const auto server = GdnServer::Make(std::move(backends), {});
  ASSERT_FALSE(server.ok());
  EXPECT_NE(server.status().message().find("different bits"), std::string::npos) << server.status();
}

}  // namespace
}  // namespace gdn::several_devices_test
