// Counts what flows allocate, and lets allocations fail: this file replaces the program's operator new.
#include "base/task/frame_pool.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/task/resume_on.h"
#include "base/task/status_macros.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "gtest/gtest.h"
#include "tests/base/task/completion.h"
#include "tests/base/task/semaphore.h"
#include "tests/support/simulated_executor.h"

namespace {

std::atomic<int64_t> g_allocations{0};
std::atomic<bool> g_no_memory{false};

void* Allocate(size_t bytes) {
  ++g_allocations;
  return g_no_memory ? nullptr : std::malloc(bytes);  // NOLINT(cppcoreguidelines-no-malloc)
}

}  // namespace

// None is inlined: GCC would take one half of a pair that it sees into for a mismatch of the other half.
// NOLINTBEGIN(cppcoreguidelines-no-malloc)
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* block = Allocate(bytes);
  if (block == nullptr) std::abort();
  return block;
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept { return Allocate(bytes); }
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t /*bytes*/) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, const std::nothrow_t& /*tag*/) noexcept { std::free(block); }
// NOLINTEND(cppcoreguidelines-no-malloc)

namespace gdn {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kFramesArePooled = false;
#else
constexpr bool kFramesArePooled = true;
#endif

TEST(FramePool, GivesABlockAgainThatWasFreedOnTheSameThread) {
  for (const size_t bytes : {1, 64, 65, 200, 1000, 4096}) {
    void* first = AllocateFromPool(bytes);
    std::memset(first, 7, bytes);
    FreeToPool(first, bytes);
    EXPECT_EQ(AllocateFromPool(bytes), first);
    FreeToPool(first, bytes);
  }
  void* large = AllocateFromPool(100'000);
  std::memset(large, 7, 100'000);
  FreeToPool(large, 100'000);
}

TEST(FramePool, KeepsABoundedNumberOfBlocks) {
  std::vector<void*> blocks;
  for (int i = 0; i < 5000; ++i) blocks.push_back(AllocateFromPool(1024));
  for (void* block : blocks) FreeToPool(block, 1024);
  const int64_t before = g_allocations;
  for (void*& block : blocks) block = AllocateFromPool(1024);
  // 32 of the thread and 256 KiB of the shared pool come back.
  EXPECT_GE(g_allocations - before, 5000 - 32 - 256);
  EXPECT_LE(g_allocations - before, 5000 - 256);
  for (void* block : blocks) FreeToPool(block, 1024);
}

// One thread allocates, another one frees, as when flows move on: the blocks go round.
TEST(FramePool, BlocksComeBackFromTheThreadThatFreesThem) {
  std::vector<void*> moved;
  const auto round = [&moved] {
    std::thread([&moved] {
      for (int i = 0; i < 100; ++i) moved.push_back(AllocateFromPool(300));
    }).join();
    std::thread([&moved] {
      for (void* block : std::exchange(moved, {})) FreeToPool(block, 300);
    }).join();
  };
  moved.reserve(200);
  round();
  const int64_t before = g_allocations;
  round();
  EXPECT_LT(g_allocations - before, 20);  // threads and the vector; not 100 blocks
}

TEST(FramePool, KeepsBlocksApartOnManyThreads) {
  std::atomic<int64_t> torn{0};
  std::vector<std::vector<std::pair<unsigned char*, size_t>>> handed(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < handed.size(); ++t) {
    threads.emplace_back([&torn, &mine = handed[t], t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 20'000; ++i) {
        const size_t bytes = 8 + random() % 600;
        auto* block = static_cast<unsigned char*>(AllocateFromPool(bytes));
        std::memset(block, static_cast<int>(t + 1), bytes);
        mine.emplace_back(block, bytes);
        if (mine.size() < 50) continue;
        std::swap(mine[random() % mine.size()], mine.back());
        const auto [old, size] = mine.back();
        mine.pop_back();
        for (size_t b = 0; b < size; ++b) torn += old[b] != t + 1 ? 1 : 0;
        FreeToPool(old, size);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  for (const auto& mine : handed) {
    for (const auto& [block, bytes] : mine) FreeToPool(block, bytes);
  }
}

// A thread's destructors run after its pool is closed; blocks that they free go to the heap.
struct FreesLate {
  ~FreesLate() {
    FreeToPool(block, 100);
    FreeToPool(AllocateFromPool(100), 100);
  }
  void* block = nullptr;
};

TEST(FramePool, TakesBlocksWhileAThreadEnds) {
  std::thread([] {
    static thread_local FreesLate late;  // made before the pool's own, so destroyed after it
    late.block = AllocateFromPool(100);
  }).join();
}

Task<absl::StatusOr<int>> Half(int number) { co_return number / 2; }

// A step in small: child tasks, a permit, a wait with a deadline and a cancellation that another flow ends, and a hop.
Task<absl::Status> Step(Executor& executor, Semaphore& places, Deadline deadline, TaskGroup& group);

Task<void> Completes(Completion<int>::Setter set) {
  set(42);
  co_return;
}

Task<absl::Status> Step(Executor& executor, Semaphore& places, Deadline deadline, TaskGroup& group) {
  GDN_CO_ASSIGN_OR_RETURN(const Semaphore::Permit permit, co_await places.Take(1, deadline));
  Completion<int> completion;
  group.Spawn(Completes(completion.setter()));
  GDN_CO_ASSIGN_OR_RETURN(const int number, co_await completion.Wait(deadline));
  GDN_CO_ASSIGN_OR_RETURN(const int half, co_await Half(number));
  co_await ResumeOn(executor);
  co_return half == 21 ? absl::OkStatus() : absl::InternalError("a wrong half");
}

Task<absl::Status> Steps(Executor& executor, int count) {
  Semaphore places(2);
  TaskGroup group(executor);
  for (int i = 0; i < count; ++i) {
    CancelSource source;
    GDN_CO_RETURN_IF_ERROR(co_await Step(executor, places, source.Until(executor.Now() + absl::Hours(1)), group));
  }
  // The group's destructor may not wait inside a flow of its own executor, and has nothing to wait for by now.
  while (group.open() > 0) co_await ResumeOn(executor);
  co_return absl::OkStatus();
}

template <typename AnExecutor>
int64_t AllocationsOfSteps(AnExecutor& executor, int count) {
  const int64_t before = g_allocations;
  EXPECT_TRUE(BlockOn(executor, Steps(executor, count)).ok());
  return g_allocations - before;
}

TEST(FramePool, ASteadyStepAllocatesNothing) {
  SimulatedExecutor simulated(1);
  AllocationsOfSteps(simulated, 100);
  const int64_t of_simulated = AllocationsOfSteps(simulated, 1000);
  ThreadExecutor threads({.name = "test", .threads = 2});
  AllocationsOfSteps(threads, 1000);
  const int64_t of_threads = AllocationsOfSteps(threads, 10'000);
  RecordProperty("allocations_simulated", static_cast<int>(of_simulated));
  RecordProperty("allocations_threads", static_cast<int>(of_threads));
  std::printf("allocations: %d in 1,000 simulated steps, %d in 10,000 steps on threads\n",
              static_cast<int>(of_simulated), static_cast<int>(of_threads));
  if (!kFramesArePooled) GTEST_SKIP() << "frames come from the heap in this build, so that it sees each use after free";
  EXPECT_EQ(of_simulated, 0);
  // Two threads may first have to fill their lists for one another: 64 sizes of 32 blocks are the bound, not the steps.
  EXPECT_LT(of_threads, 300);
}

TEST(FramePoolDeathTest, ALackOfMemoryEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        g_no_memory = true;
        for (int i = 0; i < 1000; ++i) (void)AllocateFrame(4000);
      },
      "no memory is left for a coroutine's frame");
}

}  // namespace
}  // namespace gdn
