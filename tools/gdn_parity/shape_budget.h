// Reduces shapes of other projects' tests to sizes that the host executor and the double references can run in time.
//
// Thread safety: pure functions.
//
//   if (StateUpdates(dims, lengths) > kHostBudget) { ReduceShape(dims, lengths); }
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/layer_dims.h"

namespace gdn::parity {

// Most updates of elements of S that a problem may need. The host executor does a few million a second.
inline constexpr int64_t kHostBudget = 600'000;

inline int64_t StateUpdates(const LayerDims& dims, const std::vector<int32_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) * dims.state_elements();
}

// Reduces the number of heads first (with the same grouping), then the number and length of sequences, until
// StateUpdates is at most kHostBudget. Head dimensions stay.
inline void ReduceShape(LayerDims& dims, std::vector<int32_t>& lengths) {
  const int32_t group = dims.group();
  while (dims.key_heads > 1 && StateUpdates(dims, lengths) > kHostBudget) {
    dims.key_heads /= 2;
    dims.value_heads = dims.key_heads * group;
  }
  while (lengths.size() > 3 && StateUpdates(dims, lengths) > kHostBudget) lengths.resize((lengths.size() + 1) / 2);
  while (*std::max_element(lengths.begin(), lengths.end()) > 1 && StateUpdates(dims, lengths) > kHostBudget) {
    for (int32_t& length : lengths) length = (length + 1) / 2;
  }
}

}  // namespace gdn::parity
