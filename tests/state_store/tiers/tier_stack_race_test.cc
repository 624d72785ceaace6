// Four threads move many sessions at the same time, with and without tiers that fail now and then: every state that the
// stack has taken can be fetched, no tier holds more than its budget, and no two calls for a session overlap.
#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "state_store/tiers/tier_stack.h"
#include "tests/state_store/tiers/fake_tier.h"

namespace gdn::tier_stack_race_test {
namespace {

constexpr int kThreads = 4;
constexpr int kSessionsPerThread = 12;
constexpr int kRounds = 3000;
constexpr int64_t kBytes = 100;

// A caller's knowledge of its session.
struct Expected {
  int64_t version = 0;     // the newest that the stack took or was shown
  int64_t parked = -1;     // the version that is parked; -1: none
  int64_t checkpoint = 0;  // at least this is durable
};

class Caller {
 public:
  Caller(TierStack& stack, int thread, bool may_fail)
      : stack_(stack), thread_(thread), may_fail_(may_fail), random_(static_cast<uint32_t>(thread)) {}

  void Run() {
    for (int round = 0; round < kRounds; ++round) {
      const int session = static_cast<int>(random_() % kSessionsPerThread);
      Act(Name(session), sessions_[session]);
    }
  }

  void CheckAll() {
    for (int session = 0; session < kSessionsPerThread; ++session) Check(Name(session), sessions_[session]);
  }

  int64_t taken() const { return taken_; }

 private:
  StateKey Name(int session) const { return Key(std::to_string(thread_) + "." + std::to_string(session)); }

  void Act(const StateKey& key, Expected& expected) {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2: {
        const absl::Status status = stack_.Park(key, MakeVersion(++expected.version, kBytes));
        if (status.ok()) {
          expected.parked = expected.version;
          ++taken_;
        } else {
          ExpectAllowed(status);
        }
        break;
      }
      case 3:
        Check(key, expected);
        stack_.Release(key);
        expected.parked = -1;
        break;
      case 4: {
        if (expected.parked >= 0) break;  // of a session on the device
        const absl::Status status = stack_.Checkpoint(key, MakeVersion(++expected.version, kBytes)).status();
        if (status.ok()) {
          expected.checkpoint = expected.version;
        } else {
          ExpectAllowed(status);
        }
        break;
      }
      case 5:
        if (random_() % 4 != 0) break;
        if (const absl::Status ended = stack_.Erase(key, /*even_unnoted=*/random_() % 2 == 0); !ended.ok()) {
          EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;  // and it goes on
          break;
        }
        expected = {.version = expected.version};
        first_of_life_[key] = expected.version + 1;
        break;
      case 6: {
        const absl::StatusOr<SessionImagePtr> image = stack_.FetchCheckpoint(key);
        if (image.ok()) {
          EXPECT_GE(VersionOf(*image), expected.checkpoint);  // newer where a parked state was moved down
          EXPECT_LE(VersionOf(*image), expected.version);
        } else {
          EXPECT_TRUE(absl::IsNotFound(image.status()) || (may_fail_ && absl::IsUnavailable(image.status())))
              << image.status();
        }
        break;
      }
      default:
        Check(key, expected);
        stack_.Trim();
    }
  }

  void ExpectAllowed(const absl::Status& status) {
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status) || (may_fail_ && absl::IsUnavailable(status)))
        << status;
  }

  void Check(const StateKey& key, const Expected& expected) {
    const absl::StatusOr<SessionImagePtr> image = stack_.Fetch(key);
    if (image.ok()) {
      const int64_t version = VersionOf(*image);
      if (expected.parked >= 0) {
        EXPECT_EQ(version, expected.parked) << key.ToString();
      } else {
        EXPECT_GE(version, expected.checkpoint) << key.ToString();
        EXPECT_GE(version, first_of_life_[key]) << key.ToString() << " came back after its end";
        EXPECT_LE(version, expected.version) << key.ToString();
      }
    } else if (absl::IsNotFound(image.status())) {
      EXPECT_EQ(expected.parked, -1) << key.ToString() << " is lost";
      EXPECT_EQ(expected.checkpoint, 0) << key.ToString() << " is lost";
    } else {
      EXPECT_TRUE(may_fail_ && absl::IsUnavailable(image.status())) << image.status();
    }
  }

  TierStack& stack_;
  const int thread_;
  const bool may_fail_;
  std::mt19937 random_;
  Expected sessions_[kSessionsPerThread];
  std::map<StateKey, int64_t> first_of_life_;
  int64_t taken_ = 0;
};

