// The parts of gdn_bench that compute: percentiles, ratios, costs and limits of cases, flags.
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/layer_dims.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/common/state_layout.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/support/assert_ok.h"
#include "tests/support/refusal.h"
#include "tools/gdn_bench/cost.h"
#include "tools/gdn_bench/flags.h"
#include "tools/gdn_bench/kernels/kernel_bench.h"
#include "tools/gdn_bench/kernels/kernel_case.h"
#include "tools/gdn_bench/kernels/machine.h"
#include "tools/gdn_bench/measure.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Percentile, InterpolatesBetweenTheNearestRanks) {
  const std::vector<double> values = {40, 10, 30, 20};
  EXPECT_DOUBLE_EQ(Percentile(values, 0.0), 10);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.5), 25);
  EXPECT_DOUBLE_EQ(Percentile(values, 1.0), 40);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.9), 37);
}

TEST(Percentile, OfOneValueIsThatValueAndOfNoneIsZero) {
  EXPECT_DOUBLE_EQ(Percentile({7}, 0.99), 7);
  EXPECT_DOUBLE_EQ(Percentile({}, 0.5), 0);
}

TEST(Summarize, IsNotMovedByOneOutlier) {
  const Summary summary = Summarize({5, 1, 3, 2, 1e9});
  EXPECT_DOUBLE_EQ(summary.median, 3);
  EXPECT_DOUBLE_EQ(summary.p10, 1.4);
  EXPECT_EQ(summary.count, 5);
}

// H = 1, HV = 2, K = 4, V = 8: a state of 64 floats, 256 bytes.
constexpr LayerDims kDims{.key_heads = 1, .value_heads = 2, .key_dim = 4, .value_dim = 8};

TEST(Cost, OfAnInPlaceStepReadsAndWritesTheStateOnce) {
  const Cost cost = DecodeInPlaceCost(kDims, 3);
  // q, k, v, g, beta: 4 + 4 + 16 + 2 + 2 floats; o: 16 floats.
  EXPECT_DOUBLE_EQ(cost.bytes_read, 3 * (256 + 4 * 28));
  EXPECT_DOUBLE_EQ(cost.bytes_written, 3 * (256 + 4 * 16));
  EXPECT_DOUBLE_EQ(cost.flops, 3 * 2 * 6 * 4 * 8);
  EXPECT_EQ(cost.tokens, 3);
}

TEST(Cost, OfADeferredStepWritesTheStateOnceALogLength) {
  const Cost cost = DecodeDeferredCost(kDims, 1);
  const double log_entry = 4 * (4 + 16 + 2);
  EXPECT_DOUBLE_EQ(cost.bytes_read, 256 + log_entry * (kLogCapacity - 1) / 2.0 + 4 * 28);
  EXPECT_DOUBLE_EQ(cost.bytes_written, 256.0 / kLogCapacity + log_entry + 4 * 16);
  EXPECT_DOUBLE_EQ(cost.flops, DecodeInPlaceCost(kDims, 1).flops);
}

TEST(Cost, OfALayerReadsItsWeightsOnceForTheWholeBatch) {
  LayerDims dims = kDims;
  dims.conv_width = 4;
  dims.hidden_size = 16;
  EXPECT_EQ(ProjectionElements(dims), (24 + 16 + 4) * 16 + 16 * 16);
  const double one = LayerDecodeCost(dims, WeightFormat::kBF16, 1).bytes_read;
  const double two = LayerDecodeCost(dims, WeightFormat::kBF16, 2).bytes_read;
  const double three = LayerDecodeCost(dims, WeightFormat::kBF16, 3).bytes_read;
  EXPECT_DOUBLE_EQ(two - one, three - two);
  // The bytes without any session are those of the projections and the convolution's taps.
  EXPECT_DOUBLE_EQ(2 * one - two, 2.0 * ProjectionElements(dims) + 4.0 * 24 * 4);
}

TEST(ServedDecode, RunsAgainAndAgainWithArraysThatGoOn) {
  LayerDims dims{.key_heads = 1, .value_heads = 2, .key_dim = 16, .value_dim = 16};
  dims.conv_width = 4;
  dims.hidden_size = 32;
  absl::StatusOr<Machine> machine = MakeCpuMachine(/*threads=*/1);
  ASSERT_TRUE(machine.ok()) << machine.status();
  const absl::StatusOr<PreparedCase> prepared = ServedDecodeCase(dims, 3).prepare({*machine->backend, 0});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_TRUE(prepared->every_run_differs);
  EXPECT_EQ(prepared->steps, 2 * kLogCapacity);
  for (int run = 0; run < 3; ++run) ASSERT_EQ(prepared->run(), absl::OkStatus());
  ASSERT_EQ(machine->backend->Synchronize(), absl::OkStatus());
}

TEST(LimitOf, IsTheLongerOfMovingBytesAndMultiplying) {
  const MachineRates rates{
      .read_bytes_per_s = 10, .copy_bytes_per_s = 20, .update_bytes_per_s = 40, .flops_per_s = 100};
  // 40 bytes each way at 40 bytes/s, the other 60 read at 10 bytes/s.
  const LimitTime memory = LimitOf({.bytes_read = 100, .bytes_written = 40, .flops = 100}, rates);
  EXPECT_DOUBLE_EQ(memory.seconds, 8);
  EXPECT_TRUE(memory.memory_bound);
  const LimitTime arithmetic = LimitOf({.bytes_read = 100, .bytes_written = 40, .flops = 900}, rates);
  EXPECT_DOUBLE_EQ(arithmetic.seconds, 9);
  EXPECT_FALSE(arithmetic.memory_bound);
}

