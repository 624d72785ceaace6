// What was measured of one load on several servers, and the ratios that its goals are about.
//
// Ratios of medians and of rates are taken between blocks that ran one after the other, so that what a neighbour does
// to the machine, it does to both; those of a 99th percentile are of all calls. Thread safety: plain values.
//
//   std::optional<RatioResult> r = Evaluate({RatioKind::kP50OverEcho, /*goal=*/1.15}, measured);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "tools/gdn_bench/histogram.h"
#include "tools/gdn_bench/serve_load.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {

// Who answers: gdn_server, the echo of messages, the echo of bytes, gdn_server beside another session's prefill, and
// gdn_server with tensors in shared memory and the rest on a Unix socket: one on one device, one on several.
// The last two are gdn_server with TLS, tokens and an HTTP port, and the echo of messages with the same TLS.
enum class Side { kGdn, kEcho, kRawEcho, kGdnBeside, kGdnShared, kGdnSeveral, kGdnSecure, kEchoSecure };

struct SideResult {
  LatencyHistogram latencies;
  std::vector<double> block_p50_s;
  std::vector<double> block_calls_per_s;
  int64_t late = 0;

  void Add(const LoadBlock& block);
};

// Of kernels alone; 0 where nothing is computed.
struct KernelSeconds {
  double call_s = 0;
  double merged_call_s = 0;  // a call's share of a launch that merges the clients' calls
  double segment_s = 0;      // of a prefill: what a decode may have to wait for
};

struct Measured {
  std::map<Side, SideResult> sides;
  std::optional<KernelSeconds> kernels;  // nullopt: not known
  double tokens_per_call = 1;            // steps, of decodes
};

enum class RatioKind {
  kP50OverEcho,
  kP99OverEcho,
  kRateOverEcho,
  kP50OverRawEcho,
  kP50LessKernelsOverEcho,
  kP50OverEchoAndKernels,
  kRateOverBound,             // the bound is min(echo, kernels merged)
  kP99BesideLessSegmentOver,  // p99 beside a prefill, less one segment, over p99 without it
  kP50SharedOverMessages,     // both less kernels
  kRateSeveralOverOne,        // devices; both with shared memory
  kP50SecureOverPlain,        // each over its echo
};

struct RatioGoal {
  RatioKind kind;
  std::optional<double> goal = std::nullopt;  // at most, of a rate at least; nullopt: reported only
};

struct RatioResult {
  RatioGoal goal;
  // Seconds, or tokens a second of rates. `measure` is what the ratio is over, without kernels; kernels 0: none.
  double ours = 0;
  double measure = 0;
  double kernels = 0;
  Summary ratio = {};  // of blocks; of a p99 there is one
  bool met = true;
};

// "p50_over_echo": as the JSON has it.
std::string_view RatioName(RatioKind kind);
bool IsRate(RatioKind kind);

// nullopt where a side or the kernels' time is missing, and for kernels that take none where there is no goal.
std::optional<RatioResult> Evaluate(const RatioGoal& goal, const Measured& measured);

// Of every kind that can be had.
std::vector<RatioGoal> EveryRatio();

}  // namespace gdn::bench
