// Times a case and the machine's limits alternately.
//
// A round measures the limits and then runs the case for at least `min_time_s`; every other round does so in reverse
// order. The ratio is taken within the round, so that other programs and clock changes affect both alike. The results
// are medians over rounds. Thread safety: one thread at a time.
//
//   GDN_ASSIGN_OR_RETURN(CaseResult r, MeasureCase("decode_deferred/B=8", prepared, machine, {.repeat = 15}));
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/gdn_bench/kernels/kernel_case.h"
#include "tools/gdn_bench/kernels/machine.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {

struct MeasureOptions {
  int repeat = 15;           // number of rounds
  double min_time_s = 0.05;  // least time of the case in a round, in seconds; at least one run() is made
};

struct CaseResult {
  std::string name;
  Cost cost;
  double working_set_bytes = 0;
  bool cold = false;          // the working set is at least kColdFactor last-level caches
  bool memory_bound = false;  // true: memory bounds the case, at the median rates
  int64_t steps_per_round = 0;
  TimingMethod method = TimingMethod::kCalls;
  Summary step_s;    // seconds of a step of the case
  Summary launch_s;  // the same with single launches, timed by the host's clock; empty for TimingMethod::kCalls
  Summary limit_s;   // least seconds of a step, by the machine's limits in the same round
  Summary fraction_of_limit;  // limit / time of the same round
  Summary read_bytes_per_s;
  Summary copy_bytes_per_s;
  Summary update_bytes_per_s;
  Summary flops_per_s;
};

// Measures the case and the limits in alternation. Errors of the case's run() and of machine.measure_limits().
absl::StatusOr<CaseResult> MeasureCase(const std::string& name, const PreparedCase& prepared, Machine& machine,
                                       const MeasureOptions& options);

// Measures seconds per step without the limits. Errors of the case's run().
absl::StatusOr<Summary> MeasureStep(const PreparedCase& prepared, Machine& machine, const MeasureOptions& options);

}  // namespace gdn::bench
