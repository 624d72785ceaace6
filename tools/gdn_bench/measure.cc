#include "tools/gdn_bench/measure.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/status_macros.h"

namespace gdn::bench {
namespace {

constexpr int64_t kMostRepetitions = 1'000'000;
constexpr int64_t kLaunchShare = 4;  // direct launches take longer and are for comparison only

// Repetitions a round needs to last min_time_s.
absl::StatusOr<int64_t> ChooseRepetitions(TimedCase& timed, double min_time_s) {
  int64_t repetitions = 1;
  while (true) {
    GDN_ASSIGN_OR_RETURN(const double seconds, timed.Time(repetitions));
    if (seconds >= min_time_s || repetitions >= kMostRepetitions) return repetitions;
    const double wanted = std::ceil(1.1 * static_cast<double>(repetitions) * min_time_s / std::max(seconds, 1e-9));
    repetitions =
        std::clamp(static_cast<int64_t>(wanted), repetitions + 1, std::min(10 * repetitions + 1, kMostRepetitions));
  }
}

}  // namespace

absl::StatusOr<CaseResult> MeasureCase(const std::string& name, const PreparedCase& prepared, Machine& machine,
                                       const MeasureOptions& options) {
  GDN_ASSIGN_OR_RETURN(const std::unique_ptr<TimedCase> timed, machine.load(prepared));
  GDN_ASSIGN_OR_RETURN(const int64_t repetitions, ChooseRepetitions(*timed, options.min_time_s));
  const auto steps_of = [&](int64_t count) { return static_cast<double>(count * timed->steps_per_repetition()); };
  const int64_t launched = std::max<int64_t>(1, repetitions / kLaunchShare);
  std::vector<double> step_s, launch_s, limit_s;
  std::vector<MachineRates> rates;
  const auto measure_limits = [&]() -> absl::Status {
    GDN_ASSIGN_OR_RETURN(rates.emplace_back(), machine.measure_limits());
    return absl::OkStatus();
  };
  for (int round = 0; round < options.repeat; ++round) {
    if (round % 2 == 0) GDN_RETURN_IF_ERROR(measure_limits());
    GDN_ASSIGN_OR_RETURN(const double seconds, timed->Time(repetitions));
    if (round % 2 != 0) GDN_RETURN_IF_ERROR(measure_limits());
    step_s.push_back(seconds / steps_of(repetitions));
    if (timed->method() != TimingMethod::kCalls) {
      GDN_ASSIGN_OR_RETURN(const double launch_seconds, timed->TimeLaunches(launched));
      launch_s.push_back(launch_seconds / steps_of(launched));
    }
    limit_s.push_back(LimitOf(prepared.cost, rates.back()).seconds);
  }
  const auto of_rates = [&rates](double MachineRates::*rate) {
    std::vector<double> values;
    for (const MachineRates& round : rates) values.push_back(round.*rate);
    return Summarize(values);
  };
  CaseResult result{
      .name = name,
      .cost = prepared.cost,
      .working_set_bytes = prepared.working_set_bytes,
      .cold = prepared.working_set_bytes >= static_cast<double>(kColdFactor * machine.last_level_cache_bytes),
      .steps_per_round = repetitions * timed->steps_per_repetition(),
      .method = timed->method(),
      .step_s = Summarize(step_s),
      .launch_s = Summarize(launch_s),
      .limit_s = Summarize(limit_s),
      .fraction_of_limit = SummarizeRatios(limit_s, step_s),
      .read_bytes_per_s = of_rates(&MachineRates::read_bytes_per_s),
      .copy_bytes_per_s = of_rates(&MachineRates::copy_bytes_per_s),
      .update_bytes_per_s = of_rates(&MachineRates::update_bytes_per_s),
      .flops_per_s = of_rates(&MachineRates::flops_per_s)};
  result.memory_bound = LimitOf(prepared.cost, {.read_bytes_per_s = result.read_bytes_per_s.median,
                                                .copy_bytes_per_s = result.copy_bytes_per_s.median,
                                                .update_bytes_per_s = result.update_bytes_per_s.median,
                                                .flops_per_s = result.flops_per_s.median})
                            .memory_bound;
  return result;
}

absl::StatusOr<Summary> MeasureStep(const PreparedCase& prepared, Machine& machine, const MeasureOptions& options) {
  GDN_ASSIGN_OR_RETURN(const std::unique_ptr<TimedCase> timed, machine.load(prepared));
  GDN_ASSIGN_OR_RETURN(const int64_t repetitions, ChooseRepetitions(*timed, options.min_time_s));
  std::vector<double> step_s;
  for (int round = 0; round < options.repeat; ++round) {
    GDN_ASSIGN_OR_RETURN(const double seconds, timed->Time(repetitions));
    step_s.push_back(seconds / static_cast<double>(repetitions * timed->steps_per_repetition()));
  }
  return Summarize(step_s);
}

}  // namespace gdn::bench
