// Making room on the device where some of those that could give way can go nowhere.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "server/session/room/device_room.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace gdn::eviction_test {
namespace {

// Returns the error of a folder that cannot be written. Its text names the session and its principal.
absl::Status BadFolder() {
  return MakeError(absl::StatusCode::kUnavailable, reason::kTierUnavailable,
                   "cannot write '/d/sessions/0123abcd/s-neighbour': EIO",
                   {{"tier", "disk"}, {"path", "/d/sessions/0123abcd/s-neighbour"}});
}

int64_t StoresOf(const std::map<std::string, int64_t>& stores, const std::string& id) {
  const auto it = stores.find(id);
  return it == stores.end() ? 0 : it->second;
}

class Eviction : public ::testing::Test {
 protected:
  Eviction() {
    world_.disk.OnStore([this](const StateKey& key) { ++stores_[key.id]; });
  }

  TieredWorld world_{{.device_sessions = 2, .host = false, .disk = true}};
  std::map<std::string, int64_t> stores_;  // of the residency thread, between whose answers it is read
};

TEST_F(Eviction, ASessionThatCannotGoLetsTheNextOneGoAndIsNotTriedFirstAgain) {
  const auto stuck = world_.Make("stuck", 1);
  const auto b = world_.Make("b", 2);
  world_.disk.FailStoresOf(stuck->key(), BadFolder());
  GDN_ASSERT_OK_AND_ASSIGN(auto c, world_.TryMake(world_.Init("c")));
  EXPECT_EQ(world_.PlaceOf(stuck), "device");
  EXPECT_EQ(world_.PlaceOf(b), "disk");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(world_.TryMake(world_.Init(std::to_string(i))).ok());
  EXPECT_EQ(StoresOf(stores_, "stuck"), 1);
  world_.disk.FailStoresOf(stuck->key(), absl::OkStatus());
  world_.clock.Advance(absl::Hours(1));
  GDN_ASSERT_OK_AND_ASSIGN(c, world_.TryMake(world_.Init("later")));
  EXPECT_EQ(world_.PlaceOf(stuck), "disk") << "it is tried again after a while";
  EXPECT_EQ(*world_.Read(stuck), 1);
  EXPECT_EQ(*world_.Read(b), 2);
}

TEST_F(Eviction, OneThatIsTooLargeForTheTiersBelowLetsASmallerOneGo) {
  TieredWorld world({.device_sessions = 3, .host = false, .disk = true, .disk_bytes = world_.SessionBytes() * 3 / 2});
  SessionInit init = world.Init("large");
  init.spec = OperatorSessionSpec(4);
  GDN_ASSERT_OK_AND_ASSIGN(const auto large, world.TryMake(init));
  ASSERT_TRUE(world.Write(large, 1).ok());
  const auto small = world.Make("small", 2);
  GDN_ASSERT_OK_AND_ASSIGN(const auto c, world.TryMake(world.Init("c")));
  EXPECT_EQ(world.PlaceOf(large), "device");
  EXPECT_EQ(world.PlaceOf(small), "disk");
  EXPECT_EQ(*world.Read(large), 1);
}

TEST_F(Eviction, WhereNothingCanGoTheCallerIsToldSoAndNothingOfTheOthers) {
  const auto a = world_.Make("a", 1);
  const auto neighbour = world_.Make("neighbour", 2);
  world_.disk.FailStores(BadFolder());
  const absl::Status refused = world_.TryMake(world_.Init("c")).status();
  ExpectError(refused, absl::StatusCode::kUnavailable, reason::kTierUnavailable);
  EXPECT_EQ(std::string(refused.message()).find("s-neighbour"), std::string::npos) << refused;
  EXPECT_EQ(ErrorMetadata(refused), (ErrorMetadataMap{{"tier", "disk"}}));
  world_.disk.FailStores(absl::OkStatus());
  EXPECT_TRUE(world_.TryMake(world_.Init("c")).ok()) << "what is needed is tried again at once";
  EXPECT_EQ(world_.PlaceOf(a), "disk");
}

TEST_F(Eviction, RoomAmongManySessionsIsMadeByLookingAtAFew) {
  constexpr int kMany = 400;
  constexpr int kMore = 100;
  TieredWorld world({.layers = 1, .device_sessions = kMany});
  std::vector<std::shared_ptr<Session>> sessions;
  for (int i = 0; i < kMany + kMore; ++i) sessions.push_back(world.Make(std::to_string(i)));
  EXPECT_EQ(world.room.evictions(), kMore);
  EXPECT_LE(world.room.looks(), kMore * 32);
  for (int i = 0; i < kMore; ++i) EXPECT_EQ(world.PlaceOf(sessions[static_cast<size_t>(i)]), "host") << i;
  EXPECT_EQ(world.PlaceOf(sessions[kMore]), "device") << "the least recently used go first";
}

TEST_F(Eviction, ASessionThatWasUsedSinceItCameGoesLater) {
  TieredWorld world({.layers = 1, .device_sessions = 3});
  const auto a = world.Make("a"), b = world.Make("b"), c = world.Make("c");
  a->Touch();
  const auto d = world.Make("d");
  EXPECT_EQ(world.PlaceOf(a), "device");
  EXPECT_EQ(world.PlaceOf(b), "host");
  b->Touch();
  c->Touch();
  a->Touch();
  const auto e = world.Make("e");
  EXPECT_EQ(world.PlaceOf(d), "host");
}

}  // namespace
}  // namespace gdn::eviction_test
