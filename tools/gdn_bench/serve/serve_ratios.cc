#include "tools/gdn_bench/serve/serve_ratios.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>

namespace gdn::bench {
namespace {

// A ratio's value from one block's figures.
using OfBlock = std::function<double(double ours, double measure)>;

Summary OfBlocks(const std::vector<double>& ours, const std::vector<double>& measure, const OfBlock& ratio) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours.size(), measure.size()); ++i) ratios.push_back(ratio(ours[i], measure[i]));
  return Summarize(ratios);
}

Side MeasureOf(RatioKind kind) {
  if (kind == RatioKind::kP50OverRawEcho || kind == RatioKind::kP50RingOverRawEcho) return Side::kRawEcho;
  if (kind == RatioKind::kP50RingOverWakeEcho) return Side::kWakeEcho;
  if (kind == RatioKind::kP50QueueOverRawEcho || kind == RatioKind::kP50QueuesOverRawEcho) return Side::kRawEcho;
  if (kind == RatioKind::kRateRingOverMessages) return Side::kGdn;
  if (kind == RatioKind::kRateSeveralOverOne) return Side::kGdnShared;
  if (kind == RatioKind::kP50StepOverSeparate) return Side::kGdnSeparate;
  const bool over_itself = kind == RatioKind::kP99BesideLessSegmentOver || kind == RatioKind::kP50SharedOverMessages;
  return over_itself ? Side::kGdn : Side::kEcho;
}

Side OursOf(RatioKind kind) {
  if (kind == RatioKind::kP99BesideLessSegmentOver) return Side::kGdnBeside;
  if (kind == RatioKind::kRateSeveralOverOne) return Side::kGdnSeveral;
  if (kind == RatioKind::kP50RingOverRawEcho || kind == RatioKind::kP50RingOverWakeEcho ||
      kind == RatioKind::kRateRingOverMessages) {
    return Side::kGdnRing;
  }
  if (kind == RatioKind::kP50QueueOverRawEcho) return Side::kQueueEcho;
  if (kind == RatioKind::kP50QueuesOverRawEcho) return Side::kQueuesEcho;
  return kind == RatioKind::kP50SharedOverMessages ? Side::kGdnShared : Side::kGdn;
}

bool NeedsKernels(RatioKind kind) {
  return kind == RatioKind::kP50LessKernelsOverEcho || kind == RatioKind::kP50OverEchoAndKernels ||
         kind == RatioKind::kRateOverBound || kind == RatioKind::kRateRingOverMessages ||
         kind == RatioKind::kP99BesideLessSegmentOver || kind == RatioKind::kP50SharedOverMessages;
}

RatioResult OfMedians(const RatioGoal& goal, const SideResult& ours, const SideResult& measure, double kernels_s,
                      const OfBlock& ratio) {
  return {.goal = goal,
          .ours = ours.latencies.Percentile(0.5),
          .measure = measure.latencies.Percentile(0.5),
          .kernels = kernels_s,
          .ratio = OfBlocks(ours.block_p50_s, measure.block_p50_s, ratio)};
}

RatioResult OfTails(const RatioGoal& goal, const SideResult& ours, const SideResult& measure, double less_s) {
  RatioResult result{.goal = goal,
                     .ours = ours.latencies.Percentile(0.99),
                     .measure = measure.latencies.Percentile(0.99),
                     .kernels = less_s};
  result.ratio = Summarize({(result.ours - less_s) / result.measure});
  return result;
}

RatioResult OfRates(const RatioGoal& goal, const SideResult& ours, const SideResult& measure, double tokens_per_call,
                    double kernels_per_s) {
  return {.goal = goal,
          .ours = Summarize(ours.block_calls_per_s).median * tokens_per_call,
          .measure = Summarize(measure.block_calls_per_s).median * tokens_per_call,
          .kernels = kernels_per_s * tokens_per_call,
          .ratio = OfBlocks(ours.block_calls_per_s, measure.block_calls_per_s, [=](double a, double b) {
            return a / (kernels_per_s > 0 ? std::min(b, kernels_per_s) : b);
          })};
}

