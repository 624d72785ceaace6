// Which values of a state's parts belong to some of its value heads, and their key heads. For this folder alone.
//
// Every part is [outer, heads, each], and the convolution's are three such below each other: q and k by key head, v by
// value head. Nothing else about a state goes across heads.
// Thread safety: a pure function.
//
//   for (const HeadRun& run : HeadRuns(kLogU, dims, {.first = 2, .count = 2, .total = 4}, whole.size()))
//     std::copy_n(whole.data() + run.in_whole, run.count, part.data() + run.in_part);
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/head_slice.h"
#include "base/layer_dims.h"

namespace gdn::state_file {

// Neighbouring values that stay neighbours.
struct HeadRun {
  int64_t in_whole;  // where they begin, in the part of all heads
  int64_t in_part;   // .. and in that of the slice
  int64_t count;
};

// `part` is one of metadata.h's, of `elements` values in all heads of `dims`, of which `heads` are some.
std::vector<HeadRun> HeadRuns(std::string_view part, const LayerDims& dims, const HeadSlice& heads, int64_t elements);

}  // namespace gdn::state_file
