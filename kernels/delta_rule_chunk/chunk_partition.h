// Chooses how a chunked prefill is divided over threads. Every partition gives the same bits.
//
// Thread safety: a pure function.
//
//   const Partition partition = ChoosePartition(dims, sequences, panels, pool.threads());
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/layer_dims.h"

namespace gdn {

// Share of a sequence that one task computes: `heads` value heads of one key head, and at most `panels` panels of value
// columns of each. `heads` divides HV / H.
struct Partition {
  int64_t heads;
  int64_t panels;
};

inline Partition ChoosePartition(const LayerDims& dims, int64_t sequences, int64_t panels, int64_t threads) {
  const int64_t wanted = 2 * threads;  // so that no thread waits long for the last task
  Partition partition{dims.group(), panels};
  while (partition.heads > 1 && sequences * (dims.value_heads / partition.heads) < wanted) {
    do {
      --partition.heads;  // ends at 1, which divides every group
    } while (dims.group() % partition.heads != 0);
  }
  if (threads > 1) {
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero)
    const int64_t tasks = sequences * (dims.value_heads / partition.heads);
    const int64_t cuts = std::clamp<int64_t>((wanted + tasks - 1) / tasks, 1, panels);
    partition.panels = (panels + cuts - 1) / cuts;
  }
  return partition;
}

}  // namespace gdn