RatioResult Compute(const RatioGoal& goal, const SideResult& ours, const SideResult& measure,
                    const KernelSeconds& kernels, double tokens_per_call) {
  const double call_s = kernels.call_s;
  switch (goal.kind) {
    case RatioKind::kP50OverEcho:
    case RatioKind::kP50OverRawEcho:
    case RatioKind::kP50RingOverRawEcho:
    case RatioKind::kP50RingOverWakeEcho:
    case RatioKind::kP50StepOverSeparate:
    case RatioKind::kP50QueueOverRawEcho:
    case RatioKind::kP50QueuesOverRawEcho:
      return OfMedians(goal, ours, measure, 0, [](double a, double b) { return a / b; });
    case RatioKind::kP50LessKernelsOverEcho:
      return OfMedians(goal, ours, measure, call_s, [call_s](double a, double b) { return (a - call_s) / b; });
    case RatioKind::kP50SharedOverMessages:
      return OfMedians(goal, ours, measure, call_s,
                       [call_s](double a, double b) { return (a - call_s) / (b - call_s); });
    case RatioKind::kP50OverEchoAndKernels:
      return OfMedians(goal, ours, measure, call_s, [call_s](double a, double b) { return a / (b + call_s); });
    case RatioKind::kP99OverEcho:
      return OfTails(goal, ours, measure, 0);
    case RatioKind::kP99BesideLessSegmentOver:
      return OfTails(goal, ours, measure, kernels.segment_s);
    case RatioKind::kP50SecureOverPlain:  // EvaluateSecure's
      break;
    case RatioKind::kRateOverEcho:
    case RatioKind::kRateRingOverMessages:
    case RatioKind::kRateSeveralOverOne:
      return OfRates(goal, ours, measure, tokens_per_call, 0);
    case RatioKind::kRateOverBound:
      return OfRates(goal, ours, measure, tokens_per_call, kernels.merged_call_s > 0 ? 1 / kernels.merged_call_s : 0);
  }
  return {.goal = goal};
}

}  // namespace

void SideResult::Add(const LoadBlock& block) {
  for (const double seconds : block.latencies_s) latencies.Record(seconds);
  block_p50_s.push_back(Percentile(block.latencies_s, 0.5));
  block_calls_per_s.push_back(block.calls_per_s);
  late += block.late;
}

std::string_view RatioName(RatioKind kind) {
  switch (kind) {
    case RatioKind::kP50OverEcho:
      return "p50_over_echo";
    case RatioKind::kP99OverEcho:
      return "p99_over_echo";
    case RatioKind::kRateOverEcho:
      return "rate_over_echo";
    case RatioKind::kP50OverRawEcho:
      return "p50_over_raw_echo";
    case RatioKind::kP50LessKernelsOverEcho:
      return "p50_less_kernels_over_echo";
    case RatioKind::kP50OverEchoAndKernels:
      return "p50_over_echo_and_kernels";
    case RatioKind::kRateOverBound:
      return "rate_over_bound";
    case RatioKind::kP99BesideLessSegmentOver:
      return "p99_beside_less_segment_over_without";
    case RatioKind::kP50SharedOverMessages:
      return "p50_shared_over_messages";
    case RatioKind::kRateSeveralOverOne:
      return "rate_several_over_one";
    case RatioKind::kP50SecureOverPlain:
      return "p50_secure_over_plain";
    case RatioKind::kP50RingOverRawEcho:
      return "p50_ring_over_raw_echo";
    case RatioKind::kP50RingOverWakeEcho:
      return "p50_ring_over_wake_echo";
    case RatioKind::kRateRingOverMessages:
      return "rate_ring_over_messages";
    case RatioKind::kP50StepOverSeparate:
      return "p50_step_over_separate";
    case RatioKind::kP50QueueOverRawEcho:
      return "p50_queue_over_raw_echo";
    case RatioKind::kP50QueuesOverRawEcho:
      return "p50_queues_over_raw_echo";
  }
  return "";
}

