// The Redis server is killed at random moments of a Store or a Load: a state is then the old or the new one or a clear
// error, and never a part.
#include <array>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "base/error.h"
#include "gtest/gtest.h"
#include "tests/state_store/test_image.h"
#include "tests/state_store/tiers/redis_tier_fixture.h"

namespace gdn::redis_tier_crash_test {
namespace {

constexpr int kRounds = 30;
constexpr int64_t kLatestKill = 4000;  // microseconds; a Store here takes about as long as that
const StateKey kKey{.principal = "ab12", .id = "chat-1", .checkpoint = ""};

class RedisTierCrash : public RedisTierFixture {
 protected:
  void SetUp() override {
    RedisTierFixture::SetUp();
    for (size_t i = 0; i < states_.size(); ++i) {
      states_[i] = MakeModelSession(i);
      auto reply = std::make_shared<StoredReply>(*states_[i].layers[1].reply);
      constexpr int64_t kTokens = 4700;
      reply->token_count = states_[i].layers[1].extent.token_count = kTokens;
      reply->output.assign(kTokens * kModelDims.hidden_size * sizeof(float),
                           static_cast<char>('a' + i));  // some hundred chunks
      states_[i].layers[1].reply = reply;
    }
  }
  // Which of the states it is; -1: none, which must not be.
  int StateOf(const SessionImage& image) const {
    const TestSession session = TakeApart(image);
    for (size_t i = 0; i < states_.size(); ++i) {
      if (SameStates(session, states_[i])) return static_cast<int>(i);
    }
    return -1;
  }

  // Kills the server at a random moment from now.
  static std::thread KillSoon(RedisServer& server, std::mt19937& random) {
    return std::thread([&server, wait = static_cast<int64_t>(random() % kLatestKill)] {
      absl::SleepFor(absl::Microseconds(wait));
      server.Kill();
    });
  }

  std::array<TestSession, 3> states_;
};

TEST_F(RedisTierCrash, LeavesTheOldOrTheNewStateWhenKilledDuringAStore) {
  Start({.append_only = true});
  ASSERT_TRUE(tier_->Store(kKey, MakeImage(states_[0], memory_.host)).ok());
  std::mt19937 random(1);
  int stored = 0;
  int failed = 0;
  int old = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int next = (stored + 1) % 3;
    const SessionImagePtr image = MakeImage(states_[static_cast<size_t>(next)], memory_.host);
    std::thread killer = KillSoon(*server_, random);
    const absl::Status status = tier_->Store(kKey, image).status();
    killer.join();
    server_->Start();
    const absl::StatusOr<SessionImagePtr> after = tier_->Load(kKey);
    ASSERT_TRUE(after.ok()) << after.status();
    const int found = StateOf(**after);
    if (status.ok()) {
      EXPECT_EQ(found, next);
    } else {
      ++failed;
      ExpectError(status, absl::StatusCode::kUnavailable, reason::kTierUnavailable);
      EXPECT_TRUE(found == next || found == stored) << found;
      if (found == stored) ++old;
    }
    stored = found;
  }
  EXPECT_EQ(tier_->usage().failures, failed);
  RecordProperty("stores_failed", failed);
  RecordProperty("found_old", old);
}

TEST_F(RedisTierCrash, LoadsAWholeStateOrNoneWhenKilledDuringALoad) {
  Start({.append_only = true});
  ASSERT_TRUE(tier_->Store(kKey, MakeImage(states_[0], memory_.host)).ok());
  std::mt19937 random(2);
  int failed = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::thread killer = KillSoon(*server_, random);
    const absl::StatusOr<SessionImagePtr> image = tier_->Load(kKey);
    killer.join();
    if (image.ok()) {
      EXPECT_EQ(StateOf(**image), 0);
    } else {
      ++failed;
      EXPECT_EQ(image.status().code(), absl::StatusCode::kUnavailable) << image.status();
    }
    server_->Start();
    const absl::StatusOr<SessionImagePtr> again = tier_->Load(kKey);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(StateOf(**again), 0);
  }
  EXPECT_EQ(tier_->usage().failures, failed);
  RecordProperty("loads_failed", failed);
}

TEST_F(RedisTierCrash, FindsNoneOrAWholeStateWhenTheServerComesBackEmpty) {
  Start();
  std::mt19937 random(3);
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_TRUE(tier_->Store(kKey, MakeImage(states_[0], memory_.host)).ok());
    const SessionImagePtr image = MakeImage(states_[1], memory_.host);
    // Killed and back, empty, while the call goes on.
    const bool load = round % 2 == 0;
    absl::StatusOr<SessionImagePtr> loaded = image;
    absl::Status stored;
    std::thread call([&] {
      if (load) {
        loaded = tier_->Load(kKey);
      } else {
        stored = tier_->Store(kKey, image).status();
      }
    });
    absl::SleepFor(absl::Microseconds(static_cast<int64_t>(random() % kLatestKill)));
    server_->Kill();
    server_->Start();
    call.join();
    if (loaded.ok()) {
      EXPECT_EQ(StateOf(**loaded), load ? 0 : 1);
    } else {
      EXPECT_TRUE(absl::IsUnavailable(loaded.status()) || absl::IsNotFound(loaded.status())) << loaded.status();
    }
    if (!stored.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(stored)) << stored;
    }
    const absl::StatusOr<SessionImagePtr> after = tier_->Load(kKey);
    if (after.ok()) {
      EXPECT_EQ(StateOf(**after), 1);
    } else {
      EXPECT_TRUE(absl::IsNotFound(after.status())) << after.status();
    }
  }
}

}  // namespace
}  // namespace gdn::redis_tier_crash_test
