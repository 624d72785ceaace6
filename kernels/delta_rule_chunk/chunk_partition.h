// Chooses how a chunked prefill is divided over threads, and what memory a task needs. Every partition gives the same
// bits.
//
// Thread safety: pure functions.
//
//   const Partition partition = ChoosePartition(dims, sequences, panels, pool.threads());
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/layer_dims.h"
#include "kernels/delta_rule_chunk/chunk_scratch.h"

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

// Returns `dims` with the key heads that value heads share in a task: with decays by channel they have nothing in
// common.
inline LayerDims SharedDims(LayerDims dims) {
  if (dims.decays_by_channel()) dims.key_heads = dims.value_heads;
  return dims;
}

// Returns the most floats of a task's states, panel by panel.
inline int64_t TaskStateFloats(const LayerDims& dims, int64_t sequences, int64_t threads) {
  const int64_t heads = ChoosePartition(SharedDims(dims), sequences, /*panels=*/1, threads).heads;
  return heads * dims.key_dim * ((dims.value_dim + kMaxPanelColumns - 1) / kMaxPanelColumns * kMaxPanelColumns);
}

}  // namespace gdn
