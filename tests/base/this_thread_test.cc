#include "base/threads/this_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace gdn::this_thread_test {
namespace {

// Binds the calling thread, and threads that it starts, to the processor where it runs.
void StayHere() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
}

TEST(ThisThread, KeepsTheFirstLettersOfItsName) {
  std::thread([] {
    NameThisThread("gdn-a-name-that-is-long");
    char name[16];
    ASSERT_EQ(pthread_getname_np(pthread_self(), name, sizeof(name)), 0);
    EXPECT_STREQ(name, "gdn-a-name-that");
  }).join();
}

TEST(ThisThread, HasALabelOfItsNameAndNumber) {
  std::string first, second;
  const auto label = [](std::string& out) {
    NameThisThread("gdn-labelled");
    out = ThisThreadLabel();
    EXPECT_EQ(ThisThreadLabel(), out);
  };
  std::thread a(label, std::ref(first));
  std::thread b(label, std::ref(second));
  a.join();
  b.join();
  EXPECT_EQ(first.rfind("gdn-labelled.", 0), 0u) << first;
  EXPECT_EQ(second.rfind("gdn-labelled.", 0), 0u) << second;
}

TEST(ThisThread, GivesWayOnlyInsideOfAScope) {
  EXPECT_FALSE(GivesWay::here());
  EXPECT_FALSE(GiveWay());
  {
    const GivesWay outer;
    {
      const GivesWay inner;
      EXPECT_TRUE(GivesWay::here());
    }
    EXPECT_TRUE(GivesWay::here()) << "the outer one still lives";
    EXPECT_TRUE(GiveWay());
    std::thread([] { EXPECT_FALSE(GivesWay::here()) << "another thread's"; }).join();
  }
  EXPECT_FALSE(GivesWay::here());
}

TEST(ThisThread, KeepsItsShareBesideAThreadThatNeverSleeps) {
  static constexpr int kMostYields = 1000;  // each lets the other have a slice, so a few are enough
  std::thread([] {
    StayHere();
    std::atomic<bool> stop{false};
    std::thread greedy([&stop] {
      while (!stop) {
      }
    });
    const GivesWay gives_way;
    int yields = 0;
    while (yields < kMostYields && GiveWay()) ++yields;
    EXPECT_GT(yields, 0);
    EXPECT_LT(yields, kMostYields) << "it is away for nearly all of the time";
    while (!GiveWay()) {  // once it has worked for its share it lets the other in again
    }
    stop = true;
    greedy.join();
  }).join();
}

}  // namespace
}  // namespace gdn::this_thread_test
