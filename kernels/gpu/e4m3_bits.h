// Converts E4M3 to float16 with integer operations, for devices without an instruction: four bytes (s eeee mmm) become
// two pairs of float16 with 1/256 of their values. Bits only move, so subnormals need no special care, but NaNs do.
//
// Thread safety: pure constexpr functions, usable in device code.
//
//   const uint32_t pair = E4M3EvenHalves(word);  // bytes 0 and 2
#pragma once

#include <cstdint>

namespace gdn::gpu {

constexpr uint32_t E4M3EvenHalves(uint32_t word) { return ((word << 8) & 0x80008000u) | ((word << 7) & 0x3f803f80u); }
constexpr uint32_t E4M3OddHalves(uint32_t word) { return (word & 0x80008000u) | ((word >> 1) & 0x3f803f80u); }

// True if any of the word's four bytes is 0x7f or 0xff, which are the NaNs of E4M3.
constexpr bool HasE4M3NaN(uint32_t word) { return (((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0; }

static_assert(E4M3EvenHalves(0x00380000u) == 0x1c000000u);  // 1 as 2^-8
static_assert(HasE4M3NaN(0x00ff0000u) && !HasE4M3NaN(0xfe7e00feu));

}  // namespace gdn::gpu
