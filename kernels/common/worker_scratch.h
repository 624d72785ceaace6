// Scratch memory for the workers of a parallel loop: one cache-line-aligned piece per worker, from reserved memory or
// allocated for the call.
//
// Thread safety: pieces do not overlap, so each worker may use its own freely; an arena is for one thread at a time.
// Ownership: the destructors free the memory. Scratch from an arena must be destroyed in reverse order of creation, and
// before the arena.
//
//   GDN_RETURN_IF_ERROR(arena.Reserve(WorkerScratch::Floats(pool.threads(), floats)));  // maybe long before
//   const ScratchArena::InUse in_use(arena);
//   GDN_ASSIGN_OR_RETURN(WorkerScratch scratch, WorkerScratch::Make(pool.threads(), floats));
//   pool.ParallelFor(heads, [&](int64_t head, int worker) { float* buffer = scratch.piece(worker); ... });
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/aligned_buffer.h"
#include "base/error.h"

namespace gdn {

// Memory reserved in advance, so that operators that take their scratch from it cannot run out midway. For one thread
// at a time.
class ScratchArena {
 public:
  // Makes the arena hold at least `floats` floats in all; never shrinks it. Call only while no scratch is taken.
  // RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED), and unchanged, if memory is exhausted.
  absl::Status Reserve(int64_t floats) {
    if (floats <= floats_) return absl::OkStatus();
    std::unique_ptr<float, Free> larger(static_cast<float*>(AlignedAllocate(Bytes(floats))));
    if (larger == nullptr) return Exhausted(floats);
    data_ = std::move(larger);
    floats_ = floats;
    return absl::OkStatus();
  }

  // While an InUse lives, WorkerScratch::Make on its thread takes memory from the arena as long as it has room. A
  // thread may have one at a time. The arena must outlive it.
  class InUse {
   public:
    explicit InUse(ScratchArena& arena) { current = &arena; }
    InUse(const InUse&) = delete;
    ~InUse() { current = nullptr; }
  };

 private:
  friend class WorkerScratch;
  static inline thread_local ScratchArena* current = nullptr;
  struct Free {
    void operator()(float* data) const { AlignedFree(data); }
  };
  static size_t Bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }
  static absl::Status Exhausted(int64_t floats) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
        absl::StrCat("no memory for ", Bytes(floats), " bytes of scratch; use fewer threads or free memory"));
  }

  std::unique_ptr<float, Free> data_;
  int64_t floats_ = 0;
  int64_t taken_ = 0;
};

class WorkerScratch {
 public:
  // Returns the number of floats that Make with the same arguments takes from an arena.
  static int64_t Floats(int workers, int64_t floats) { return workers * PieceFloats(floats); }

  // Returns `floats` zeroed floats for each worker, from the arena in use on this thread if it has room, else
  // allocated. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if memory is exhausted.
  static absl::StatusOr<WorkerScratch> Make(int workers, int64_t floats) {
    WorkerScratch scratch;
    scratch.piece_floats_ = PieceFloats(floats);
    const int64_t all = Floats(workers, floats);
    if (all == 0) return scratch;
    ScratchArena* const arena = ScratchArena::current;
    if (arena != nullptr && all <= arena->floats_ - arena->taken_) {
      scratch.data_ = arena->data_.get() + arena->taken_;
      std::fill_n(scratch.data_, all, 0.0f);
      arena->taken_ += all;
      scratch.arena_ = arena;
      scratch.taken_ = all;
      return scratch;
    }
    scratch.own_.reset(static_cast<float*>(AlignedAllocate(ScratchArena::Bytes(all))));
    if (scratch.own_ == nullptr) return ScratchArena::Exhausted(all);
    scratch.data_ = scratch.own_.get();
    return scratch;
  }

  WorkerScratch(WorkerScratch&& other) noexcept
      : own_(std::move(other.own_)),
        arena_(std::exchange(other.arena_, nullptr)),
        taken_(other.taken_),
        data_(other.data_),
        piece_floats_(other.piece_floats_) {}
  WorkerScratch& operator=(WorkerScratch&&) = delete;
  ~WorkerScratch() {
    if (arena_ != nullptr) arena_->taken_ -= taken_;
  }

  float* piece(int worker) const { return data_ + worker * piece_floats_; }

 private:
  static constexpr int64_t kAlignment = 16;  // floats: a cache line
  static int64_t PieceFloats(int64_t floats) { return (floats + kAlignment - 1) / kAlignment * kAlignment; }

  WorkerScratch() = default;

  std::unique_ptr<float, ScratchArena::Free> own_;
  ScratchArena* arena_ = nullptr;  // null: memory is own_
  int64_t taken_ = 0;              // floats taken from the arena
  float* data_ = nullptr;
  int64_t piece_floats_ = 0;
};

}  // namespace gdn
