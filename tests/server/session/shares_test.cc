// A caller may hold only its share beside another: of sessions, named checkpoints, host memory for states, the disk.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/string_cat.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"
#include "tests/support/random.h"

namespace gdn::shares_test {
namespace {

class Shares : public ::testing::Test {
 protected:
  static ByteAccountPtr Account(TieredWorld& world, const std::string& address) {
    return world.ledger.AccountOf("", "ipv4:" + address + ":1");
  }
  static absl::StatusOr<std::shared_ptr<Session>> TryMakeOf(TieredWorld& world, const std::string& id,
                                                            const ByteAccountPtr& account) {
    SessionInit init = world.Init(id);
    init.account = account;
    return world.TryMake(std::move(init));
  }
  // With the mark 1.
  static std::shared_ptr<Session> MakeOf(TieredWorld& world, const std::string& id, const ByteAccountPtr& account) {
    auto session = TryMakeOf(world, id, account).value();
    EXPECT_TRUE(world.Write(session, 1).ok());
    return session;
  }
  static std::vector<std::shared_ptr<Session>> MakeManyOf(TieredWorld& world, int count,
                                                          const ByteAccountPtr& account) {
    std::vector<std::shared_ptr<Session>> made;
    for (int i = 0; i < count; ++i) made.push_back(MakeOf(world, StrCat("many", i), account));
    return made;
  }
  static void ExpectRefused(const absl::Status& status, const std::string& pool, const std::string& flag) {
    ExpectError(status, absl::StatusCode::kResourceExhausted, reason::kBytesExhausted);
    EXPECT_EQ(ErrorMetadata(status)["pool"], pool) << status;
    EXPECT_NE(status.message().find(flag), absl::string_view::npos) << status;
  }
  // In every pool where states are, or that sessions are charged in.
  static std::map<std::string, int64_t> Held(const TieredWorld& world) {
    std::map<std::string, int64_t> held;
    for (const auto& [name, pool] : {std::pair("session", BytePool::kStates), std::pair("device", BytePool::kDevice),
                                     std::pair("host", BytePool::kHost), std::pair("disk", BytePool::kDisk),
                                     std::pair("copy", BytePool::kCopies)}) {
      if (const int64_t bytes = world.ledger.held(pool); bytes != 0) held[name] = bytes / world.SessionBytes();
    }
    return held;
  }
  using Sessions = std::map<std::string, int64_t>;  // by pool, how many are charged
};

TEST_F(Shares, WhoIsWithinItsShareStaysInHostMemoryWhileOthersGoToDisk) {
  TieredWorld world({.device_sessions = 2, .host_bytes = 8 * TieredWorld().SessionBytes(), .disk = true});
  const ByteAccountPtr greedy = Account(world, "10.0.0.1"), modest = Account(world, "10.0.0.2");
  const auto a = MakeOf(world, "a", modest), b = MakeOf(world, "b", modest);
  MakeManyOf(world, 20, greedy);
  EXPECT_EQ(world.PlaceOf(a), "host");
  EXPECT_EQ(world.PlaceOf(b), "host");
  EXPECT_EQ(*world.Read(a), 1);
  for (int i = 0; i < 8; ++i) MakeOf(world, StrCat("more", i), greedy);
  for (const auto& [key, version] : world.disk.versions()) EXPECT_TRUE(key.id != "a" && key.id != "b") << key.id;
  EXPECT_EQ(Held(world), (Sessions{{"session", 30}, {"device", 2}, {"host", 8}, {"disk", 20}}));
}

// All that a greedy caller has on the device is in use: it waits for itself, and does not move others' sessions out.
TEST_F(Shares, WhoIsOverItsShareGetsNoRoomFromThoseWithinTheirs) {
  TieredWorld world({.device_sessions = 8});
  const ByteAccountPtr greedy = Account(world, "10.0.0.1"), modest = Account(world, "10.0.0.2");
  const auto many = MakeManyOf(world, 8, greedy);
  const auto a = MakeOf(world, "a", modest);
  ASSERT_EQ(world.PlaceOf(a), "device");
  std::vector<SessionPin> in_use;
  std::shared_ptr<Session> parked;
  for (const auto& session : many) {
    if (!session->resident()) {
      parked = session;
      continue;
    }
    GDN_ASSERT_OK_AND_ASSIGN(SessionPin pin, world.PinOne(session));
    in_use.push_back(std::move(pin));
  }
  ASSERT_EQ(in_use.size(), 7u);
  const Residency::PinResults refused = world.Pin({parked}, SteadyNow() + absl::Milliseconds(300));
  EXPECT_FALSE(refused[0].ok());
  EXPECT_EQ(world.PlaceOf(a), "device");
  in_use.pop_back();
  EXPECT_TRUE(world.PinOne(parked).ok());
  EXPECT_EQ(world.PlaceOf(a), "device");
}

TEST_F(Shares, WhoIsOverItsShareMakesNoFurtherSessionAndALateComerDoes) {
  TieredWorld world({.device_sessions = 4, .most_sessions = 16});
  const ByteAccountPtr greedy = Account(world, "10.0.0.1"), late = Account(world, "10.0.0.2");
  const auto many = MakeManyOf(world, 14, greedy);
  const absl::Status refused = TryMakeOf(world, "one more", greedy).status();
  ExpectRefused(refused, "session", "--session-bytes");
  EXPECT_EQ(ErrorMetadata(refused)["needed"], StrCat(world.SessionBytes()));
  EXPECT_EQ(ErrorMetadata(refused)["held"], StrCat(14 * world.SessionBytes()));
  EXPECT_EQ(ErrorMetadata(refused)["limit"], StrCat(16 * world.SessionBytes()));
  EXPECT_FALSE(world.manager.Find("", "one more").ok());
  for (const auto& session : many) EXPECT_EQ(*world.Read(session), 1);
  GDN_ASSERT_OK_AND_ASSIGN(const auto again, world.manager.Begin(world.Init("many3")));
  EXPECT_FALSE(again.pending()) << "what is there already takes nothing";
  MakeOf(world, "a", late);
  MakeOf(world, "b", late);
  ASSERT_TRUE(world.Delete("many0").ok() && world.Delete("many1").ok() && world.Delete("many2").ok());
  {
    SessionInit init = world.Init("given up");
    init.account = greedy;
    GDN_ASSERT_OK_AND_ASSIGN(const auto creation, world.manager.Begin(std::move(init)));
    ExpectRefused(TryMakeOf(world, "one more", greedy).status(), "session", "--session-bytes");
  }
  MakeOf(world, "one more", greedy);
}

TEST_F(Shares, NamedCheckpointsCountAsSessionsDo) {
  TieredWorld world({.device_sessions = 4, .disk = true, .most_sessions = 16});
  const ByteAccountPtr greedy = Account(world, "10.0.0.1"), late = Account(world, "10.0.0.2");
  const auto session = MakeOf(world, "a", greedy);
  for (int i = 0; i < 13; ++i) ASSERT_TRUE(world.Checkpoint(session, StrCat("c", i)).ok());
  ExpectRefused(world.Checkpoint(session, "c13").status(), "session", "--session-bytes");
  EXPECT_TRUE(world.Checkpoint(session, "c12").ok()) << "it is there already";
  EXPECT_TRUE(world.Checkpoint(session).ok()) << "the newest is the session's own";
  EXPECT_EQ(Held(world), (Sessions{{"session", 14}, {"device", 1}, {"disk", 14}}));
  EXPECT_TRUE(world.Checkpoint(MakeOf(world, "b", late), "c").ok());
  for (const char* id : {"c0", "c1", "c2"}) ASSERT_TRUE(world.DeleteCheckpoint(session, id).ok());
  EXPECT_TRUE(world.Checkpoint(session, "c13").ok());
  ASSERT_TRUE(world.Delete("a").ok() && world.Delete("b").ok());
  EXPECT_EQ(Held(world), Sessions());
}

TEST_F(Shares, CheckpointsOfWhoIsOverItsShareLeaveRoomOnTheDisk) {
  TieredWorld world(
      {.device_sessions = 24, .host = false, .disk = true, .policy = {.every_tokens = 4}, .most_on_disk = 16});
  const ByteAccountPtr greedy = Account(world, "10.0.0.1"), late = Account(world, "10.0.0.2");
  const auto many = MakeManyOf(world, 18, greedy);
  for (size_t i = 0; i < 14; ++i) ASSERT_TRUE(world.Checkpoint(many[i]).ok());
  const int64_t failed = world.checkpointer.failed();
  ExpectRefused(world.Checkpoint(many[14]).status(), "disk", "--disk-state-bytes");
  EXPECT_EQ(world.checkpointer.failed(), failed + 1);
  EXPECT_TRUE(world.Checkpoint(many[3]).ok()) << "it replaces one";
  // One that is due fails too, and holds no step back.
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(world.Write(many[15], 2).ok());
  EXPECT_GT(world.checkpointer.failed(), failed + 1);
  EXPECT_GT(many[15]->undurable().tokens, 4);
  // The others find the room that was left; what has to leave the device does; and an end is no time to leave room.
  EXPECT_TRUE(world.Checkpoint(MakeOf(world, "a", late)).ok());
  EXPECT_EQ(world.checkpointer.CheckpointAll({many[14]}), 0);
  GDN_ASSERT_OK_AND_ASSIGN(const RoomClaims all, world.Reserve({.dims = world.spec.dims, .count = 2 * 24}, greedy));
  EXPECT_EQ(world.PlaceOf(many[16]), "disk");
}

TEST_F(Shares, CopiesOnTheirWayAreCharged) {
  TieredWorld world({.device_sessions = 1, .host = false, .disk = true});
  std::vector<Sessions> seen;
  world.disk.OnStore([&](const StateKey&) { seen.push_back(Held(world)); });
  world.disk.OnLoad([&](const StateKey&) { seen.push_back(Held(world)); });
  const auto a = world.Make("a", 1);
  const auto b = world.Make("b", 2);
  ASSERT_EQ(*world.Read(a), 1);
  // The place that a session moves to is charged before the session is there.
  const std::vector<Sessions> expected = {{{"session", 2}, {"device", 1}, {"disk", 1}, {"copy", 1}},   // a leaves
                                          {{"session", 2}, {"device", 1}, {"disk", 2}, {"copy", 1}},   // b leaves
                                          {{"session", 2}, {"device", 1}, {"disk", 2}, {"copy", 1}}};  // a comes back
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(Held(world), (Sessions{{"session", 2}, {"device", 1}, {"disk", 2}}));
}

TEST_F(Shares, WhatWasFoundAtTheStartIsChargedWhateverTheLimit) {
  TieredWorld world({.device_sessions = 4, .disk = true, .most_sessions = 2});
  const auto adopt = [&](const std::string& id) {
    const SessionLease lease = world.manager.Adopt(world.Init(id), std::vector<LayerInfo>(2), absl::Now());
    EXPECT_TRUE(lease.valid());
    world.tiers.Adopt(Key(id), world.disk, world.SessionBytes());
  };
  for (const char* id : {"a", "b", "c"}) adopt(id);
  world.tiers.Adopt(Key("a", "named"), world.disk, world.SessionBytes());
  EXPECT_EQ(Held(world), (Sessions{{"session", 4}, {"disk", 4}}));
  EXPECT_FALSE(world.manager.Adopt(world.Init("a"), std::vector<LayerInfo>(2), absl::Now()).valid());
  EXPECT_EQ(Held(world), (Sessions{{"session", 4}, {"disk", 4}})) << "its name is taken";
  ExpectRefused(world.TryMake(world.Init("d")).status(), "session", "--session-bytes");
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(world.Delete(id).ok());
  EXPECT_EQ(Held(world), Sessions());
}

TEST_F(Shares, NothingIsHeldAfterALongMix) {
  const int64_t bytes = TieredWorld().SessionBytes();
  TieredWorld world({.device_sessions = 3,
                     .host_bytes = 3 * bytes,
                     .disk = true,
                     .disk_bytes = 40 * bytes,
                     .most_sessions = 24,
                     .most_on_disk = 16});
  const std::array accounts = {Account(world, "10.0.0.1"), Account(world, "10.0.0.2")};
  Random random(1);
  std::map<std::string, std::shared_ptr<Session>> sessions;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string id = StrCat("s", random.NextInt(0, 19));
    const std::string checkpoint = random.NextInt(0, 1) == 0 ? "" : StrCat("c", random.NextInt(0, 2));
    const auto it = sessions.find(id);
    const auto session = it == sessions.end() ? nullptr : it->second;
    const auto note = [&refused](const absl::Status& status) {
      EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status) || absl::IsNotFound(status)) << status;
      refused += static_cast<int>(ErrorReason(status) == reason::kBytesExhausted);
    };
    if (session == nullptr) {
      auto made = TryMakeOf(world, id, accounts[static_cast<size_t>(random.NextInt(0, 1))]);
      note(made.status());
      if (made.ok()) sessions[id] = *std::move(made);
      continue;
    }
    switch (random.NextInt(0, 9)) {
      case 0:
        ASSERT_TRUE(world.Delete(id).ok());
        sessions.erase(id);
        break;
      case 1:
      case 2:
        note(world.Checkpoint(session, checkpoint).status());
        break;
      case 3:
        note(world.Restore(session, checkpoint));
        break;
      case 4:
        if (!checkpoint.empty()) note(world.DeleteCheckpoint(session, checkpoint));
        break;
      default:
        note(world.Write(session, static_cast<float>(i + 1)));
    }
  }
  EXPECT_GT(refused, 10);
  EXPECT_GT(world.room.evictions(), 100);
  for (const auto& [id, session] : sessions) ASSERT_TRUE(world.Delete(id).ok());
  EXPECT_EQ(Held(world), Sessions());
}

}  // namespace
}  // namespace gdn::shares_test
