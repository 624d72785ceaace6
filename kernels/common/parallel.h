// When a loop is worth other threads.
//
// Thread safety: as ThreadPool::ParallelFor. Bits never depend on the answer: operators give each output to one task
// whole.
//
//   ParallelForWork(pool, /*work=*/rows * features, tasks, [&](int64_t task, int worker) { ... });
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "base/thread_pool.h"

namespace gdn {

// Elementwise operations (about one SIMD lane's worth of work each) that cost as much as waking the pool does: some
// microseconds.
inline constexpr int64_t kSerialWork = 1 << 15;

// pool.ParallelFor, or a plain loop on the calling thread where `work` is too little to share.
inline void ParallelForWork(ThreadPool& pool, int64_t work, int64_t count, absl::FunctionRef<void(int64_t, int)> body) {
  if (count > 1 && work > kSerialWork && pool.threads() > 1) {
    pool.ParallelFor(count, body);
    return;
  }
  for (int64_t i = 0; i < count; ++i) body(i, 0);
}

// body(begin, end) for blocks of `block` rows of `rows`.
template <typename Body>
void ParallelForRows(ThreadPool& pool, int64_t work, int64_t rows, int64_t block, const Body& body) {
  ParallelForWork(pool, work, (rows + block - 1) / block,
                  [&](int64_t task, int) { body(task * block, std::min(rows, (task + 1) * block)); });
}

}  // namespace gdn
