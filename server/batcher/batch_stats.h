// Counters of an engine since it was created: launches, their rows and times, steps and tokens.
//
// Thread safety: written by the threads that run launches, read by any thread. Ownership: plain; the Batcher owns one.
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
  // Counters of one kind of step.
  struct OfKind {
    LatencyHistogram queue;  // time from a job's submission to the launch that runs it or its first segment
    RowHistogram rows;       // rows of each launch
    // Times of each launch, in this order. copy_in: gathering and sending its inputs. issue: issuing its operators; not
    // counted if operators compute when they are issued. compute: device time. copy_out: copying its outputs to the
    // calls.
    LatencyHistogram copy_in, issue, compute, copy_out;
    std::atomic<int64_t> steps{0};   // committed rows; a prefill is one, whatever its segments
    std::atomic<int64_t> tokens{0};  // tokens of the committed rows
  };

  OfKind& of(BatchKind kind) { return kinds[static_cast<size_t>(kind)]; }
  const OfKind& of(BatchKind kind) const { return kinds[static_cast<size_t>(kind)]; }

  std::array<OfKind, 3> kinds;
};

}  // namespace gdn
