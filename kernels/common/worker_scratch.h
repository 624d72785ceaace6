// Scratch memory for the workers of a parallel loop: allocated once a call, one cache-line-aligned piece a worker.
//
// Thread safety: pieces do not overlap, so each worker may use its own freely. Ownership: frees on destruction;
// movable.
//
//   GDN_ASSIGN_OR_RETURN(WorkerScratch scratch, WorkerScratch::Make(pool.threads(), floats));
//   pool.ParallelFor(heads, [&](int64_t head, int worker) { float* buffer = scratch.piece(worker); ... });
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/aligned_buffer.h"

namespace gdn {

class WorkerScratch {
 public:
  // RESOURCE_EXHAUSTED where there is not enough memory. The contents are zero.
  static absl::StatusOr<WorkerScratch> Make(int workers, int64_t floats) {
    WorkerScratch scratch;
    scratch.piece_floats_ = (floats + kAlignment - 1) / kAlignment * kAlignment;
    const int64_t bytes = workers * scratch.piece_floats_ * static_cast<int64_t>(sizeof(float));
    scratch.data_.reset(static_cast<float*>(AlignedAllocate(static_cast<size_t>(bytes))));
    if (bytes > 0 && scratch.data_ == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes of scratch of ", workers,
                                                       " threads; use fewer threads or free memory"));
    }
    return scratch;
  }

  float* piece(int worker) const { return data_.get() + worker * piece_floats_; }

 private:
  static constexpr int64_t kAlignment = 16;  // floats
  struct Free {
    void operator()(float* data) const { AlignedFree(data); }
  };
  std::unique_ptr<float, Free> data_;
  int64_t piece_floats_ = 0;
};

}  // namespace gdn
