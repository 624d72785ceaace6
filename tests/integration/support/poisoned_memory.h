// Fills reused memory with one byte, so that a test notices if stale memory reaches a caller. This affects blocks of
// the server's pools when they are taken, and (with glibc) all heap memory when it is allocated and freed.
//
// Thread safety: applies to the whole process, so one at a time. Ownership: the destructor ends the filling.
//
//   const PoisonedMemory poison('\xa5');
//   EXPECT_FALSE(HoldsPoison(reply.output().data(), poison.byte()));
#pragma once

#include <malloc.h>

#include <string>
#include <string_view>

#include "state_store/host_block_pool.h"

namespace gdn {

class PoisonedMemory {
 public:
  // Four such bytes should be a float32 that is valid in a state: a small negative number.
  explicit PoisonedMemory(char byte) : byte_(byte) {
    const int value = static_cast<unsigned char>(byte);
    FillHostBlocksForTesting(value);
    mallopt(M_PERTURB, ~value & 0xff);  // allocated memory gets this byte, freed memory its complement
  }
  ~PoisonedMemory() {
    FillHostBlocksForTesting(-1);
    mallopt(M_PERTURB, 0);
  }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;

  char byte() const { return byte_; }

 private:
  const char byte_;
};

// True if at least 16 poison bytes follow one another, which does not occur in other data.
inline bool HoldsPoison(std::string_view bytes, char poison) {
  constexpr size_t kRow = 16;
  return bytes.find(std::string(kRow, poison)) != std::string_view::npos;
}

}  // namespace gdn
