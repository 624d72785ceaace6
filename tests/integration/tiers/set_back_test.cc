// Every tier is put back to every earlier copy of it, with the server up, stopped in order or killed: no session is
// ever served in an older state in the epoch that its client knows. GDN_SET_BACK_ALL tries all pairs of copies of two
// tiers, and not only the telling ones.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include "tests/integration/support/set_back_world.h"

namespace gdn::set_back_test {
namespace {

using Moments = SetBackWorld::Moments;

class SetBack : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
  }
  ~SetBack() override {
    std::cout << "set back: " << cells_ << " cases, " << answered_ << " steps answered with the right bits, "
              << refused_ << " refused:";
    for (const auto& [reason, count] : reasons_) std::cout << " " << reason << " " << count;
    std::cout << std::endl;
  }

  void Count(const SetBackWorld::Seen& seen) {
    ++cells_;
    answered_ += seen.answered;
    refused_ += seen.refused;
    for (const auto& [reason, count] : seen.reasons) reasons_[reason] += count;
  }
  // The stores as they are at the end of the run, but for those that are put back.
  SetBackWorld::Seen StartWith(SetBackWorld& world, const std::string& end, const Moments& moments,
                               bool with_counts = false) {
    SCOPED_TRACE("server " + end + ", disk put back to '" + moments.disk + "', Redis to '" + moments.redis + "'");
    world.RememberTheEnd();
    if (with_counts) world.ForgetTwin();
    world.PutBack(
        {.disk = moments.disk.empty() ? end : moments.disk, .redis = moments.redis.empty() ? end : moments.redis});
    TestServer server(world.Options());
    const SetBackWorld::Seen seen = world.StepAll(Caller(server), with_counts);
    Count(seen);
    return seen;
  }

 private:
  int cells_ = 0, answered_ = 0, refused_ = 0;
  std::map<std::string, int> reasons_;
};

bool IsOrderlyEnd(const std::string& copy) { return copy.ends_with("stopped"); }

TEST_F(SetBack, ADiskNeverBringsBackAnOlderStateInTheSameEpoch) {
  SetBackWorld world({.disk = true});
  world.Record();
  EXPECT_EQ(StartWith(world, "stopped", {}).answered, world.sessions()) << "an orderly restart loses no epoch";
  EXPECT_EQ(StartWith(world, "killed", {}).answered, 0);
  for (const std::string end : {"stopped", "killed"}) {
    for (const std::string& copy : SetBackWorld::Copies()) {
      // The whole folder of an earlier orderly end is valid evidence, and nothing else is there: the counts refuse it.
      const SetBackWorld::Seen seen = StartWith(world, end, {.disk = copy}, /*with_counts=*/IsOrderlyEnd(copy));
      EXPECT_EQ(seen.answered, 0) << copy;
    }
  }
}

TEST_F(SetBack, ARedisNeverBringsBackAnOlderStateInTheSameEpoch) {
  SetBackWorld world({.redis = true});
  world.Record();
  for (const std::string end : {"stopped", "killed"}) {
    EXPECT_EQ(StartWith(world, end, {}).answered, 0) << "every start is a new epoch";
    for (const std::string& copy : SetBackWorld::Copies()) {
      EXPECT_EQ(StartWith(world, end, {.redis = copy}).answered, 0) << copy;
    }
  }
}

TEST_F(SetBack, ADiskAndARedisNeverBringBackAnOlderStateInTheSameEpoch) {
  SetBackWorld world({.disk = true, .redis = true});
  world.Record();
  EXPECT_EQ(StartWith(world, "stopped", {}).answered, world.sessions()) << "an orderly restart loses no epoch";
  EXPECT_EQ(StartWith(world, "killed", {}).answered, 0);
  const bool all = std::getenv("GDN_SET_BACK_ALL") != nullptr;
  std::vector<std::string> copies = SetBackWorld::Copies();
  copies.emplace_back();
  for (const std::string end : {"stopped", "killed"}) {
    for (size_t d = 0; d < copies.size(); ++d) {
      for (size_t r = 0; r < copies.size(); ++r) {
        const Moments moments = {.disk = copies[d], .redis = copies[r]};
        const bool alone = moments.disk.empty() != moments.redis.empty();
        if (moments.disk.empty() && moments.redis.empty()) continue;
        if (!all && !alone && d != r && !IsOrderlyEnd(moments.disk)) continue;
        // Both at one earlier orderly end: all the evidence there is says that nothing came after it.
        const bool evident = d == r && IsOrderlyEnd(moments.disk);
        StartWith(world, end, moments, /*with_counts=*/evident);
      }
    }
  }
}

// Redis goes back under a server, which then goes on, stops in order or is killed.
void GoesBackUnderAServer(SetBackWorld& world, const std::string& copy, bool in_order,
                          const std::function<void(const SetBackWorld::Seen&)>& count) {
  SCOPED_TRACE("Redis put back to '" + copy + "' under a server, which then " + (in_order ? "stops" : "is killed"));
  world.RememberTheEnd();
  world.PutBack({.disk = "2 stopped", .redis = "2 stopped"});
  {
    TestServer server(world.Options());
    const Caller caller(server);
    world.RunAgain(caller);
    world.SetRedisBack(copy);
    count(world.StepAll(caller));
    if (in_order) server.Drain();  // it may fail: something is lost
  }
  TestServer next(world.Options());
  count(world.StepAll(Caller(next)));
}

TEST_F(SetBack, ARedisThatGoesBackUnderAServerServesNothingOlder) {
  for (const bool disk : {false, true}) {
    SetBackWorld world({.disk = disk, .redis = true});
    world.Record();
    for (const std::string& copy : SetBackWorld::Copies()) {
      for (const bool in_order : {true, false}) {
        GoesBackUnderAServer(world, copy, in_order, [this](const auto& seen) { Count(seen); });
      }
    }
  }
}

}  // namespace
}  // namespace gdn::set_back_test
