// The whole layer against its reference, and cut in every way against itself.
#include "kernels/layer/gdn_layer.h"

#include <cmath>
#include <memory>

#include "absl/strings/match.h"
#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/slot_access.h"
#include "tests/kernels/layer_problem.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"

namespace gdn::layer_test {
namespace {

constexpr double kReferenceTolerance = 2e-6;    // against the float64 composition
constexpr double kConsistencyTolerance = 1e-5;  // one way of cutting a sequence against another

class LayerTest : public testing::Test {
 protected:
  static std::unique_ptr<Backend> MakeBackend(int threads) { return *MakeCpuBackend({.threads = threads}); }

  std::unique_ptr<Backend> backend_ = MakeBackend(2);
  GdnLayerRunner runner_{*backend_};
};

// Outputs of tokens 0 .. total - 1 of `x`: prefills that end at each of `cuts`, then single decodes.
std::vector<float> RunCut(LayerProblem& problem, GdnLayerRunner& runner, int32_t slot, const std::vector<float>& x,
                          const std::vector<int64_t>& cuts) {
  const int64_t width = problem.hidden_size();
  std::vector<float> y;
  int64_t done = 0;
  for (int64_t cut : cuts) {
    Append(problem.Prefill(runner, {{.slot = slot, .token_count = done, .x = SliceRows(x, width, done, cut)}}), y);
    done = cut;
  }
  std::vector<Rows> next = {{.slot = slot, .token_count = done}};
  for (; done * width < static_cast<int64_t>(x.size()); ++done) {
    next[0].x = SliceRows(x, width, done, done + 1);
    Append(problem.Decode(runner, next), y);
  }
  return y;
}

TEST_F(LayerTest, PrefillThenDecodeEqualsOnePrefillForEveryLength) {
  const LayerProblemOptions options{
      .dims = {.key_heads = 1, .value_heads = 2, .key_dim = 16, .value_dim = 16, .conv_width = 4, .hidden_size = 24}};
  std::vector<int64_t> lengths(130);
  for (int64_t i = 0; i < 130; ++i) lengths[i] = i + 1;
  lengths.insert(lengths.end(), {250, 256, 500, 511, 512, 1000});
  constexpr int64_t kDecoded = 4;
  for (int64_t length : lengths) {
    LayerProblem problem(options, /*slots=*/2);
    const std::vector<float> x = problem.Inputs(length + kDecoded);
    const std::vector<float> whole = RunCut(problem, runner_, /*slot=*/0, x, {length + kDecoded});
    const std::vector<float> cut = RunCut(problem, runner_, /*slot=*/1, x, {length});
    ASSERT_LE(RelativeNormError(cut, whole), kConsistencyTolerance) << length;
  }
}

TEST_F(LayerTest, AnySplitOfAPromptEqualsTheWhole) {
  constexpr int64_t kTokens = 700;
  const std::vector<std::vector<int64_t>> splits = {
      {1, 700},   {2, 3, 4, 700}, {31, 700},       {32, 64, 700},   {63, 700},      {64, 700},
      {65, 700},  {127, 700},     {128, 129, 700}, {511, 700},      {512, 700},     {513, 700},
      {699, 700}, {0, 700},       {350, 351},      {100, 200, 300}, {64, 128, 192}, {5, 69, 133, 640, 700},
      {700, 700}};
  const std::vector<int64_t> whole_cut = {kTokens};
  for (const LayerProblemOptions& options : {LayerProblemOptions(), ChannelLayerOptions()}) {
    LayerProblem whole_problem(options, /*slots=*/1);
    const std::vector<float> x = whole_problem.Inputs(kTokens);
    const std::vector<float> whole = RunCut(whole_problem, runner_, 0, x, whole_cut);
    for (const std::vector<int64_t>& split : splits) {
      LayerProblem problem(options, /*slots=*/1);
      EXPECT_LE(RelativeNormError(RunCut(problem, runner_, 0, x, split), whole), kConsistencyTolerance)
          << LayerDimsToString(options.dims) << testing::PrintToString(split);
    }
  }
}

TEST_F(LayerTest, DecodeOfManyTokensHasTheBitsOfAsManyDecodesOfOne) {
  for (const LayerProblemOptions& options : {LayerProblemOptions(), ChannelLayerOptions()}) {
    constexpr int64_t kTokens = 8;
    LayerProblem problem(options, /*slots=*/2);
    const int64_t width = problem.hidden_size();
    const std::vector<float> prompt = problem.Inputs(50);
    std::vector<Rows> together = {{.slot = 0, .x = prompt}};
    std::vector<Rows> single = {{.slot = 1, .x = prompt}};
    problem.Prefill(runner_, together);
    problem.Prefill(runner_, single);
    together[0].token_count = single[0].token_count = 50;
    // Nine rounds of 8 pass the fold at 16 entries at every phase of a call; shorter calls in between shift it.
    for (int64_t tokens : {kTokens, kTokens, int64_t{3}, kTokens, int64_t{5}, kTokens, kTokens, int64_t{1}, kTokens}) {
      const std::vector<float> x = problem.Inputs(tokens);
      together[0].x = x;
      const std::vector<float> y = problem.Decode(runner_, together);
      for (int64_t t = 0; t < tokens; ++t) {
        single[0].x = SliceRows(x, width, t, t + 1);
        ASSERT_TRUE(BitEqual(problem.Decode(runner_, single), SliceRows(y, width, t, t + 1))) << t << " of " << tokens;
      }
      ASSERT_EQ(together[0].log_length, single[0].log_length);
      const int32_t log_length = together[0].log_length;
      const int64_t token_count = together[0].token_count;
      ASSERT_TRUE(BitEqual(*ReadHostSlot(problem.pool().view(), 0, log_length, token_count),
                           *ReadHostSlot(problem.pool().view(), 1, log_length, token_count)));
    }
  }
}

// Decodes `sessions` with ragged T in one batch with padding, and each alone, on backends of other thread counts.
TEST_F(LayerTest, ASessionsBitsAreTheSameAloneAndInAnyBatch) {
  constexpr int32_t kSessions = 9;
  const LayerProblemOptions all_options[] = {
      {.layout = ProjectionLayout::kInterleaved},
      {.layout = ProjectionLayout::kFlat, .beta_scale = 2.0f, .output_gate = GateActivation::kSigmoid},
      ChannelLayerOptions()};
  for (const LayerProblemOptions& options : all_options) {
    SCOPED_TRACE(LayerDimsToString(options.dims));
    LayerProblem together(options, kSessions);
    LayerProblem alone(options, kSessions);
    const std::unique_ptr<Backend> other_backend = MakeBackend(1);
    GdnLayerRunner other_runner(*other_backend);
    const int64_t width = together.hidden_size();

    std::vector<Rows> sessions(kSessions);
    for (int32_t i = 0; i < kSessions; ++i) sessions[i] = {.slot = i, .x = together.Inputs(1 + 17 * i)};
    const std::vector<float> prefilled = together.Prefill(runner_, sessions);
    std::vector<Rows> lone = sessions;
    int64_t row = 0;
    for (int32_t i = 0; i < kSessions; ++i) {
      const int64_t tokens = 1 + 17 * i;
      ASSERT_TRUE(BitEqual(alone.Prefill(other_runner, {lone[i]}), SliceRows(prefilled, width, row, row + tokens)));
      sessions[i].token_count = lone[i].token_count = tokens;
      row += tokens;
    }

    for (int step = 0; step < 12; ++step) {
      std::vector<Rows> batch;
      for (int32_t i = 0; i < kSessions; ++i) {
        sessions[i].x = together.Inputs((i + step) % 4);
        batch.push_back(sessions[i]);
        if (i == 4) batch.push_back({.slot = -1, .x = std::vector<float>(2 * width, NAN)});
      }
      const std::vector<float> y = together.Decode(runner_, batch);
      row = 0;
      for (int32_t b = 0, i = 0; b < static_cast<int32_t>(batch.size()); ++b) {
        const int64_t tokens = static_cast<int64_t>(batch[b].x.size()) / width;
        const std::vector<float> own = SliceRows(y, width, row, row + tokens);
        row += tokens;
        if (batch[b].slot < 0) {
          EXPECT_THAT(own, testing::Each(0.0f));
          continue;
        }
        std::vector<Rows> one = {lone[i]};
        one[0].x = batch[b].x;
        ASSERT_TRUE(BitEqual(alone.Decode(other_runner, one), own)) << "session " << i << " step " << step;
        lone[i] = one[0];
        sessions[i] = batch[b];
        ++i;
      }
    }
    for (int32_t i = 0; i < kSessions; ++i) EXPECT_TRUE(BitEqual(together.pool().slot(i), alone.pool().slot(i)));
  }
}

TEST_F(LayerTest, BitsDoNotDependOnTheThreadCount) {
  std::vector<std::vector<float>> outputs;
  for (int threads : {1, 3}) {
    // Large enough that every operator splits its work.
    LayerProblem problem(
        {.dims =
             {.key_heads = 4, .value_heads = 8, .key_dim = 64, .value_dim = 64, .conv_width = 4, .hidden_size = 320}},
        /*slots=*/1);
    const std::unique_ptr<Backend> backend = MakeBackend(threads);
    GdnLayerRunner runner(*backend);
    outputs.push_back(RunCut(problem, runner, 0, problem.Inputs(170), {20, 165}));
  }
  EXPECT_TRUE(BitEqual(outputs[0], outputs[1]));
}

TEST_F(LayerTest, ChangingATokenLeavesAllEarlierOutputsAsTheyWere) {
  constexpr int64_t kTokens = 140;
  LayerProblem problem({}, /*slots=*/kTokens + 1);
  const int64_t width = problem.hidden_size();
  const std::vector<float> x = problem.Inputs(kTokens);
  const std::vector<float> y = problem.Prefill(runner_, {{.slot = 0, .x = x}});
  for (int64_t changed : {1, 30, 63, 64, 65, 127, 128, 139}) {
    std::vector<float> other = x;
    other[changed * width] += 1.0f;
    const std::vector<float> z = problem.Prefill(runner_, {{.slot = static_cast<int32_t>(changed), .x = other}});
    EXPECT_TRUE(BitEqual(SliceRows(y, width, 0, changed), SliceRows(z, width, 0, changed))) << changed;
    EXPECT_FALSE(BitEqual(SliceRows(y, width, changed, changed + 1), SliceRows(z, width, changed, changed + 1)));
  }
}

TEST_F(LayerTest, OneSessionsNaNStaysItsOwn) {
  LayerProblem problem({}, /*slots=*/2);
  LayerProblem healthy({}, /*slots=*/2);
  const int64_t width = problem.hidden_size();
  const std::vector<float> bad(3 * width, NAN);
  const std::vector<float> good = problem.Inputs(3);
  std::vector<Rows> mixed = {{.slot = 0, .x = bad}, {.slot = 1, .x = good}};
  std::vector<Rows> lone = {{.slot = 1, .x = good}};
  EXPECT_TRUE(BitEqual(SliceRows(problem.Prefill(runner_, mixed), width, 3, 6), healthy.Prefill(runner_, lone)));
  mixed[0].token_count = mixed[1].token_count = lone[0].token_count = 3;
  const std::vector<float> y = problem.Decode(runner_, mixed);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_TRUE(BitEqual(SliceRows(y, width, 3, 6), healthy.Decode(runner_, lone)));
}

TEST_F(LayerTest, PrefillOfAPaddingSequenceGivesZeros) {
  LayerProblem problem({}, /*slots=*/1);
  const int64_t width = problem.hidden_size();
  const std::vector<float> y = problem.Prefill(
      runner_, {{.slot = -1, .x = std::vector<float>(40 * width, NAN)}, {.slot = 0, .x = problem.Inputs(2)}});
  EXPECT_THAT(SliceRows(y, width, 0, 40), testing::Each(0.0f));
  EXPECT_TRUE(AllFinite(y));
}

TEST_F(LayerTest, StepsWithoutTokensChangeNothing) {
  LayerProblem problem({}, /*slots=*/1);
  std::vector<Rows> none = {{.slot = 0, .token_count = 5, .log_length = 3}};
  EXPECT_TRUE(problem.Prefill(runner_, none).empty());
  EXPECT_TRUE(problem.Decode(runner_, none).empty());
  EXPECT_EQ(none[0].log_length, 3);
  EXPECT_THAT(problem.pool().slot(0), testing::Each(0.0f));
}

// Each bad step is refused with a message that names the field.
TEST_F(LayerTest, BadStepsAreRefusedBeforeAnythingIsTouched) {
  LayerProblem problem({}, /*slots=*/2);
  const LayerWeights good_weights = problem.weights();
  LayerWeights bad_weights = good_weights;
  const std::vector<Rows> rows = {{.slot = 0, .x = problem.Inputs(2)}, {.slot = 1, .x = problem.Inputs(1)}};
  using Break = void (*)(PackedRows&, LayerWeights&);
  const std::pair<const char*, Break> cases[] = {
      {"weights is null", [](PackedRows& p, LayerWeights&) { p.step.weights = nullptr; }},
      {"hidden_states is null", [](PackedRows& p, LayerWeights&) { p.step.hidden_states = nullptr; }},
      {"output is null", [](PackedRows& p, LayerWeights&) { p.step.output = nullptr; }},
      {"token_counts is null", [](PackedRows& p, LayerWeights&) { p.step.token_counts = nullptr; }},
      {"token_counts[1] is -1", [](PackedRows& p, LayerWeights&) { p.token_counts[1] = -1; }},
      {"pool.data is null", [](PackedRows& p, LayerWeights&) { p.step.pool.data = nullptr; }},
      {"kind is none", [](PackedRows& p, LayerWeights&) { p.step.kind = InputKind::kNone; }},
      {"mixed_qkv is null", [](PackedRows& p, LayerWeights&) { p.step.kind = InputKind::kProjected; }},
      {"q is null", [](PackedRows& p, LayerWeights&) { p.step.kind = InputKind::kDeltaRule; }},
      {"slots[1]", [](PackedRows& p, LayerWeights&) { p.slots[1] = 2; }},
      {"more than once", [](PackedRows& p, LayerWeights&) { p.slots[1] = 0; }},
      {"in_qkv is [1, 48]", [](PackedRows&, LayerWeights& w) { w.in_qkv.rows = 1; }},
      {"in_a is [4, 48]", [](PackedRows&, LayerWeights& w) { w.in_a = PlainMatrix(DType::kF32, w.in_b.data, 4, 48); }},
      {"out is [48, 95]", [](PackedRows&, LayerWeights& w) { w.out.cols = 95; }},
      {"expected its ServedForm",
       [](PackedRows&, LayerWeights& w) { w.spec.projections = ProjectionLayout::kSeparate; }},
      {"expected its ServedForm", [](PackedRows&, LayerWeights& w) { w.spec.convolutions = ConvLayout::kSeparate; }},
      {"expected its ServedForm", [](PackedRows&, LayerWeights& w) { w.spec.norm_weight = NormWeight::kOnePlus; }},
      {"expected its ServedForm", [](PackedRows&, LayerWeights& w) { w.spec.output_gate_scale = 2.0f; }},
      {"value_heads is tiled", [](PackedRows&, LayerWeights& w) { w.spec.value_heads = ValueHeadOrder::kTiled; }},
      {"beta_scale is 3", [](PackedRows&, LayerWeights& w) { w.spec.beta_scale = 3.0f; }},
      {"a_log is null", [](PackedRows&, LayerWeights& w) { w.a_log = nullptr; }},
      {"the state pool", [](PackedRows&, LayerWeights& w) { w.spec.dims.conv_width = 5; }},
      {"log_lengths[0] is 16", [](PackedRows& p, LayerWeights&) { p.log_lengths[0] = kLogCapacity; }},
      {"log_lengths[1] is -1", [](PackedRows& p, LayerWeights&) { p.log_lengths[1] = -1; }},
  };
  for (const auto& [message, break_it] : cases) {
    bad_weights = good_weights;
    PackedRows packed(rows, bad_weights, problem.pool().view());
    break_it(packed, bad_weights);
    EXPECT_THAT(runner_.Decode(packed.step, packed.log_lengths.data()), IsInvalid(message));
    if (!absl::StartsWith(message, "log_lengths")) {
      EXPECT_THAT(runner_.Prefill(packed.step), IsInvalid("")) << message;
    }
    EXPECT_THAT(packed.y, testing::Each(-7.0f));
  }
  EXPECT_THAT(problem.pool().slot(0), testing::Each(0.0f));
  EXPECT_THAT(problem.pool().slot(1), testing::Each(0.0f));
}

// The layer has decays by channel, and its a and z are products of two matrices each.
TEST_F(LayerTest, BadChannelWeightsAreRefusedByName) {
  LayerProblem problem(ChannelLayerOptions(), /*slots=*/1);
  using Break = void (*)(LayerWeights&);
  const std::pair<const char*, Break> cases[] = {
      {"in_a is [64, 48]; dims and projections make it [16, 48]", [](LayerWeights& w) { w.in_a.rows = 64; }},
      {"a_up is [4, 16]; dims and projections make it [64, 16]", [](LayerWeights& w) { w.a_up.rows = 4; }},
      {"a_up is [0, 0]", [](LayerWeights& w) { w.a_up = {}; }},
      {"a_up is null", [](LayerWeights& w) { w.a_up.data = nullptr; }},
      {"in_z is [96, 48]", [](LayerWeights& w) { w.in_z.rows = 96; }},
      {"z_up is [96, 16]", [](LayerWeights& w) { w.z_up.cols = 16; }},
      {"in_a is [16, 48]; dims and projections make it [64, 48]", [](LayerWeights& w) { w.spec.decay_rank = 0; }},
      {"z_up is [96, 12]; dims and projections make it [0, 0]",
       [](LayerWeights& w) {
         w.spec.output_gate_rank = 0;
         w.in_z.rows = 96;
       }},
      {"decay_lower_bound", [](LayerWeights& w) { w.spec.decay_lower_bound = 0.0f; }},
      {"decay_lower_bound", [](LayerWeights& w) { w.spec.decay_gate = DecayGate::kSoftplus; }},
      {"decay_rank", [](LayerWeights& w) { w.spec.dims.decay = DecayKind::kPerHead; }},
      {"projections", [](LayerWeights& w) { w.spec.projections = ProjectionLayout::kInterleaved; }},
  };
  EXPECT_EQ(ValidateLayerWeights(problem.weights()), absl::OkStatus());
  for (const auto& [message, break_it] : cases) {
    LayerWeights weights = problem.weights();
    break_it(weights);
    EXPECT_THAT(ValidateLayerWeights(weights), IsInvalid(message));
  }
}

TEST_F(LayerTest, ADecodeLongerThanTheDraftLimitIsRefused) {
  LayerProblem problem({.max_draft = 4}, /*slots=*/1);
  PackedRows packed({{.slot = 0, .x = problem.Inputs(5)}}, problem.weights(), problem.pool().view());
  const absl::Status status = runner_.Decode(packed.step, packed.log_lengths.data());
  EXPECT_EQ(ErrorReason(status), reason::kTooManyTokens);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("up to 4"));
}

// The bare operator: scale and normalisation are the caller's.
TEST_F(LayerTest, DeltaRuleInputAppliesScaleAndNormalisationOnRequest) {
  const LayerDims dims = OperatorDims(2, 4, 16, 8);
  Random random(3);
  for (bool normalize : {false, true}) {
    for (float scale : {1.0f, 0.25f}) {
      DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, /*tokens=*/70, random);
      // The truth has q scaled and q, k normalised by hand, from longer vectors where the layer is to normalise them.
      DeltaRuleInputs truth = inputs;
      const float stretch = normalize ? 3.0f : 1.0f;
      for (float& value : inputs.k) value *= stretch;
      for (float& value : inputs.q) value *= normalize ? stretch * 4.0f : 1.0f;  // unit q times K^-0.5 = 1/4
      for (float& value : truth.q) value *= normalize ? 4.0f * scale : scale;
      std::vector<double> state(dims.state_elements());
      const std::vector<double> expected = DeltaRuleInDouble(truth, state);

      HostStatePool pool(dims, 1);
      std::vector<float> y(expected.size());
      const int32_t cu_seqlens[] = {0, 70};
      const int32_t slot = 0;
      LayerStep step{.pool = pool.view(),
                     .batch = {.sequences = 1, .cu_seqlens = cu_seqlens, .slots = &slot},
                     .kind = InputKind::kDeltaRule,
                     .q = inputs.q.data(),
                     .k = inputs.k.data(),
                     .v = inputs.v.data(),
                     .g = inputs.g.data(),
                     .beta = inputs.beta.data(),
                     .delta_rule = {.scale = scale, .use_qk_l2norm = normalize, .max_beta = 1.0f},
                     .output = y.data()};
      ASSERT_TRUE(runner_.Prefill(step).ok());
      EXPECT_LE(RelativeNormError(y, expected), kReferenceTolerance) << normalize << " " << scale;
    }
  }
}

}  // namespace
}  // namespace gdn::layer_test
