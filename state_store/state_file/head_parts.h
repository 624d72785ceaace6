// Finds the values of a state's tensors that belong to given value heads and their key heads. For this folder only.
//
// Every tensor is [outer, heads, values of a head]. A convolution's tensors are three such blocks one after the other:
// q and k by key head, v by value head. No value of a state depends on several heads.
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

// A run of values that is contiguous both in the tensor of all heads and in the tensor of the slice.
struct HeadRun {
  int64_t in_whole;  // offset of the first value in the tensor of all heads, in values
  int64_t in_part;   // offset of the first value in the slice's tensor, in values
  int64_t count;
};

// Returns the runs of `heads`. `part`: a tensor of metadata.h (kLogK, ...), which has `elements` values for all heads.
std::vector<HeadRun> HeadRuns(std::string_view part, const LayerDims& dims, const HeadSlice& heads, int64_t elements);

}  // namespace gdn::state_file
