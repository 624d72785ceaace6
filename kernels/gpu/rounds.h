// Compares the times of launches on a device whose processors each hold some blocks at a time, to choose among kernels.
//
// Thread safety: pure functions.
//
//   const bool narrow = RoundsCost(256, {5, 46, 239}, stream) < RoundsCost(128, {2, 89, 162}, stream);
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gpu/launch.h"

namespace gdn::gpu {

// Costs of a kernel's blocks, in a unit that the compared kernels share. A processor holds `places` blocks at a time;
// each block takes `each` of it, and a round of blocks at least `alone`, the time of one block alone.
struct BlockCost {
  int64_t places, each, alone;
};

// Returns the cost of `blocks` equal blocks: full rounds, and a last one with what is left.
inline int64_t RoundsCost(int64_t blocks, const BlockCost& cost, const Stream& stream) {
  const int64_t round = stream.processors * cost.places;
  const auto time = [&](int64_t held) { return held == 0 ? 0 : std::max(held * cost.each, cost.alone); };
  return blocks / round * time(cost.places) + time(CeilDivide(blocks % round, stream.processors));
}

}  // namespace gdn::gpu
