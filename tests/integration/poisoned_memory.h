// Memory that is used again, filled with one byte, so that whatever reaches a caller without having been written for it
// is seen: blocks of the server's pools when they are taken, and (with glibc) all heap memory when it is allocated and
// when it is freed.
//
// Thread safety: of the whole process, so one at a time. Ownership: the destructor ends it.
//
//   const PoisonedMemory poison('\xa5');
//   EXPECT_FALSE(HoldsPoison(reply.output().data(), poison.byte()));
#pragma once

#include <malloc.h>

#include <string>
#include <string_view>

#include "state_store/host_block_fill.h"

namespace gdn {

class PoisonedMemory {
 public:
  // Four such bytes should be a float32 that a state may hold: a small number below 0.
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

// True if poison bytes stand in a longer row than in any other data.
inline bool HoldsPoison(std::string_view bytes, char poison) {
  constexpr size_t kRow = 16;
  return bytes.find(std::string(kRow, poison)) != std::string_view::npos;
}

}  // namespace gdn
