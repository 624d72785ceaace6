// The stream that a GPU operator launches on, without vendor headers.
//
// Thread safety: a plain value; launches on one stream are ordered, and one thread at a time may issue them.
// Ownership: none; the GPU backend owns the stream.
//
//   GDN_RETURN_IF_ERROR(GatingGpu(params, stream));
#pragma once

#include <cstdint>

namespace gdn::gpu {

struct Stream {
  void* handle = nullptr;     // hipStream_t or cudaStream_t; unused by the host executor
  int32_t wave_width = 0;     // lanes of a wave: 64 on gfx9, 32 on NVIDIA, either on the host executor
  int32_t processors = 1;     // compute units (AMD) or multiprocessors (NVIDIA)
  bool overlaps = false;      // a kernel may begin while the one before it ends (Grid::early); NVIDIA from sm_90 on
  bool matrix_units = false;  // products may run on matrix units (MmaBf16, MmaTf32); HasMatrixUnits
  // kStreamCounters words on the device for a kernel whose blocks share work. They are 0 when a kernel begins, and when
  // it ends. Null: blocks share none.
  uint32_t* counters = nullptr;
};

inline constexpr int64_t kStreamCounters = 4096;

// A PackedBatch with its index arrays in device memory, not owned, and the sizes that a launch needs on the host.
struct DeviceBatch {
  int32_t sequences = 0;
  int32_t tokens = 0;
  int32_t max_length = 0;                 // tokens of the longest sequence
  const int32_t* cu_seqlens = nullptr;    // [sequences + 1]
  const int32_t* slots = nullptr;         // [sequences]; negative = padding
  const int64_t* token_counts = nullptr;  // [sequences], or null if the operator does not need them
  const int32_t* log_lengths = nullptr;   // [sequences], or null if the operator does not need them
  const int32_t* base_slots = nullptr;    // [sequences]; slots if each base is in its sequence's slot
};

// The index arrays of MaterializeStateParams in device memory, [count] each, not owned.
struct DeviceFold {
  const int32_t* src = nullptr;
  const int32_t* dst = nullptr;
  const int32_t* log_lengths = nullptr;
  const int32_t* src_bases = nullptr;  // src if the params have none
};

}  // namespace gdn::gpu
