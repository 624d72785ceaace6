#include "base/server_process.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/threads/processors.h"

namespace gdn::server_process_test {
namespace {

// Number of the allocator's heaps. A sanitizer's allocator has only one, the program's first.
int Heaps() {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  EXPECT_EQ(malloc_info(0, stream), 0);
  std::fclose(stream);
  const std::string info(text, size);
  std::free(text);
  int heaps = 0;
  for (size_t at = info.find("<heap "); at != std::string::npos; at = info.find("<heap ", at + 1)) ++heaps;
  return heaps;
}

// After more threads than processors have taken memory at once.
int HeapsAfterThreads() {
  const int threads = 4 * static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::barrier all(threads);
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&all] {
      void* const volatile block = std::malloc(1000);
      all.arrive_and_wait();
      std::free(block);
    });
  }
  for (std::thread& thread : running) thread.join();
  return Heaps();
}

// The first test, because the process keeps the heaps that it has made.
TEST(ServerProcess, CountsTheProcessorsThatItMayUseNotThoseOfTheMachine) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);

  SetUpServerProcess();
  EXPECT_EQ(AvailableProcessors(), 1);
  EXPECT_LE(HeapsAfterThreads(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST(ServerProcess, HasNoMoreHeapsThanProcessorsHoweverManyThreads) {
  SetUpServerProcess();
  EXPECT_LE(HeapsAfterThreads(), std::min(AvailableProcessors(), 8));
}

}  // namespace
}  // namespace gdn::server_process_test