bool IsRate(RatioKind kind) {
  return kind == RatioKind::kRateOverEcho || kind == RatioKind::kRateOverBound ||
         kind == RatioKind::kRateSeveralOverOne || kind == RatioKind::kRateRingOverMessages;
}

namespace {

// What the service takes over its echo where all is on, over the same where all is off.
std::optional<RatioResult> EvaluateSecure(const RatioGoal& goal, const Measured& measured) {
  std::array<const SideResult*, 4> sides = {};
  constexpr std::array kSides = {Side::kGdnSecure, Side::kEchoSecure, Side::kGdn, Side::kEcho};
  for (size_t i = 0; i < kSides.size(); ++i) {
    const auto side = measured.sides.find(kSides[i]);
    if (side == measured.sides.end()) return std::nullopt;
    sides[i] = &side->second;
  }
  const auto over = [](const SideResult& ours, const SideResult& echo) {
    std::vector<double> ratios;
    for (size_t i = 0; i < std::min(ours.block_p50_s.size(), echo.block_p50_s.size()); ++i) {
      ratios.push_back(ours.block_p50_s[i] / echo.block_p50_s[i]);
    }
    return ratios;
  };
  RatioResult result{.goal = goal,
                     .ours = sides[0]->latencies.Percentile(0.5),
                     .measure = sides[2]->latencies.Percentile(0.5),
                     .ratio = OfBlocks(over(*sides[0], *sides[1]), over(*sides[2], *sides[3]),
                                       [](double a, double b) { return a / b; })};
  result.met = !goal.goal.has_value() || result.ratio.median <= *goal.goal;
  return result;
}

}  // namespace

std::optional<RatioResult> Evaluate(const RatioGoal& goal, const Measured& measured) {
  if (goal.kind == RatioKind::kP50SecureOverPlain) return EvaluateSecure(goal, measured);
  const auto ours = measured.sides.find(OursOf(goal.kind));
  const auto measure = measured.sides.find(MeasureOf(goal.kind));
  if (ours == measured.sides.end() || measure == measured.sides.end()) return std::nullopt;
  if (NeedsKernels(goal.kind)) {
    if (!measured.kernels.has_value()) return std::nullopt;
    const bool none = measured.kernels->call_s == 0;
    if (none && !goal.goal.has_value() && MeasureOf(goal.kind) != Side::kGdn) return std::nullopt;
  }
  RatioResult result = Compute(goal, ours->second, measure->second, measured.kernels.value_or(KernelSeconds{}),
                               measured.tokens_per_call);
  if (goal.goal.has_value()) {
    result.met = IsRate(goal.kind) ? result.ratio.median >= *goal.goal : result.ratio.median <= *goal.goal;
  }
  return result;
}

std::vector<RatioGoal> EveryRatio() {
  std::vector<RatioGoal> goals;
  for (const RatioKind kind :
       {RatioKind::kP50OverEcho, RatioKind::kP99OverEcho, RatioKind::kRateOverEcho, RatioKind::kP50OverRawEcho,
        RatioKind::kP50LessKernelsOverEcho, RatioKind::kP50OverEchoAndKernels, RatioKind::kRateOverBound,
        RatioKind::kP99BesideLessSegmentOver, RatioKind::kP50SharedOverMessages, RatioKind::kRateSeveralOverOne,
        RatioKind::kP50SecureOverPlain, RatioKind::kP50RingOverRawEcho, RatioKind::kP50RingOverWakeEcho,
        RatioKind::kRateRingOverMessages, RatioKind::kP50StepOverSeparate, RatioKind::kP50QueueOverRawEcho,
        RatioKind::kP50QueuesOverRawEcho}) {
    goals.push_back({kind});
  }
  return goals;
}

}  // namespace gdn::bench
