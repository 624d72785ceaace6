// Sequences of different lengths laid end to end, and the state slot of each.
//
// Thread safety: plain views. Ownership: none. Index arrays are host memory on every backend; a device backend copies
// them to the device itself.
//
//   int32_t cu_seqlens[] = {0, 3, 3, 10};  // lengths 3, 0 and 7
//   int32_t slots[] = {5, 0, 2};
//   PackedBatch batch{.sequences = 3, .cu_seqlens = cu_seqlens, .slots = slots};
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gdn {

struct PackedBatch {
  int32_t sequences = 0;
  // [sequences + 1], starts at 0, never decreases; sequence i has rows [cu[i], cu[i + 1])
  const int32_t* cu_seqlens = nullptr;
  const int32_t* slots = nullptr;  // [sequences], distinct; negative = padding: no state touched, its output rows zero

  int32_t tokens() const { return cu_seqlens[sequences]; }
  int32_t length(int32_t i) const { return cu_seqlens[i + 1] - cu_seqlens[i]; }
  int32_t max_length() const {
    int32_t most = 0;
    for (int32_t i = 0; i < sequences; ++i) most = std::max(most, length(i));
    return most;
  }
};

// The index arrays that an operator's GPU kernels read: the batch's, and three of [sequences] elements each, null if
// the kernels do not need them. Host memory, not owned.
struct BatchArrays {
  PackedBatch batch;
  const int64_t* token_counts = nullptr;
  const int32_t* log_lengths = nullptr;
  const int32_t* base_slots = nullptr;
};

// INVALID_ARGUMENT that names the element if lengths or slots break what PackedBatch says, or a slot is not below
// slot_count. A batch without sequences is valid, but needs cu_seqlens = {0}.
absl::Status ValidatePackedBatch(const PackedBatch& batch, int32_t slot_count);
// INVALID_ARGUMENT if token_counts is null, or outside 0 .. kMaxTokenCount (inclusive) for a sequence that is no
// padding. The batch must be valid.
absl::Status ValidateTokenCounts(absl::string_view op, const PackedBatch& batch, const int64_t* token_counts);

// Zeroes the rows of padding sequences in `output`, [tokens, row_floats] in host memory.
void ZeroPaddingRows(const PackedBatch& batch, int64_t row_floats, float* output);

}  // namespace gdn
