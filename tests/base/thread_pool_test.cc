#include "base/threads/thread_pool.h"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gdn::thread_pool_test {
namespace {

TEST(ThreadPool, RunsEveryIndexExactlyOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 3, 7, 64, 65, 1000, 10007}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      pool.ParallelFor(count, [&](int64_t i, int) { hits[static_cast<size_t>(i)].fetch_add(1); });
      for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1) << threads << " threads, " << count << " indices";
    }
  }
}

// Plain memory on both sides: a race detector sees it if joining or leaving a loop fails to order it.
TEST(ThreadPool, OrdersTheBodysMemoryBeforeReturning) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 0);
  for (int64_t round = 1; round <= 2000; ++round) {
    pool.ParallelFor(64, [&](int64_t i, int) { values[static_cast<size_t>(i)] += round; });
    ASSERT_EQ(values[static_cast<size_t>(round) % 64], round * (round + 1) / 2);
  }
}

TEST(ThreadPool, SurvivesAHundredThousandTinyLoops) {
  for (const int threads : {2, 4}) {
    ThreadPool pool(threads);
    std::vector<int64_t> sums(static_cast<size_t>(threads) * 8, 0);
    int64_t expected = 0;
    for (int64_t round = 0; round < 100'000; ++round) {
      const int64_t count = round % 5;
      pool.ParallelFor(count, [&](int64_t i, int worker) { sums[static_cast<size_t>(worker) * 8] += i + 1; });
      expected += count * (count + 1) / 2;
    }
    int64_t sum = 0;
    for (const int64_t part : sums) sum += part;
    EXPECT_EQ(sum, expected);
  }
}

TEST(ThreadPool, WakesWorkersThatWentToSleep) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // well beyond the workers' patience
    std::atomic<int> inside{0};
    std::atomic<bool> met{false};
    // Returns only if a worker comes to help the caller.
    pool.ParallelFor(2, [&](int64_t, int) {
      inside.fetch_add(1);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (inside.load() < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      if (inside.load() == 2) met = true;
    });
    ASSERT_TRUE(met.load());
  }
}

TEST(ThreadPool, WaitsForASlowWorker) {
  ThreadPool pool(3);
  for (int round = 0; round < 10; ++round) {
    std::vector<int> done(3, 0);
    pool.ParallelFor(3, [&](int64_t i, int) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2 * i));
      done[static_cast<size_t>(i)] = 1;
    });
    EXPECT_EQ(std::accumulate(done.begin(), done.end(), 0), 3);
  }
}

TEST(ThreadPool, WorkerNumbersAreDistinctScratchIndices) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> in_use(4);
  std::atomic<bool> clash{false};
  pool.ParallelFor(5000, [&](int64_t, int worker) {
    if (worker < 0 || worker >= 4 || in_use[static_cast<size_t>(worker)].fetch_add(1) != 0) clash = true;
    if (worker >= 0 && worker < 4) in_use[static_cast<size_t>(worker)].fetch_sub(1);
  });
  EXPECT_FALSE(clash.load());
}

TEST(ThreadPool, RunsInlineWithoutWorkersOrWithOneIndex) {
  const auto self = std::this_thread::get_id();
  ThreadPool alone(1);
  alone.ParallelFor(10, [&](int64_t, int worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), self);
  });
  ThreadPool pool(4);
  pool.ParallelFor(1, [&](int64_t, int worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), self);
  });
}

TEST(ThreadPool, MayBeUsedFromDifferentThreadsInTurn) {
  ThreadPool pool(3);
  int64_t total = 0;
  for (int round = 0; round < 50; ++round) {
    std::thread other([&] {
      std::atomic<int64_t> sum{0};
      pool.ParallelFor(100, [&](int64_t i, int) { sum.fetch_add(i); });
      total += sum.load();
    });
    other.join();
  }
  EXPECT_EQ(total, 50 * 4950);
}

TEST(ThreadPool, StartsAndStopsQuickly) {
  for (int round = 0; round < 200; ++round) {
    ThreadPool pool(3);
    if (round % 2 == 0) {
      std::atomic<int> ran{0};
      pool.ParallelFor(3, [&](int64_t, int) { ran.fetch_add(1); });
      ASSERT_EQ(ran.load(), 3);
    }
  }
}

}  // namespace
}  // namespace gdn::thread_pool_test
