// Quotas of where states are: who is at one makes room of its own, and is in nobody's way.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/string_cat.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace gdn::quotas_test {
namespace {

using Sessions = std::vector<std::shared_ptr<Session>>;

class SessionQuotas : public ::testing::Test {
 protected:
  static ByteAccountPtr Account(TieredWorld& world, int host) {
    return world.ledger.AccountOf("", StrCat("ipv4:10.0.0.", host, ":1"));
  }
  // Sets each account's quotas of bytes to the bytes of so many sessions.
  static void Limit(TieredWorld& world, std::map<Quota, int64_t> sessions) {
    QuotaSettings settings;
    for (const auto& [quota, count] : sessions) settings.each[quota] = count * world.SessionBytes();
    world.ledger.SetQuotas(settings, 0);
  }
  static absl::StatusOr<std::shared_ptr<Session>> TryMakeOf(TieredWorld& world, const std::string& id,
                                                            const ByteAccountPtr& account) {
    SessionInit init = world.Init(id);
    init.account = account;
    return world.TryMake(std::move(init));
  }
  static Sessions MakeMany(TieredWorld& world, const std::string& name, int count, const ByteAccountPtr& account) {
    Sessions made;
    for (int i = 0; i < count; ++i) {
      auto session = TryMakeOf(world, StrCat(name, i), account);
      EXPECT_TRUE(session.ok()) << session.status();
      if (!session.ok()) break;
      made.push_back(*session);
      EXPECT_TRUE(world.Write(made.back(), static_cast<float>(i + 1)).ok());
    }
    return made;
  }
  // Returns the place of each session as one letter: d(evice), h(ost), D(isk), or - for none.
  static std::string PlacesOf(const TieredWorld& world, const Sessions& sessions) {
    std::string places;
    for (const auto& session : sessions) {
      const std::string place = world.PlaceOf(session);
      places += place == "disk" ? 'D' : place.empty() ? '-' : place[0];
    }
    return places;
  }
  static int64_t Held(const TieredWorld& world, BytePool pool, const ByteAccountPtr& account) {
    return world.ledger.held(pool, *account) / world.SessionBytes();
  }
  static void ExpectRefused(const absl::Status& status, const std::string& quota) {
    ExpectError(status, absl::StatusCode::kResourceExhausted, reason::kQuotaExceeded);
    EXPECT_EQ(ErrorMetadata(status)["quota"], quota) << status;
  }
};

TEST_F(SessionQuotas, OnTheDeviceTheOwnLeastRecentlyUsedGoesThoughThereIsRoom) {
  TieredWorld world({.device_sessions = 8});
  Limit(world, {{Quota::kDeviceBytes, 2}});
  const ByteAccountPtr a = Account(world, 1), b = Account(world, 2);
  const Sessions others = MakeMany(world, "b", 2, b);
  const Sessions mine = MakeMany(world, "a", 4, a);
  EXPECT_EQ(PlacesOf(world, mine), "hhdd");
  EXPECT_EQ(PlacesOf(world, others), "dd");
  EXPECT_EQ(Held(world, BytePool::kDevice, a), 2);
  EXPECT_EQ(*world.Read(mine[0]), 1) << "it comes back, and another goes";
  EXPECT_EQ(PlacesOf(world, mine), "dhhd");
  EXPECT_EQ(world.ledger.refusals(Quota::kDeviceBytes), 0);
}

TEST_F(SessionQuotas, WithoutATierBelowTheDeviceTheSessionIsRefused) {
  TieredWorld world({.device_sessions = 8, .host = false});
  Limit(world, {{Quota::kDeviceBytes, 2}});
  const ByteAccountPtr a = Account(world, 1);
  const Sessions mine = MakeMany(world, "a", 2, a);
  ExpectRefused(TryMakeOf(world, "more", a).status(), "device-bytes");
  EXPECT_FALSE(world.manager.Find("", "more").ok());
  EXPECT_EQ(Held(world, BytePool::kDevice, a), 2);
  EXPECT_EQ(Held(world, BytePool::kStates, a), 2);
  EXPECT_EQ(world.ledger.refusals(Quota::kDeviceBytes), 1);
  MakeMany(world, "b", 2, Account(world, 2));
  ASSERT_TRUE(world.Delete("a0").ok());
  EXPECT_TRUE(TryMakeOf(world, "more", a).ok());
}

TEST_F(SessionQuotas, ACallThatNeedsMoreAtOnceIsRefusedForThoseThatAreTooMany) {
  TieredWorld world({.device_sessions = 8});
  Limit(world, {{Quota::kDeviceBytes, 2}});
  const Sessions mine = MakeMany(world, "a", 4, Account(world, 1));
  const Residency::PinResults pins = world.Pin(mine);
  int pinned = 0;
  for (const auto& pin : pins) {
    if (pin.ok()) {
      ++pinned;
    } else {
      ExpectRefused(pin.status(), "device-bytes");
    }
  }
  EXPECT_EQ(pinned, 2);
}

TEST_F(SessionQuotas, OneWhoseSessionsAreInUseWaitsAndHindersNobody) {
  TieredWorld world({.device_sessions = 4});
  Limit(world, {{Quota::kDeviceBytes, 2}});
  const ByteAccountPtr a = Account(world, 1), b = Account(world, 2);
  const Sessions mine = MakeMany(world, "a", 2, a);
  Residency::PinResults pins = world.Pin(mine);
  SessionInit init = world.Init("waits");
  init.account = a;
  GDN_ASSERT_OK_AND_ASSIGN(SessionCreation creation, world.manager.Begin(std::move(init)));
  Answer<absl::StatusOr<SessionLease>> placed;
  placed.Start(world.flows,
               world.residency.Place(std::move(creation.lease()), std::make_shared<SessionImage>(), Deadline()));
  const Sessions others = MakeMany(world, "b", 4, b);
  EXPECT_EQ(PlacesOf(world, others), "hhdd");
  ExpectRefused(placed.Wait().status(), "device-bytes");
  EXPECT_EQ(Held(world, BytePool::kDevice, a), 2);
}

TEST_F(SessionQuotas, InHostMemoryTheOwnLeastRecentlyUsedGoesToDisk) {
  TieredWorld world({.device_sessions = 8, .disk = true});
  Limit(world, {{Quota::kDeviceBytes, 1}, {Quota::kHostBytes, 2}});
  const ByteAccountPtr a = Account(world, 1), b = Account(world, 2);
  const Sessions others = MakeMany(world, "b", 3, b);
  const Sessions mine = MakeMany(world, "a", 6, a);
  EXPECT_EQ(PlacesOf(world, mine), "DDDhhd");
  EXPECT_EQ(PlacesOf(world, others), "hhd");
  EXPECT_EQ(Held(world, BytePool::kHost, a), 2);
  for (size_t i = 0; i < mine.size(); ++i) EXPECT_EQ(*world.Read(mine[i]), static_cast<float>(i + 1));
  EXPECT_LE(Held(world, BytePool::kHost, a), 2);
}

TEST_F(SessionQuotas, AFullTierOfOnesOwnIsPassedOver) {
  TieredWorld world({.device_sessions = 8, .disk = true});
  Limit(world, {{Quota::kDeviceBytes, 1}, {Quota::kHostBytes, 0}});
  const Sessions mine = MakeMany(world, "a", 3, Account(world, 1));
  EXPECT_EQ(PlacesOf(world, mine), "DDd");
}

TEST_F(SessionQuotas, WhereNoTierTakesMoreOfItsTheNextSessionIsRefusedAndOthersNoticeNothing) {
  TieredWorld world({.device_sessions = 4, .host_bytes = 4 * TieredWorld().SessionBytes(), .disk = true});
  world.ledger.List("a", 1);
  QuotaSettings settings;
  for (const Quota quota : {Quota::kDeviceBytes, Quota::kHostBytes, Quota::kDiskBytes}) {
    settings.principals["a"].limits[quota] = 2 * world.SessionBytes();
  }
  world.ledger.SetQuotas(settings, 0);
  const ByteAccountPtr a = world.ledger.AccountOf("a", "");
  const Sessions mine = MakeMany(world, "a", 6, a);
  EXPECT_EQ(PlacesOf(world, mine), "DDhhdd");
  ExpectRefused(TryMakeOf(world, "more", a).status(), "device-bytes");
  EXPECT_EQ(PlacesOf(world, mine), "DDhhdd");
  for (int host = 2; host < 6; ++host) {
    const Sessions others = MakeMany(world, StrCat("b", host, "_"), 5, Account(world, host));
    for (size_t i = 0; i < others.size(); ++i) EXPECT_EQ(*world.Read(others[i]), static_cast<float>(i + 1));
  }
  for (const BytePool pool : {BytePool::kDevice, BytePool::kHost, BytePool::kDisk}) {
    EXPECT_LE(Held(world, pool, a), 2) << static_cast<int>(pool);
  }
  ASSERT_TRUE(world.Delete("a0").ok());
  EXPECT_TRUE(TryMakeOf(world, "more", a).ok());
}

TEST_F(SessionQuotas, ACheckpointOverTheQuotaIsRefusedAndANewerOneOfTheSameIsNot) {
  TieredWorld world({.device_sessions = 8, .disk = true});
  Limit(world, {{Quota::kDiskBytes, 2}});
  const ByteAccountPtr a = Account(world, 1);
  const Sessions mine = MakeMany(world, "a", 3, a);
  ASSERT_TRUE(world.Checkpoint(mine[0]).ok() && world.Checkpoint(mine[1]).ok());
  ExpectRefused(world.Checkpoint(mine[2]).status(), "disk-bytes");
  ASSERT_TRUE(world.Write(mine[0], 9).ok());
  EXPECT_TRUE(world.Checkpoint(mine[0]).ok());
  EXPECT_TRUE(world.Checkpoint(MakeMany(world, "b", 1, Account(world, 2))[0]).ok());
}

TEST_F(SessionQuotas, ALoweredQuotaTakesNothingAwayAndLetsNothingIn) {
  TieredWorld world({.device_sessions = 8});
  const ByteAccountPtr a = Account(world, 1);
  const Sessions mine = MakeMany(world, "a", 4, a);
  Limit(world, {{Quota::kDeviceBytes, 2}});
  EXPECT_EQ(PlacesOf(world, mine), "dddd");
  for (const auto& session : mine) EXPECT_TRUE(world.Read(session).ok());
  EXPECT_EQ(PlacesOf(world, mine), "dddd");
  ASSERT_TRUE(TryMakeOf(world, "more", a).ok());
  EXPECT_EQ(PlacesOf(world, mine), "hhhd");
}

TEST_F(SessionQuotas, ManyAtOnceNeverHaveMoreThanTheQuota) {
  TieredWorld world({.device_sessions = 6, .disk = true});
  Limit(world, {{Quota::kDeviceBytes, 2}, {Quota::kHostBytes, 2}});
  const ByteAccountPtr a = Account(world, 1), b = Account(world, 2);
  Sessions all = MakeMany(world, "a", 6, a);
  const Sessions others = MakeMany(world, "b", 4, b);
  all.insert(all.end(), others.begin(), others.end());
  std::atomic<int64_t> most_device{0}, most_host{0};
  const auto note = [&] {
    for (const ByteAccountPtr& account : {a, b}) {
      most_device = std::max(most_device.load(), Held(world, BytePool::kDevice, account));
      most_host = std::max(most_host.load(), Held(world, BytePool::kHost, account));
    }
  };
  constexpr int kThreads = 3, kTurns = 40;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTurns; ++i) {
        const size_t which = static_cast<size_t>(t * 7 + i * 3) % all.size();
        const auto pin = world.PinOne(all[which]);
        note();
        EXPECT_TRUE(pin.ok() || absl::IsResourceExhausted(pin.status())) << pin.status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most_device, 2);
  EXPECT_LE(most_host, 2);
}

}  // namespace
}  // namespace gdn::quotas_test
