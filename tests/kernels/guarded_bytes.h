// Memory that ends at a page that nobody may read: a read past its end ends the program.
//
// Thread safety: none. Ownership: unmaps its memory.
//
//   const GuardedBytes guarded(bytes);
//   params.weight.data = guarded.data();
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace gdn {

class GuardedBytes {
 public:
  explicit GuardedBytes(const std::string& bytes) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    mapped_ = (bytes.size() + page_ - 1) / page_ * page_ + page_;
    memory_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory_, MAP_FAILED);
    char* guard = static_cast<char*>(memory_) + mapped_ - page_;
    EXPECT_EQ(mprotect(guard, page_, PROT_NONE), 0);
    data_ = guard - bytes.size();
    std::memcpy(data_, bytes.data(), bytes.size());
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(memory_, mapped_); }

  const void* data() const { return data_; }

 private:
  size_t page_;
  size_t mapped_ = 0;
  void* memory_ = nullptr;
  char* data_ = nullptr;
};

}  // namespace gdn
