#include "base/threads/task_queue.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/threads/this_thread.h"

namespace gdn::task_queue_test {
namespace {

TEST(TaskQueue, RunsTasksInTheOrderTheyWerePostedWithOneThread) {
  std::vector<int> ran;
  {
    TaskQueue queue({.threads = 1});
    for (int i = 0; i < 1000; ++i) queue.Post([&ran, i] { ran.push_back(i); });
  }
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(ran, expected) << "destruction runs what was posted";
}

TEST(TaskQueue, RunsAsManyTasksAtATimeAsItHasThreads) {
  constexpr int kThreads = 3;
  TaskQueue queue({.threads = kThreads});
  std::latch all(kThreads);
  for (int i = 0; i < kThreads; ++i) queue.Post([&all] { all.arrive_and_wait(); });
  queue.Drain();  // which it reaches only if they ran side by side
  EXPECT_TRUE(all.try_wait());
}

TEST(TaskQueue, OwnersTakeTurns) {
  std::vector<char> ran;
  {
    TaskQueue queue({.threads = 1});
    std::latch go(1);
    queue.Post([&go] { go.wait(); });  // until all are there
    const char many = 'm', few = 'f';
    for (int i = 0; i < 100; ++i) queue.Post([&ran] { ran.push_back('m'); }, {.of = &many});
    queue.Post([&ran] { ran.push_back('f'); }, {.of = &few});
    go.count_down();
  }
  ASSERT_EQ(ran.size(), 101u);
  EXPECT_EQ(ran[1], 'f') << "one task of the other is before it";
}

TEST(TaskQueue, DrainWaitsForWhatTasksPostToo) {
  TaskQueue queue({.threads = 2});
  std::atomic<int> ran{0};
  const std::function<void(int)> chain = [&](int left) {
    ran.fetch_add(1);
    if (left > 0) queue.Post([&chain, left] { chain(left - 1); });
  };
  queue.Post([&chain] { chain(99); });
  queue.Drain();
  EXPECT_EQ(ran, 100);
  queue.Drain();  // with nothing to wait for
}

TEST(TaskQueue, DestructionRunsWhatTasksPostToo) {
  std::atomic<int> ran{0};
  {
    TaskQueue queue({.threads = 2});
    queue.Post([&] {
      ran.fetch_add(1);
      queue.Post([&] { ran.fetch_add(1); });
    });
  }
  EXPECT_EQ(ran, 2);
}

TEST(TaskQueue, LetsGoOfWhatATaskHoldsBeforeItCountsAsDone) {
  TaskQueue queue({.threads = 1, .niceness = 19});
  auto held = std::make_shared<int>(7);
  const std::weak_ptr<int> seen = held;
  queue.Post([held = std::move(held)] {});
  queue.Drain();
  EXPECT_TRUE(seen.expired());
}

TEST(TaskQueue, NamesItsThreadsAndGivesWayWhereItsPriorityIsLow) {
  std::string name(16, '\0');
  bool gives_way = false;
  const auto look = [&] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    gives_way = GivesWay::here();
  };
  for (const TaskQueueOptions& options : {TaskQueueOptions{.name = "low", .niceness = 1}, {.name = "normal"}}) {
    TaskQueue(options).Post(look);
    EXPECT_STREQ(name.c_str(), options.name.c_str());
    EXPECT_EQ(gives_way, options.niceness > 0);
  }
}

TEST(TaskQueue, TakesTasksFromManyThreads) {
  TaskQueue queue({.threads = 2});
  std::atomic<int> ran{0};
  std::vector<std::thread> threads(4);
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      for (int n = 0; n < 500; ++n) queue.Post([&ran] { ran.fetch_add(1); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  queue.Drain();
  EXPECT_EQ(ran, 2000);
}

}  // namespace
}  // namespace gdn::task_queue_test
