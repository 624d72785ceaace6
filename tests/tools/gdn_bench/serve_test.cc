// The parts of `gdn_bench serve` that need no server: percentiles, due times, loads, ratios, suites, the checkpoint,
// and the process that wakes and is woken.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/files/safetensors.h"
#include "base/files/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/refusal.h"
#include "tools/gdn_bench/histogram.h"
#include "tools/gdn_bench/serve/arrivals.h"
#include "tools/gdn_bench/serve/serve_bench.h"
#include "tools/gdn_bench/serve/serve_kernels.h"
#include "tools/gdn_bench/serve/serve_load.h"
#include "tools/gdn_bench/serve/wake_echo.h"
#include "tools/gdn_bench/synthetic_checkpoint.h"

namespace gdn::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LatencyHistogram, IsWithinOnePercentOfAnyValue) {
  for (double seconds = 1e-9; seconds < 1000; seconds *= 1.013) {
    LatencyHistogram histogram;
    histogram.Record(0);  // so that the value is neither the smallest nor the largest, which are exact
    histogram.Record(seconds);
    histogram.Record(1050);
    const double ns = std::round(seconds * 1e9) / 1e9;
    EXPECT_NEAR(histogram.Percentile(0.5), ns, 0.01 * ns);
  }
}

TEST(LatencyHistogram, HasThePercentilesOfItsValues) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> latencies(-8, 2);
  std::vector<double> values;
  LatencyHistogram histogram;
  for (int i = 0; i < 20'000; ++i) {
    values.push_back(latencies(random));
    histogram.Record(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double fraction : {0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 0.9999}) {
    const auto rank = static_cast<size_t>(std::max(std::ceil(fraction * 20'000), 1.0)) - 1;
    EXPECT_NEAR(histogram.Percentile(fraction), values[rank], 0.01 * values[rank] + 1e-9) << fraction;
  }
  EXPECT_EQ(histogram.count(), 20'000);
  EXPECT_NEAR(histogram.MaxSeconds(), values.back(), 1e-9);
  EXPECT_EQ(histogram.Percentile(1), histogram.MaxSeconds());
}

TEST(LatencyHistogram, OfNoValueIsZeroAndOfOneIsThatValue) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.Percentile(0.5), 0);
  histogram.Record(0.123456789);
  for (const double fraction : {0.0, 0.5, 1.0}) EXPECT_DOUBLE_EQ(histogram.Percentile(fraction), 0.123456789);
}

TEST(LatencyHistogram, CountsLongerValuesThanItHolds) {
  LatencyHistogram histogram;
  histogram.Record(1e6);
  EXPECT_EQ(histogram.count(), 1);
  EXPECT_GT(histogram.MaxSeconds(), 1000);
}

TEST(ArrivalTimes, AreEvenlyApart) {
  EXPECT_THAT(ArrivalTimes(Arrivals::kEven, 4, 5, 1), ElementsAre(0, 0.25, 0.5, 0.75, 1));
}

TEST(ArrivalTimes, ArePoissonWithTheRate) {
  const std::vector<double> times = ArrivalTimes(Arrivals::kPoisson, 1000, 100'001, 7);
  EXPECT_EQ(times.front(), 0);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_NEAR(times.back(), 100, 2);
  int64_t longer_than_mean = 0;
  for (size_t i = 1; i < times.size(); ++i) longer_than_mean += times[i] - times[i - 1] > 1e-3 ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(longer_than_mean) / 1e5, std::exp(-1), 0.01);
  EXPECT_EQ(times, ArrivalTimes(Arrivals::kPoisson, 1000, 100'001, 7));
  EXPECT_NE(times, ArrivalTimes(Arrivals::kPoisson, 1000, 100'001, 8));
}

// Calls a function.
class FakeCaller final : public Caller {
 public:
  explicit FakeCaller(std::function<absl::Status()> call) : call_(std::move(call)) {}
  absl::Status Call() override { return call_(); }
  int64_t request_bytes() const override { return 1; }
  int64_t response_bytes() const override { return 1; }

 private:
  const std::function<absl::Status()> call_;
};

Callers FakeCallers(int count, const std::function<absl::Status()>& call) {
  Callers callers;
  for (int i = 0; i < count; ++i) callers.push_back(std::make_unique<FakeCaller>(call));
  return callers;
}

TEST(RunOpenBlock, DoesNotWaitForRepliesBeforeItSends) {
  std::latch all_sent(5);  // no reply before every call has been sent
  const Callers callers = FakeCallers(5, [&all_sent] {
    all_sent.arrive_and_wait();
    return absl::OkStatus();
  });
  GDN_ASSERT_OK_AND_ASSIGN(const LoadBlock block, RunOpenBlock(callers, {0, 0, 0, 0, 0}));
  EXPECT_EQ(block.latencies_s.size(), 5u);
  EXPECT_GT(block.calls_per_s, 0);
}

TEST(RunOpenBlock, CountsFromWhenACallWasDue) {
  std::atomic<int> calls{0};
  const Callers callers = FakeCallers(1, [&calls] {
    if (calls++ == 0) absl::SleepFor(absl::Milliseconds(50));  // a stall
    return absl::OkStatus();
  });
  GDN_ASSERT_OK_AND_ASSIGN(const LoadBlock block, RunOpenBlock(callers, {0, 0.01, 0.02, 0.03}));
  EXPECT_EQ(calls, 4);
  // A sleep is never shorter than asked for: the last call was due 30 ms after the first, 20 before it could be sent.
  EXPECT_GE(*std::min_element(block.latencies_s.begin(), block.latencies_s.end()), 0.0199);
  EXPECT_GE(block.late, 3);
}

TEST(RunOpenBlock, FailsRatherThanLeavingCallsAway) {
  const Callers callers = FakeCallers(1, [] {
    absl::SleepFor(absl::Milliseconds(30));
    return absl::OkStatus();
  });
  const absl::Status status = RunOpenBlock(callers, {0, 0}, /*patience_s=*/0.02).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--rate"));
}

TEST(RunClosedBlock, CallsAtLeastOnceAndReturnsTheFirstError) {
  std::atomic<int> calls{0};
  const auto count = [&calls] {
    ++calls;
    return absl::OkStatus();
  };
  GDN_ASSERT_OK_AND_ASSIGN(const LoadBlock block, RunClosedBlock(FakeCallers(3, count), 0));
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(block.latencies_s.size(), 3u);
  const auto fail = [] { return absl::DataLossError("broken"); };
  EXPECT_EQ(RunClosedBlock(FakeCallers(2, fail), 0).status(), absl::DataLossError("broken"));
  EXPECT_EQ(RunOpenBlock(FakeCallers(2, fail), {0, 0}).status(), absl::DataLossError("broken"));
}

// Two blocks of one call each.
SideResult SideOf(double first_s, double second_s) {
  SideResult side;
  for (const double seconds : {first_s, second_s}) side.Add({.latencies_s = {seconds}, .calls_per_s = 1 / seconds});
  return side;
}

RatioResult RatioOf(RatioKind kind, const Measured& measured, std::optional<double> goal) {
  return Evaluate({kind, goal}, measured).value();
}

TEST(Evaluate, DividesBlockByBlock) {
  Measured measured;
  measured.sides = {{Side::kGdn, SideOf(3e-3, 8e-3)}, {Side::kEcho, SideOf(1e-3, 2e-3)}};
  measured.kernels = {.call_s = 1e-3, .merged_call_s = 4e-3, .segment_s = 2e-3};
  measured.tokens_per_call = 10;
  const RatioResult over = RatioOf(RatioKind::kP50OverEcho, measured, 3.5);
  EXPECT_DOUBLE_EQ(over.ratio.median, 3.5);  // 3 and 4
  EXPECT_DOUBLE_EQ(over.ratio.min, 3);
  EXPECT_TRUE(over.met);
  EXPECT_FALSE(RatioOf(RatioKind::kP50OverEcho, measured, 3.49).met);
  EXPECT_DOUBLE_EQ(RatioOf(RatioKind::kP50LessKernelsOverEcho, measured, {}).ratio.median, 2.75);  // 2 and 3.5
  EXPECT_DOUBLE_EQ(RatioOf(RatioKind::kP50OverEchoAndKernels, measured, {}).ratio.min, 1.5);
  EXPECT_DOUBLE_EQ(RatioOf(RatioKind::kP99OverEcho, measured, {}).ratio.median, 4);

  const RatioResult rate = RatioOf(RatioKind::kRateOverBound, measured, 1.0);
  EXPECT_NEAR(rate.ratio.min, 0.5, 1e-9);  // 125 a second, over 250 by the kernels and 500 by the echo
  EXPECT_NEAR(rate.ratio.median, (1000 / 3.0 / 250 + 0.5) / 2, 1e-9);
  EXPECT_NEAR(rate.kernels, 2500, 1e-9);
  EXPECT_FALSE(rate.met);
  EXPECT_TRUE(RatioOf(RatioKind::kRateOverBound, measured, 0.9).met);
  measured.kernels->merged_call_s = 0;  // no kernels: the echo alone bounds
  EXPECT_NEAR(RatioOf(RatioKind::kRateOverBound, measured, {}).ratio.min, 0.25, 1e-9);
}

TEST(Evaluate, LetsADecodeWaitForOneSegment) {
  Measured measured;
  measured.sides = {{Side::kGdn, SideOf(1e-3, 2e-3)}, {Side::kGdnBeside, SideOf(4e-3, 5e-3)}};
  measured.kernels = {.call_s = 1e-3, .segment_s = 2e-3};
  EXPECT_DOUBLE_EQ(RatioOf(RatioKind::kP99BesideLessSegmentOver, measured, 1.5).ratio.median, 1.5);
}

TEST(Evaluate, ComparesSharedMemoryWithMessages) {
  Measured measured;
  measured.sides = {{Side::kGdn, SideOf(5e-3, 9e-3)}, {Side::kGdnShared, SideOf(2e-3, 5e-3)}};
  EXPECT_FALSE(Evaluate({RatioKind::kP50SharedOverMessages, 0.4}, measured).has_value());
  measured.kernels = {.call_s = 1e-3};
  const RatioResult ratio = RatioOf(RatioKind::kP50SharedOverMessages, measured, 0.4);
  EXPECT_DOUBLE_EQ(ratio.ratio.min, 0.25);  // 1 over 4
  EXPECT_DOUBLE_EQ(ratio.ratio.median, 0.375);
  EXPECT_TRUE(ratio.met);
  measured.kernels = KernelSeconds{};
  EXPECT_DOUBLE_EQ(RatioOf(RatioKind::kP50SharedOverMessages, measured, {}).ratio.min, 0.4);
}

TEST(Evaluate, ComparesSeveralDevicesWithOne) {
  Measured measured;
  measured.sides = {{Side::kGdnShared, SideOf(4e-3, 4e-3)}};
  EXPECT_FALSE(Evaluate({RatioKind::kRateSeveralOverOne, 1.85}, measured).has_value());
  measured.sides.emplace(Side::kGdnSeveral, SideOf(2e-3, 4e-3));
  measured.tokens_per_call = 64;
  const RatioResult ratio = RatioOf(RatioKind::kRateSeveralOverOne, measured, 1.85);
  EXPECT_DOUBLE_EQ(ratio.measure, 64 * 250);
  EXPECT_DOUBLE_EQ(ratio.ratio.median, 1.5);  // 2 and 1
  EXPECT_FALSE(ratio.met) << "of a rate the goal is a least";
  EXPECT_TRUE(RatioOf(RatioKind::kRateSeveralOverOne, measured, 1.4).met);
}

TEST(Evaluate, ComparesWhatIsOnTopOfEachEcho) {
  Measured measured;
  measured.sides = {{Side::kGdn, SideOf(2e-3, 4e-3)}, {Side::kEcho, SideOf(1e-3, 2e-3)}};
  EXPECT_FALSE(Evaluate({RatioKind::kP50SecureOverPlain, 1.1}, measured).has_value());
  measured.sides.emplace(Side::kGdnSecure, SideOf(6e-3, 9e-3));
  measured.sides.emplace(Side::kEchoSecure, SideOf(3e-3, 3e-3));
  const RatioResult ratio = RatioOf(RatioKind::kP50SecureOverPlain, measured, 1.1);
  EXPECT_DOUBLE_EQ(ratio.ratio.min, 1);
  EXPECT_DOUBLE_EQ(ratio.ratio.median, 1.25);  // 2 over 2, and 3 over 2
  EXPECT_FALSE(ratio.met);
}

TEST(Evaluate, ComparesAStepWithSeparateCalls) {
  Measured measured;
  measured.sides = {{Side::kGdn, SideOf(3e-3, 4e-3)}};
  EXPECT_FALSE(Evaluate({RatioKind::kP50StepOverSeparate, 0.85}, measured).has_value());
  measured.sides.emplace(Side::kGdnSeparate, SideOf(4e-3, 5e-3));
  const RatioResult ratio = RatioOf(RatioKind::kP50StepOverSeparate, measured, 0.85);
  EXPECT_DOUBLE_EQ(ratio.ratio.median, 0.775);  // 0.75 and 0.8
  EXPECT_TRUE(ratio.met);
  EXPECT_FALSE(RatioOf(RatioKind::kP50StepOverSeparate, measured, 0.77).met);
}

TEST(Evaluate, ComparesCompletionQueuesWithTheCallbackApi) {
  Measured measured;
  measured.sides = {{Side::kGdn, SideOf(9e-3, 9e-3)}, {Side::kQueueEcho, SideOf(3e-3, 4e-3)}};
  EXPECT_FALSE(Evaluate({RatioKind::kP50QueueOverRawEcho, 0.85}, measured).has_value());
  measured.sides.emplace(Side::kRawEcho, SideOf(4e-3, 5e-3));
  measured.sides.emplace(Side::kQueuesEcho, SideOf(4e-3, 4e-3));
  const RatioResult one = RatioOf(RatioKind::kP50QueueOverRawEcho, measured, 0.85);
  EXPECT_DOUBLE_EQ(one.ratio.median, 0.775);  // 0.75 and 0.8
  EXPECT_TRUE(one.met);
  EXPECT_DOUBLE_EQ(RatioOf(RatioKind::kP50QueuesOverRawEcho, measured, 0.85).ratio.median, 0.9);  // 1 and 0.8
}

TEST(Evaluate, LeavesAwayWhatItCannotKnow) {
  Measured measured;
  measured.sides = {{Side::kGdn, SideOf(1, 1)}, {Side::kEcho, SideOf(1, 1)}};
  EXPECT_FALSE(Evaluate({RatioKind::kP50OverRawEcho}, measured).has_value());
  EXPECT_FALSE(Evaluate({RatioKind::kP99BesideLessSegmentOver}, measured).has_value());
  EXPECT_FALSE(Evaluate({RatioKind::kP50LessKernelsOverEcho, 1}, measured).has_value());
  measured.kernels = KernelSeconds{};  // none: nothing to tell, unless it is asked for
  EXPECT_FALSE(Evaluate({RatioKind::kP50LessKernelsOverEcho}, measured).has_value());
  EXPECT_TRUE(Evaluate({RatioKind::kP50LessKernelsOverEcho, 1}, measured).has_value());
  EXPECT_TRUE(Evaluate({RatioKind::kP50OverEcho}, measured).has_value());
}

TEST(ServeRows, NamesEveryLoadOfASuiteOnce) {
  for (const auto& [suite, count] : {std::pair("host", 12u), std::pair("goals", 20u), std::pair("step", 6u),
                                     std::pair("devices", 3u), std::pair("secure", 1u)}) {
    ServeOptions options;
    options.suite = suite;
    GDN_ASSERT_OK_AND_ASSIGN(const auto rows, ServeRows(options));
    std::set<std::string> names;
    for (const ServeRow& row : rows) {
      names.insert(row.name);
      EXPECT_TRUE(std::any_of(row.goals.begin(), row.goals.end(), [](auto& g) { return g.goal.has_value(); }));
    }
    EXPECT_EQ(rows.size(), count);
    EXPECT_EQ(names.size(), count);
  }
}

TEST(ServeRows, StepsHave32RowsOfDecodesDraftsAndAPrefill) {
  ServeOptions options;
  options.suite = "step";
  GDN_ASSERT_OK_AND_ASSIGN(const auto rows, ServeRows(options));
  std::vector<std::vector<int>> mixes;
  for (const ServeRow& row : rows) {
    SCOPED_TRACE(row.name);
    const Workload& load = row.load;
    EXPECT_EQ(load.call, CallKind::kStep);
    EXPECT_EQ(load.rows(), 32);
    EXPECT_EQ(load.tokens_per_call(), load.decodes() + 4 * load.drafts + load.prefill_tokens);
    ASSERT_EQ(row.goals.size(), 1u);
    EXPECT_EQ(row.goals[0].kind, RatioKind::kP50StepOverSeparate);
    EXPECT_EQ(row.goals[0].goal, load.prefill_tokens > 0 ? 0.85 : 1.0);
    mixes.push_back({load.decodes(), load.drafts, load.prefill_tokens, load.request_ids ? 1 : 0});
  }
  EXPECT_THAT(mixes, ElementsAre(ElementsAre(32, 0, 0, 0), ElementsAre(31, 0, 512, 0), ElementsAre(27, 4, 512, 0),
                                 ElementsAre(32, 0, 0, 1), ElementsAre(31, 0, 512, 1), ElementsAre(27, 4, 512, 1)));
}

TEST(ServeRows, AreTheNumbersOfClientsWithoutASuite) {
  ServeOptions options;
  options.concurrency = {1, 64};
  options.beside_tokens = 100;
  GDN_ASSERT_OK_AND_ASSIGN(const auto rows, ServeRows(options));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].clients, 64);
  EXPECT_EQ(rows[1].beside_tokens, 100);
  options.suite = "hots";
  EXPECT_THAT(ServeRows(options).status(), IsInvalid("hots"));
}

TEST(KernelTimes, AreThoseOfTheServersBackend) {
  GDN_ASSERT_OK_AND_ASSIGN(KernelTimes none, KernelTimes::Make("null", {}));
  GDN_ASSERT_OK_AND_ASSIGN(const auto nothing, none.Of({.sessions = 8}, /*clients=*/4, /*segment=*/true));
  ASSERT_TRUE(nothing.has_value());
  EXPECT_EQ(nothing->call_s, 0);
  EXPECT_THAT(KernelTimes::Make("abacus", {}).status(), IsInvalid("abacus"));

  GDN_ASSERT_OK_AND_ASSIGN(KernelTimes cpu, KernelTimes::Make("cpu", {.threads = 1}));
  const Workload prefill{.call = CallKind::kPrefill, .tokens = 2};
  GDN_ASSERT_OK_AND_ASSIGN(const auto times, cpu.Of(prefill, /*clients=*/2, /*segment=*/false));
  ASSERT_TRUE(times.has_value());
  EXPECT_GT(times->call_s, 0);
  EXPECT_GT(times->merged_call_s, 0);
  EXPECT_EQ(times->segment_s, 0);
  GDN_ASSERT_OK_AND_ASSIGN(const auto other_dims, cpu.Of({.hidden = 64}, 1, false));
  EXPECT_FALSE(other_dims.has_value());
  GDN_ASSERT_OK_AND_ASSIGN(const auto draft, cpu.Of({.tokens = 2}, 1, false));
  EXPECT_FALSE(draft.has_value());
  GDN_ASSERT_OK_AND_ASSIGN(const auto step, none.Of({.call = CallKind::kStep}, 1, false));
  EXPECT_FALSE(step.has_value()) << "no single case does the work of a step";
}

TEST(WakeEcho, OfAProcessThatHasEndedIsNotWaitedFor) {
  GDN_ASSERT_OK_AND_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  GDN_ASSERT_OK_AND_ASSIGN(const auto echo, WakeEcho::Start("false", folder.path() + "/log"));
  const std::unique_ptr<Caller> caller = MakeWakeCaller(*echo);
  for (int call = 0; call < 3; ++call) {
    const absl::Status status = caller->Call();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("has ended"));
  }
}

TEST(SyntheticCheckpoint, HasLayersOfSmallWeightsThatDiffer) {
  const LayerDims dims{
      .key_heads = 1, .value_heads = 2, .key_dim = 4, .value_dim = 8, .conv_width = 4, .hidden_size = 16};
  GDN_ASSERT_OK_AND_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  ASSERT_EQ(WriteSyntheticCheckpoint(dims, 2, folder.path()), absl::OkStatus());
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(folder.path() + "/model.safetensors"));
  EXPECT_EQ(file.entries().size(), 18u);
  std::vector<std::vector<float>> weights;
  for (const char* layer : {"0", "1"}) {
    const std::string name = std::string("model.layers.") + layer + ".linear_attn.out_proj.weight";
    GDN_ASSERT_OK_AND_ASSIGN(weights.emplace_back(), file.Floats(name, std::vector<int64_t>{16, 16}));
    for (const float x : weights.back()) EXPECT_LT(std::abs(x), 0.5f);
    EXPECT_GT(std::count_if(weights.back().begin(), weights.back().end(), [](float x) { return x != 0; }), 250);
  }
  EXPECT_NE(weights[0], weights[1]);
}

}  // namespace
}  // namespace gdn::bench