void Race(std::vector<FakeTier*> tiers, FakeTier* failing) {
  TierStack stack(std::vector<StateTier*>(tiers.begin(), tiers.end()), {.retry_after = absl::ZeroDuration()});
  std::vector<Caller> callers;
  for (int t = 0; t < kThreads; ++t) callers.emplace_back(stack, t, failing != nullptr);
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (Caller& caller : callers) threads.emplace_back([&] { caller.Run(); });
  std::thread disturb([&] {
    std::mt19937 random(99);
    while (!done) {
      if (failing != nullptr) {
        const absl::Status status = random() % 2 == 0 ? Unavailable("failing") : absl::OkStatus();
        if (random() % 2 == 0) failing->FailStores(status);
        if (random() % 2 == 0) failing->FailErasures(status);
        if (random() % 2 == 0) failing->FailLoads(status);
      }
      for (const FakeTier* tier : tiers) {
        const TierUsage usage = tier->usage();
        EXPECT_TRUE(usage.limit_bytes == 0 || usage.used_bytes <= usage.limit_bytes) << usage.name;
      }
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  disturb.join();
  if (failing != nullptr) failing->FailAll(absl::OkStatus());
  int64_t taken = 0;
  for (Caller& caller : callers) {
    caller.CheckAll();
    taken += caller.taken();
  }
  EXPECT_GT(taken, kThreads * kRounds / 10);
  for (const FakeTier* tier : tiers) EXPECT_FALSE(tier->overlapped()) << tier->name();

  // Nothing is left behind.
  for (int t = 0; t < kThreads; ++t) {
    for (int s = 0; s < kSessionsPerThread; ++s) {
      EXPECT_TRUE(stack.Erase(Key(std::to_string(t) + "." + std::to_string(s))).ok());
    }
  }
  for (const FakeTier* tier : tiers) EXPECT_EQ(tier->usage().used_bytes, 0) << tier->name();
}

struct RaceCase {
  std::string name;
  int64_t host, disk, redis;  // the states that each has room for; 0: all
  int failing = -1;           // the tier that fails now and then
};

class TierStackRace : public ::testing::TestWithParam<RaceCase> {};

TEST_P(TierStackRace, KeepsEveryState) {
  FakeTier host("host", false, GetParam().host * kBytes);
  FakeTier disk("disk", true, GetParam().disk * kBytes);
  FakeTier redis("redis", true, GetParam().redis * kBytes);
  const std::vector<FakeTier*> tiers = {&host, &disk, &redis};
  Race(tiers, GetParam().failing < 0 ? nullptr : tiers[static_cast<size_t>(GetParam().failing)]);
}

INSTANTIATE_TEST_SUITE_P(Where, TierStackRace,
                         ::testing::Values(RaceCase{"AllTiersWork", 6, 16, 0},
                                           RaceCase{"ThereIsNotRoomForAll", 6, 8, 12},
                                           RaceCase{"TheMiddleTierFailsNowAndThen", 6, 16, 20, /*failing=*/1},
                                           RaceCase{"TheLastTierFailsNowAndThen", 6, 8, 40, /*failing=*/2}),
                         [](const auto& race) { return race.param.name; });

// With room for all of the sessions in all tiers together, none is ever refused, however they move.
TEST(TierStackRooms, RefusesNoneWhereTheLastTierHasRoomForAll) {
  FakeTier host("host", false, 3 * kBytes);
  FakeTier disk("disk", true, 3 * kBytes);
  FakeTier redis("redis", true, kThreads * kSessionsPerThread * kBytes);
  TierStack stack({&host, &disk, &redis});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t round = 0; round < kRounds; ++round) {
        const StateKey key = Key(std::to_string(t) + "." + std::to_string(round % kSessionsPerThread));
        const absl::Status status = stack.Park(key, MakeVersion(round, kBytes));
        ASSERT_TRUE(status.ok()) << status;
        const absl::StatusOr<SessionImagePtr> image = stack.Fetch(key);
        ASSERT_TRUE(image.ok()) << image.status();
        EXPECT_EQ(VersionOf(*image), round);
        if (round % 3 == 0) stack.Release(key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(host.overlapped() || disk.overlapped() || redis.overlapped());
}

}  // namespace
}  // namespace gdn::tier_stack_race_test
