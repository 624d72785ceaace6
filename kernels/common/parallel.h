// Decides whether a loop is worth waking other threads.
//
// Thread safety: as ThreadPool::ParallelFor. The decision never changes bits, because operators compute each output
// entirely within one task.
//
//   ParallelForWork(pool, /*work=*/rows * features, tasks, [&](int64_t task, int worker) { ... });
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "base/threads/thread_pool.h"

namespace gdn {

// Work that costs as much as waking the pool (a few microseconds), in elementwise operations of one SIMD lane.
inline constexpr int64_t kSerialWork = 1 << 15;

// Calls body(task, worker) for tasks 0 .. count - 1 and returns when all have run. Uses pool.ParallelFor, or a plain
// loop on the calling thread (worker 0) if `work` is at most kSerialWork. `work` has that constant's unit, for all
// tasks.
inline void ParallelForWork(ThreadPool& pool, int64_t work, int64_t count, absl::FunctionRef<void(int64_t, int)> body) {
  if (count > 1 && work > kSerialWork && pool.threads() > 1) {
    pool.ParallelFor(count, body);
    return;
  }
  for (int64_t i = 0; i < count; ++i) body(i, 0);
}

// Calls body(begin, end) for consecutive blocks of `block` rows (fewer in the last) of `rows`, and returns when all
// have run. `work`: of all rows, as in ParallelForWork.
template <typename Body>
void ParallelForRows(ThreadPool& pool, int64_t work, int64_t rows, int64_t block, const Body& body) {
  ParallelForWork(pool, work, (rows + block - 1) / block,
                  [&](int64_t task, int) { body(task * block, std::min(rows, (task + 1) * block)); });
}

}  // namespace gdn
