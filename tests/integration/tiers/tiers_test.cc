// Tiers: sessions that leave the device for want of room and come back when they are needed, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"

namespace gdn::tiers_test {
namespace {

constexpr int kLayers = 2;

// Bytes of state of an operator session.
int64_t SessionBytes(int layers = kLayers) {
  TestServer server;
  return Caller(server).CreateOperator("probe", SmallOperator(layers)).reply.state_bytes();
}

class Tiers : public ::testing::Test {
 protected:
  int64_t BytesOf(double sessions) const { return static_cast<int64_t>(sessions * static_cast<double>(bytes_)); }
  // A server that has room for `sessions` on the device; with host memory for further ones, with a disk for all others.
  GdnServerOptions WithRoomFor(double sessions) const { return {.memory = {.device_state_bytes = BytesOf(sessions)}}; }
  GdnServerOptions WithHost(double sessions, double host_sessions = 100) const {
    GdnServerOptions options = WithRoomFor(sessions);
    options.memory.host_state_bytes = BytesOf(host_sessions);
    return options;
  }
  GdnServerOptions WithDisk(double sessions, const TempFolder& folder) const {
    GdnServerOptions options = WithRoomFor(sessions);
    options.states.disk.directory = folder.path();
    return options;
  }
  int64_t Tokens(size_t who) const { return 20 * static_cast<int64_t>(who); }  // where its own tokens begin

  void CreateAll(const Caller& caller, const std::vector<std::string>& ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_TRUE(feed_.Create(caller, ids[i]).ok());
      for (int layer = 0; layer < kLayers; ++layer) {
        const auto prompt = caller.Prefill(feed_.Prefill(ids[i], {Tokens(i), 3}, layer));
        ASSERT_TRUE(prompt.ok()) << ids[i] << ": " << prompt.status.error_message();
      }
    }
  }
  // A round of one token for each session, one after the other.
  std::string Round(const Caller& caller, const std::vector<std::string>& ids, int round) {
    std::string outputs;
    for (size_t i = 0; i < ids.size(); ++i) {
      outputs += feed_.DecodeAll(caller, ids[i], {Tokens(i) + 3 + round, 1}, round % kLayers);
    }
    return outputs;
  }
  // On a server with those options every session is as if it had never moved, though they left for the tier and came
  // back from it more than once a round.
  void ExpectEverySessionBack(const GdnServerOptions& options, int sessions, int rounds, const std::string& tier) {
    TestServer server(options);
    const Caller small(server);
    const std::vector<std::string> ids = SessionIds(sessions);
    CreateAll(big_, ids);
    CreateAll(small, ids);
    for (int round = 0; round < rounds; ++round) {
      ASSERT_EQ(Round(small, ids, round), Round(big_, ids, round)) << "round " << round;
    }
    for (const std::string& id : ids) EXPECT_EQ(small.State(id), big_.State(id)) << id;
    const v1::TierInfo moved = TierNamed(small, tier);
    EXPECT_GT(moved.stores(), rounds);
    EXPECT_GT(moved.loads(), rounds);
    EXPECT_EQ(moved.failures(), 0);
    EXPECT_LE(TierNamed(small, "device").used_bytes(), options.memory.device_state_bytes);
  }

