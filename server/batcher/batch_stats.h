// What the engine has done since it was made: launches, their rows and times, steps and tokens.
//
// Thread safety: counted by the threads that run launches, read by any. Ownership: plain; the Batcher owns one.
//
//   const BatchStats& stats = batcher.stats();
//   stats.of(BatchKind::kDecode).tokens.load();
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/histogram.h"

namespace gdn {

enum class BatchKind { kDecode, kDraft, kPrefill };
inline constexpr std::array<const char*, 3> kBatchKindNames = {"decode", "draft", "prefill"};

struct BatchStats {
  // Of the steps of one kind.
  struct OfKind {
    LatencyHistogram queue;  // from a call's admission to the launch that takes its step, or its first segment
    RowHistogram rows;       // of each launch
    // Of each launch, in this order: its inputs gathered and sent; its operators issued, not where that computes them;
    // the device's time for it; its outputs copied to the calls.
    LatencyHistogram copy_in, issue, compute, copy_out;
    std::atomic<int64_t> steps{0};   // rows that were committed
    std::atomic<int64_t> tokens{0};  // of those
  };

  OfKind& of(BatchKind kind) { return kinds[static_cast<size_t>(kind)]; }
  const OfKind& of(BatchKind kind) const { return kinds[static_cast<size_t>(kind)]; }

  std::array<OfKind, 3> kinds;
};

}  // namespace gdn