TEST(NormalizeArguments, AcceptsDashesAndAJsonFlagWithoutAValue) {
  EXPECT_THAT(NormalizeArguments({"gdn_bench", "kernel", "--min-time", "0.1", "--json"}),
              ElementsAre("gdn_bench", "kernel", "--min_time", "0.1", "--json=-"));
  EXPECT_THAT(NormalizeArguments({"--json", "--repeat=2"}), ElementsAre("--json=-", "--repeat=2"));
  EXPECT_THAT(NormalizeArguments({"--json", "a-b.json", "--filter=B-1"}),
              ElementsAre("--json", "a-b.json", "--filter=B-1"));
}

TEST(KernelBench, RefusesWhatItCannotRun) {
  KernelBenchOptions options;
  options.filter = "(";
  EXPECT_THAT(KernelCaseNames(options).status(), IsInvalid(""));
  options.filter = "no such case";
  EXPECT_EQ(RunKernelBench(options).status().code(), absl::StatusCode::kNotFound);
  options.filter = "decode";
  options.backend = "abacus";
  EXPECT_THAT(RunKernelBench(options).status(), IsInvalid("abacus"));
  EXPECT_THAT(KernelCaseNames(options).status(), IsInvalid(""));
  options = {};
  options.measure.repeat = 0;
  EXPECT_THAT(RunKernelBench(options).status(), IsInvalid(""));
}

TEST(KernelBench, GivesAGpuTheBatchesThatFillOne) {
  KernelBenchOptions options;
  options.filter = "/(B=512|T=128)$";
  auto names = KernelCaseNames(options);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, IsEmpty());
  options.backend = std::string(GpuBackendName());
  names = KernelCaseNames(options);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, ElementsAre("decode_deferred/B=512", "decode_in_place/B=512", "prefill_scan/T=128",
                                  "prefill_chunk/T=128"));
}

TEST(MeasureCase, RunsEveryRoundAndDividesByItsSteps) {
  GDN_ASSERT_OK_AND_ASSIGN(auto machine, MakeCpuMachine(1));
  int64_t runs = 0;
  const PreparedCase prepared{
      .cost = {.bytes_read = 1e6, .flops = 1}, .steps = 10, .working_set_bytes = 1, .run = [&runs] {
        ++runs;
        absl::SleepFor(absl::Milliseconds(1));
        return absl::OkStatus();
      }};
  GDN_ASSERT_OK_AND_ASSIGN(const auto result,
                           MeasureCase("sleep", prepared, machine, {.repeat = 3, .min_time_s = 0.004}));
  EXPECT_EQ(result.step_s.count, 3);
  EXPECT_GE(result.step_s.median, 1e-4);  // a sleep is never shorter than asked for
  EXPECT_EQ(result.steps_per_round % 10, 0);
  EXPECT_GE(runs, 3 * result.steps_per_round / 10);
  EXPECT_TRUE(result.memory_bound);
  EXPECT_FALSE(result.cold);
  EXPECT_GT(result.fraction_of_limit.median, 0);
  EXPECT_EQ(result.method, TimingMethod::kCalls);
  EXPECT_EQ(result.launch_s.count, 0);
}

// Ten runs to a repetition; a repetition lasts 2 ms, and 6 ms where it is launched anew.
class PretendedGraph final : public TimedCase {
 public:
  TimingMethod method() const override { return TimingMethod::kGraph; }
  int64_t steps_per_repetition() const override { return 10; }
  absl::StatusOr<double> Time(int64_t repetitions) override { return 2e-3 * static_cast<double>(repetitions); }
  absl::StatusOr<double> TimeLaunches(int64_t repetitions) override {
    launched += repetitions;
    return 6e-3 * static_cast<double>(repetitions);
  }
  static inline int64_t launched = 0;
};

TEST(MeasureCase, ReportsDirectLaunchesBesideAGraph) {
  GDN_ASSERT_OK_AND_ASSIGN(auto machine, MakeCpuMachine(1));
  machine.load = [](const PreparedCase&) { return std::make_unique<PretendedGraph>(); };
  const PreparedCase prepared{.cost = {.bytes_read = 1, .flops = 1}, .run = [] { return absl::OkStatus(); }};
  GDN_ASSERT_OK_AND_ASSIGN(const auto result,
                           MeasureCase("graph", prepared, machine, {.repeat = 3, .min_time_s = 0.04}));
  EXPECT_EQ(result.method, TimingMethod::kGraph);
  EXPECT_GE(result.steps_per_round, 200);  // 20 repetitions of 2 ms
  EXPECT_DOUBLE_EQ(result.step_s.median, 2e-4);
  EXPECT_DOUBLE_EQ(result.launch_s.median, 6e-4);
  EXPECT_EQ(result.launch_s.count, 3);
  EXPECT_LT(PretendedGraph::launched * 10, 3 * result.steps_per_round);  // for comparison: fewer are enough
}

TEST(MeasureCase, ReturnsTheCasesError) {
  GDN_ASSERT_OK_AND_ASSIGN(auto machine, MakeCpuMachine(1));
  PreparedCase prepared;
  prepared.run = [] { return absl::DataLossError("broken"); };
  EXPECT_EQ(MeasureCase("broken", prepared, machine, {}).status(), absl::DataLossError("broken"));
}

}  // namespace
}  // namespace gdn::bench