  const int64_t bytes_ = SessionBytes();
  const TokenFeed feed_ = TokenFeed::Operator(kLayers);
  TestServer big_server_;
  const Caller big_{big_server_};
};

TEST_F(Tiers, HostMemoryGivesBackEverySessionToTheBit) {
  ExpectEverySessionBack(WithHost(2.5), 6, 36, "host");  // over a fold of both layers
}

TEST_F(Tiers, TheDiskGivesBackEverySessionToTheBit) {
  const TempFolder folder;
  ExpectEverySessionBack(WithDisk(2.5, folder), 4, 20, "disk");
}

TEST_F(Tiers, RedisGivesBackEverySessionToTheBit) {
  if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
  RedisServer redis;
  redis.Start();
  GdnServerOptions options = WithRoomFor(2.5);
  options.states.redis.endpoint = redis.endpoint();
  ExpectEverySessionBack(options, 4, 20, "redis");
}

TEST_F(Tiers, ABatchMayMeetSessionsInEveryTier) {
  const TempFolder folder;
  GdnServerOptions options = WithHost(4.5, 3.5);
  options.states.disk.directory = folder.path();
  TestServer server(options);
  const Caller caller(server);
  const std::vector<std::string> ids = SessionIds(12);
  CreateAll(caller, ids);
  CreateAll(big_, ids);
  std::vector<int> tiers;
  for (const std::string& id : ids) tiers.push_back(caller.Get(id).reply.tier());
  for (const v1::StateTier tier : {v1::STATE_TIER_DEVICE, v1::STATE_TIER_HOST, v1::STATE_TIER_DISK}) {
    EXPECT_GT(std::count(tiers.begin(), tiers.end(), tier), 0) << v1::StateTier_Name(tier);
  }
  for (int round = 0; round < 6; ++round) {
    // One of the oldest, which is lowest, two from between, the newest.
    const std::vector<std::string> batch = {ids[static_cast<size_t>(round)], ids[6], ids[8], ids[11]};
    ASSERT_REPLY(const auto here, caller.Decode(feed_.Decode(batch, TokenRange{300 + round, 1})));
    EXPECT_EQ(here.output().data(), big_.Decode(feed_.Decode(batch, TokenRange{300 + round, 1})).reply.output().data());
  }
  for (const std::string& id : ids) EXPECT_EQ(caller.State(id), big_.State(id));
}

// Drafts leave with their sessions, and the step that accepts them brings them back.
TEST_F(Tiers, AStepMayMeetSessionsInEveryTier) {
  const TempFolder folder;
  GdnServerOptions options = WithHost(5.5, 3.5);
  options.states.disk.directory = folder.path();
  TestServer server(options);
  const Caller caller(server);
  const std::vector<std::string> ids = SessionIds(12);
  CreateAll(caller, ids);
  CreateAll(big_, ids);
  constexpr v1::StepKind kKinds[] = {v1::STEP_KIND_DRAFT, v1::STEP_KIND_DECODE, v1::STEP_KIND_DRAFT,
                                     v1::STEP_KIND_PREFILL};
  std::vector<size_t> steps(ids.size(), 0);  // of each session
  for (size_t round = 0; round < 24; ++round) {
    SCOPED_TRACE(round);
    std::vector<FeedPart> parts;
    for (size_t i = 0; i < 4; ++i) {
      const size_t who = (4 * round + 3 * i + round / 3) % ids.size();
      FeedPart part = {.id = ids[who], .range = {static_cast<int64_t>(100 + 10 * round + i), 1}};
      part.kind = kKinds[steps[who] % std::size(kKinds)];
      if (part.kind == v1::STEP_KIND_PREFILL) part.range.count = 6;
      if (part.kind == v1::STEP_KIND_DRAFT) {
        part.range.count = 4;
        part.parents = {-1, 0, 0, 2};
      }
      if (steps[who] % 2 == 1) part.path = {0, 2, 3};  // behind a draft
      ++steps[who];
      parts.push_back(part);
    }
    ASSERT_REPLY(const auto here, caller.Step(WithId(feed_.Step(parts), "r" + std::to_string(round))));
    ASSERT_REPLY(const auto expected, big_.Step(feed_.Step(parts)));
    EXPECT_EQ(here.output().data(), expected.output().data());
    // A retry finds each reply, wherever its session is by now.
    if (round % 5 != 0) continue;
    for (const FeedPart& part : parts)
      caller.Evict(part.id, round % 2 == 0 ? v1::STATE_TIER_DISK : v1::STATE_TIER_HOST);
    ASSERT_REPLY(const auto again, caller.Step(WithId(feed_.Step(parts), "r" + std::to_string(round))));
    EXPECT_EQ(again.output().data(), expected.output().data());
  }
  EXPECT_GT(TierNamed(caller, "disk").loads(), 0);
  for (const std::string& id : ids) EXPECT_EQ(caller.State(id), big_.State(id)) << id;
}

TEST_F(Tiers, APrefetchedSessionIsOnTheDevice) {
  TestServer server(WithHost(2.5));
  const Caller caller(server);
  CreateAll(caller, SessionIds(4));
  EXPECT_EQ(caller.Get("s0").reply.tier(), v1::STATE_TIER_HOST);
  ASSERT_REPLY(const auto hint, caller.Prefetch({"s0", "s3", "unknown"}));
  EXPECT_EQ(hint.started(), 1);
  EXPECT_EQ(hint.resident(), 1);
  EXPECT_TRUE(WaitUntil([&] { return caller.Get("s0").reply.tier() == v1::STATE_TIER_DEVICE; }, "the prefetch"));
}

TEST_F(Tiers, ABatchThatCannotFitIsRefusedAndNothingMoves) {
  TestServer server(WithHost(2.5));
  const Caller caller(server);
  const std::vector<std::string> ids = SessionIds(4);
  CreateAll(caller, ids);
  std::vector<std::string> states;
  for (const std::string& id : ids) states.push_back(caller.State(id));
  EXPECT_TRUE(RefusedAs(caller.Decode(feed_.Decode(ids, TokenRange{300, 1})), "STATE_BUDGET_EXHAUSTED"));
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(caller.State(ids[i]), states[i]);
  EXPECT_TRUE(caller.Decode(feed_.Decode({"s0", "s2"}, TokenRange{300, 1})).ok()) << "two fit";
}

TEST_F(Tiers, WhenAllAreFullANewSessionIsRefusedAndTheOthersGoOn) {
  GdnServerOptions options = WithHost(2.5, 3.5);
  options.memory.session_bytes = BytesOf(100);
  TestServer server(options);
  const Caller caller(server);
  std::vector<std::string> ids;
  grpc::Status refused;
  for (const std::string& id : SessionIds(20)) {
    const auto made = feed_.Create(caller, id);
    refused = made.status;
    if (!made.ok()) break;
    for (int layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(caller.Prefill(feed_.Prefill(id, {Tokens(ids.size()), 3}, layer)).ok());
    }
    ids.push_back(id);
  }
  EXPECT_TRUE(RefusedAs(refused, "STATE_BUDGET_EXHAUSTED"));
  EXPECT_TRUE(HasRetryInfo(refused));
  EXPECT_GE(ids.size(), 5u);
  EXPECT_EQ(caller.Info().reply.session_count(), static_cast<int64_t>(ids.size()));
  CreateAll(big_, ids);
  for (const std::string& id : ids) EXPECT_EQ(caller.State(id), big_.State(id)) << id;
  // Sessions on the device can step. A session can be created again once another has been deleted.
  const TokenRange next = {300, 1};
  EXPECT_EQ(caller.Decode(feed_.Decode({ids.back()}, next)).reply.output().data(),
            big_.Decode(feed_.Decode({ids.back()}, next)).reply.output().data());
  ASSERT_TRUE(caller.Delete(ids.front()).ok());
  EXPECT_TRUE(feed_.Create(caller, "later").ok());
}

TEST_F(Tiers, SessionsWhoseTimeIsOverEndOnceAndLeaveNothing) {
  const TempFolder folder;
  TestServer server(WithDisk(2.5, folder));
  const Caller caller(server);
  for (const std::string& id : SessionIds(6)) {
    v1::CreateSessionRequest request = feed_.Creation(id);
    auto* ttl = id == "s1" || id == "s4" ? request.mutable_max_lifetime() : request.mutable_idle_ttl();
    id == "s0" ? ttl->set_seconds(3600) : ttl->set_nanos(300'000'000);
    ASSERT_TRUE(caller.Create(request).ok());
    const auto prompt = caller.Prefill(feed_.Prefill(id, {0, 3}));
    EXPECT_TRUE(prompt.ok() || prompt.reason() == "SESSION_NOT_FOUND") << "on a slow machine its time is over by now";
  }
  EXPECT_TRUE(WaitUntil([&] { return caller.Info().reply.session_count() == 1; }, "five sessions to end"));
  EXPECT_EQ(caller.Info().reply.expired_sessions(), 5);
  EXPECT_EQ(caller.Get("s3").reason(), "SESSION_NOT_FOUND");
  EXPECT_TRUE(caller.Get("s0").ok());
  EXPECT_LE(FilesBelow(folder, ".safetensors").size(), 2u) << "of s0 only";
  ASSERT_TRUE(caller.Delete("s0").ok());
  EXPECT_TRUE(FilesBelow(folder, ".safetensors").empty());
  EXPECT_EQ(caller.Info().reply.state_bytes_used(), 0);
  EXPECT_EQ(caller.Info().reply.expired_sessions(), 5) << "a deleted one did not expire";
}

TEST_F(Tiers, AParkedSessionIsDeletedWithItsFiles) {
  const TempFolder folder;
  TestServer server(WithDisk(1.5, folder));
  const Caller caller(server);
  CreateAll(caller, {"s0", "s1"});
  EXPECT_EQ(caller.Get("s0").reply.tier(), v1::STATE_TIER_DISK);
  EXPECT_FALSE(FilesBelow(folder, "s-s0/state.safetensors").empty());
  ASSERT_TRUE(caller.Delete("s0").ok());
  EXPECT_TRUE(FilesBelow(folder, "s-s0/state.safetensors").empty());
  EXPECT_EQ(caller.Get("s0").reason(), "SESSION_NOT_FOUND");
  EXPECT_TRUE(feed_.Create(caller, "s0").ok());
  EXPECT_EQ(caller.TokenCount("s0", 0), 0);
}

TEST_F(Tiers, ADamagedFileIsDataLossOfItsSessionAlone) {
  const TempFolder folder;
  TestServer server(WithDisk(1.5, folder));
  const Caller caller(server);
  CreateAll(caller, SessionIds(3));
  CreateAll(big_, SessionIds(3));
  const std::vector<std::string> files = FilesBelow(folder, "s-s0/state.safetensors");
  ASSERT_EQ(files.size(), 1u);
  const auto bytes = static_cast<std::streamoff>(std::filesystem::file_size(files[0]));
  std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(bytes - 5);
  const auto flipped = static_cast<char>(file.get() ^ 0x20);
  file.seekp(bytes - 5);
  file.put(flipped);
  file.close();
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto lost = caller.Decode(feed_.Decode({"s0"}, TokenRange{300, 1}));
    EXPECT_TRUE(RefusedAs(lost, "INVALID_STATE_FILE"));
    EXPECT_NE(lost.metadata("tensor").find("layer.1."), std::string::npos) << lost.metadata("tensor");
  }
  for (const std::string id : {"s1", "s2"}) {
    EXPECT_EQ(feed_.DecodeAll(caller, id, {300, 1}), feed_.DecodeAll(big_, id, {300, 1}));
    EXPECT_EQ(caller.State(id), big_.State(id));
  }
  EXPECT_TRUE(caller.Delete("s0").ok());
}

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoll(value);
}

