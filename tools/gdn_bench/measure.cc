#include "tools/gdn_bench/measure.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "tools/gdn_bench/cache_size.h"
#include "tools/gdn_bench/clock.h"

namespace gdn::bench {
namespace {

constexpr int64_t kMostRuns = 1'000'000;

absl::StatusOr<double> TimeRuns(const PreparedCase& prepared, int64_t runs) {
  const double start = NowSeconds();
  for (int64_t run = 0; run < runs; ++run) GDN_RETURN_IF_ERROR(prepared.run());
  return NowSeconds() - start;
}

// Runs a round needs to last min_time_s; the estimate also warms the case up.
absl::StatusOr<int64_t> ChooseRuns(const PreparedCase& prepared, double min_time_s) {
  GDN_RETURN_IF_ERROR(prepared.run());
  int64_t runs = 1;
  while (true) {
    GDN_ASSIGN_OR_RETURN(const double seconds, TimeRuns(prepared, runs));
    if (seconds >= min_time_s || runs >= kMostRuns) return runs;
    const double wanted = std::ceil(1.1 * static_cast<double>(runs) * min_time_s / std::max(seconds, 1e-9));
    runs = std::clamp(static_cast<int64_t>(wanted), runs + 1, std::min(10 * runs + 1, kMostRuns));
  }
}

}  // namespace

absl::StatusOr<CaseResult> MeasureCase(const std::string& name, const PreparedCase& prepared, MachineLimits& limits,
                                       const MeasureOptions& options) {
  GDN_ASSIGN_OR_RETURN(const int64_t runs, ChooseRuns(prepared, options.min_time_s));
  const double steps = static_cast<double>(runs * prepared.steps);
  std::vector<double> step_s, limit_s, fraction, read, copy, update, flops;
  for (int round = 0; round < options.repeat; ++round) {
    MachineRates rates;
    if (round % 2 == 0) rates = limits.Measure();
    GDN_ASSIGN_OR_RETURN(const double seconds, TimeRuns(prepared, runs));
    if (round % 2 != 0) rates = limits.Measure();
    step_s.push_back(seconds / steps);
    limit_s.push_back(LimitOf(prepared.cost, rates).seconds);
    fraction.push_back(limit_s.back() / step_s.back());
    read.push_back(rates.read_bytes_per_s);
    copy.push_back(rates.copy_bytes_per_s);
    update.push_back(rates.update_bytes_per_s);
    flops.push_back(rates.flops_per_s);
  }
  CaseResult result;
  result.name = name;
  result.cost = prepared.cost;
  result.working_set_bytes = prepared.working_set_bytes;
  result.cold = prepared.working_set_bytes >= static_cast<double>(kColdFactor * LastLevelCacheBytes());
  result.steps_per_round = runs * prepared.steps;
  result.step_s = Summarize(step_s);
  result.limit_s = Summarize(limit_s);
  result.fraction_of_limit = Summarize(fraction);
  result.read_bytes_per_s = Summarize(read);
  result.copy_bytes_per_s = Summarize(copy);
  result.update_bytes_per_s = Summarize(update);
  result.flops_per_s = Summarize(flops);
  result.memory_bound = LimitOf(prepared.cost, {.read_bytes_per_s = result.read_bytes_per_s.median,
                                                .copy_bytes_per_s = result.copy_bytes_per_s.median,
                                                .update_bytes_per_s = result.update_bytes_per_s.median,
                                                .flops_per_s = result.flops_per_s.median})
                            .memory_bound;
  return result;
}

}  // namespace gdn::bench
