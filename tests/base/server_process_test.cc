#include "base/server_process.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace gdn {
namespace {

// Of the allocator; a sanitizer's has none but the program's first.
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

TEST(ServerProcess, HasNoMoreHeapsThanProcessorsHoweverManyThreads) {
  SetUpServerProcess();
  const int processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int threads = 4 * processors;
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
  EXPECT_LE(Heaps(), processors);
}

}  // namespace
}  // namespace gdn
