// Measurements of one load on several servers, and the ratios that its goals limit.
//
// Ratios of medians and of rates compare adjacent blocks, so that other programs on the machine affect both alike.
// Ratios of 99th percentiles are over all calls. Thread safety: plain values.
//
//   std::optional<RatioResult> r = Evaluate({RatioKind::kP50OverEcho, /*goal=*/1.15}, measured);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "tools/gdn_bench/histogram.h"
#include "tools/gdn_bench/serve/serve_load.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {

// The server and setup of a measurement.
// kGdn, kEcho, kRawEcho: gdn_server, the echo server of messages, and that of bytes.
// kGdnBeside: gdn_server during another session's prefill.
// kGdnShared, kGdnSeveral: gdn_server with tensors in shared memory and messages over a Unix socket, on one device or
// on several.
// kGdnSecure, kEchoSecure: gdn_server with TLS, tokens and an HTTP port, and the echo of messages with the same TLS.
// kGdnSeparate: gdn_server with the separate calls that do the work of a Step.
// kGdnRing: gdn_server with calls through rings.
// kQueueEcho, kQueuesEcho: the echo of bytes on completion queues, polled by one thread and by one for each processor.
// kWakeEcho: two processes that wake each other.
enum class Side {
  kGdn,
  kEcho,
  kRawEcho,
  kGdnBeside,
  kGdnShared,
  kGdnSeveral,
  kGdnSecure,
  kEchoSecure,
  kGdnSeparate,
  kGdnRing,
  kQueueEcho,
  kQueuesEcho,
  kWakeEcho
};

struct SideResult {
  LatencyHistogram latencies;
  std::vector<double> block_p50_s;
  std::vector<double> block_calls_per_s;
  int64_t late = 0;

  void Add(const LoadBlock& block);
};

// Times of the kernels alone; 0 if the backend computes nothing.
struct KernelSeconds {
  double call_s = 0;
  double merged_call_s = 0;  // one call's share of a launch that merges all clients' calls
  double segment_s = 0;      // one segment of a prefill, for which a decode may have to wait
};

struct Measured {
  std::map<Side, SideResult> sides;
  std::optional<KernelSeconds> kernels;  // nullopt: not known
  double tokens_per_call = 1;            // by which rates of calls are multiplied; for a decode, its number of tokens
};

enum class RatioKind {
  kP50OverEcho,
  kP99OverEcho,
  kRateOverEcho,
  kP50OverRawEcho,
  kP50LessKernelsOverEcho,
  kP50OverEchoAndKernels,
  kRateOverBound,             // rate / min(rate of the echo, rate of merged kernels)
  kP99BesideLessSegmentOver,  // (p99 during a prefill - one segment) / p99 without the prefill
  kP50SharedOverMessages,     // with shared memory / with messages, both without the kernels' time
  kRateSeveralOverOne,        // several devices / one device, both with shared memory
  kP50SecureOverPlain,        // with TLS / without, each relative to its echo
  kP50RingOverRawEcho,        // through a ring, kernels included / the echo of bytes
  kP50RingOverWakeEcho,       // through a ring / two processes that wake each other
  kRateRingOverMessages,      // through rings / with messages
  kP50StepOverSeparate,       // a Step / the separate calls, from the first request to the last reply
  kP50QueueOverRawEcho,       // the echo of bytes on one completion queue / on the callback API
  kP50QueuesOverRawEcho,      // the same with a completion queue for each processor
};

struct RatioGoal {
  RatioKind kind;
  std::optional<double> goal = std::nullopt;  // upper limit (of a rate: lower limit); nullopt: no goal, only reported
};

struct RatioResult {
  RatioGoal goal;
  // Numerator and denominator, in seconds; for ratios of rates in tokens per second. `measure`: the denominator without
  // the kernels' time. `kernels`: the kernels' time or rate; 0 if it is not part of the ratio.
  double ours = 0;
  double measure = 0;
  double kernels = 0;
  Summary ratio = {};  // over blocks; for a p99 a single value
  bool met = true;
};

// Returns the ratio's name in the JSON, such as "p50_over_echo".
std::string_view RatioName(RatioKind kind);
bool IsRate(RatioKind kind);

// Computes the ratio. nullopt if a side or the kernels' time was not measured, or if the kernels take no time in a
// ratio to an echo without a goal.
std::optional<RatioResult> Evaluate(const RatioGoal& goal, const Measured& measured);

// Returns every kind of ratio, without goals.
std::vector<RatioGoal> EveryRatio();

}  // namespace gdn::bench