// Many more sessions than the device has room for; GDN_MANY_SESSIONS and GDN_MANY_ROOM say how many.
TEST(ManySessions, AreEachCorrectAfterEvictionAndReturn) {
  const int sessions = static_cast<int>(FromEnvironment("GDN_MANY_SESSIONS", 300));
  const int64_t room = FromEnvironment("GDN_MANY_ROOM", 10);
  const int64_t bytes = SessionBytes(1);
  const TokenFeed feed = TokenFeed::Operator(1);
  const TempFolder folder;
  GdnServerOptions options;
  options.memory.device_state_bytes = room * bytes + bytes / 2;
  options.memory.host_state_bytes = sessions / 2 * bytes;
  options.states.disk.directory = folder.path();
  TestServer server(options);
  const Caller caller(server);
  // Session i takes tokens from i % 100 on; so one that was never moved stands for many.
  constexpr int kKinds = 100;
  TestServer reference_server;
  const Caller reference(reference_server);
  const std::vector<std::string> ids = SessionIds(sessions);
  const auto first = [&](int i) { return static_cast<int64_t>(i % kKinds); };
  std::vector<std::vector<std::string>> expected(2);
  std::vector<std::string> states;
  for (int i = 0; i < std::min(sessions, kKinds); ++i) {
    const std::string& id = ids[static_cast<size_t>(i)];
    ASSERT_TRUE(feed.Create(reference, id).ok());
    for (int64_t round = 0; round < 2; ++round) {
      expected[static_cast<size_t>(round)].push_back(
          feed.DecodeAll(reference, id, {first(i) + 10 * round, 1 + 9 * round}));
    }
    states.push_back(reference.State(id));
  }
  for (int64_t round = 0; round < 2; ++round) {
    for (int i = 0; i < sessions; ++i) {
      const std::string& id = ids[static_cast<size_t>(i)];
      if (round == 0) {
        ASSERT_TRUE(feed.Create(caller, id).ok());
      }
      ASSERT_EQ(feed.DecodeAll(caller, id, {first(i) + 10 * round, 1 + 9 * round}),
                expected[static_cast<size_t>(round)][static_cast<size_t>(i % kKinds)])
          << id;
    }
  }
  for (int i = 0; i < sessions; ++i) {
    ASSERT_EQ(caller.State(ids[static_cast<size_t>(i)]), states[static_cast<size_t>(i % kKinds)]) << i;
  }
  const v1::TierInfo disk = TierNamed(caller, "disk");
  EXPECT_GT(disk.stores(), 0);
  EXPECT_GT(disk.loads(), 0);
  EXPECT_EQ(disk.failures(), 0);
  RecordProperty("disk_loads", std::to_string(disk.loads()));
}

}  // namespace
}  // namespace gdn::tiers_test
