// Bits of a layer's steps: whatever dtype its tensors come in, whatever is prefilled beside them, however a call is cut
// into segments.

#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/layer/gdn_layer.h"
#include "tests/kernels/layer_problem.h"
#include "tests/support/compare.h"
#include "tests/support/test_backend.h"

namespace gdn::layer_bits_test {
namespace {

constexpr LayerDims kDims = {
    .key_heads = 1, .value_heads = 2, .key_dim = 8, .value_dim = 8, .conv_width = 4, .hidden_size = 16};

class LayerBits : public BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    if (!IsSkipped()) runner_.emplace(backend());
  }
  GdnLayerRunner& runner() { return *runner_; }
  std::vector<float> SlotOf(HostStatePool& pool, int32_t slot) {
    const float* data = pool.view().slot(slot);
    return {data, data + pool.view().layout.slot_floats()};
  }

 private:
  std::optional<GdnLayerRunner> runner_;
};
GDN_ON_EVERY_BACKEND(LayerBits);

// Random tensors of a kind, of `tokens` tokens, stored as `dtype`; and the same numbers as float32.
struct StoredInputs {
  StoredInputs(InputKind kind, int64_t tokens, DType dtype) {
    Random random(11);
    std::array<LayerField, kMaxStepFields> storage;
    for (const LayerField& field : LayerFields(kind, kDims, storage)) {
      std::vector<float> values = random.Normal(tokens * field.features);
      // g of the bare rule is a log decay, beta a strength.
      if (field.tensor == &LayerStep::g || field.tensor == &LayerStep::beta) {
        for (float& value : values) value = field.tensor == &LayerStep::g ? -std::abs(value) : 1 / (1 + value * value);
      }
      std::vector<char>& bytes = stored.emplace_back(values.size() * DTypeSize(dtype));
      ConvertFromFloat(values.data(), values.size(), dtype, bytes.data());
      ConvertToFloat(dtype, bytes.data(), values.size(), values.data());
      wide.push_back(std::move(values));
      fields.push_back(field);
    }
  }

  std::vector<LayerField> fields;
  std::vector<std::vector<char>> stored;
  std::vector<std::vector<float>> wide;
};

TEST_P(LayerBits, TensorsOfAnyDtypeGiveTheBitsOfTheirFloats) {
  for (const InputKind kind : {InputKind::kHiddenStates, InputKind::kProjected, InputKind::kDeltaRule}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int32_t tokens : {3, 40, 257}) {
        const StoredInputs inputs(kind, tokens, dtype);
        const auto features = LayerOutputFeatures(kind, kDims);
        const size_t count = static_cast<size_t>(tokens * features);
        LayerProblem problem({.dims = kDims}, /*slots=*/2);
        const std::vector<int32_t> cu_seqlens = {0, tokens}, slots = {0, 1};
        const int64_t token_count = 0;
        std::vector<float> y(count);
        std::vector<char> narrow(count * DTypeSize(dtype)), expected(narrow.size());
        for (const bool typed : {false, true}) {
          LayerStep step{.weights = &problem.weights(), .pool = problem.pool().view(), .kind = kind};
          step.batch = {.sequences = 1, .cu_seqlens = cu_seqlens.data(), .slots = &slots[typed ? 1 : 0]};
          step.token_counts = &token_count;
          step.delta_rule.scale = 0.25f;
          step.delta_rule.use_qk_l2norm = true;
          step.delta_rule.max_beta = 1.0f;
          for (size_t f = 0; f < inputs.fields.size(); ++f) {
            step.*inputs.fields[f].tensor =
                typed ? InputTensor(inputs.stored[f].data(), dtype) : InputTensor(inputs.wide[f].data());
          }
          if (typed) {
            step.output = {narrow.data(), dtype};
          } else {
            step.output = y.data();
          }
          ASSERT_EQ(runner().Prefill(step), absl::OkStatus());
        }
        ASSERT_EQ(backend().Synchronize(), absl::OkStatus());
        ConvertFromFloat(y.data(), y.size(), dtype, expected.data());
        EXPECT_EQ(narrow, expected) << InputKindName(kind) << " " << DTypeName(dtype) << ", " << tokens << " tokens";
        EXPECT_TRUE(BitEqual(SlotOf(problem.pool(), 0), SlotOf(problem.pool(), 1)));
      }
    }
  }
}

TEST_P(LayerBits, PrefillsHaveTheSameBitsAloneMergedAndInAnySegments) {
  for (const LayerDims& dims : WithChannelDecays({kDims})) {
    SCOPED_TRACE(LayerDimsToString(dims));
    LayerProblemOptions options = dims.decays_by_channel() ? ChannelLayerOptions() : LayerProblemOptions();
    options.dims = dims;
    const std::vector<int32_t> lengths = {1, 31, 32, 255, 256, 600};
    constexpr int32_t kBefore = 5;  // tokens that each session has seen
    const auto sessions = static_cast<int32_t>(lengths.size());
    LayerProblem alone(options, sessions), merged(options, sessions), cut(options, sessions);
    std::vector<Rows> before, calls;
    for (int32_t i = 0; i < sessions; ++i) {
      before.push_back({.slot = i, .token_count = 0, .x = alone.Inputs(kBefore)});
      calls.push_back({.slot = i, .token_count = kBefore, .x = alone.Inputs(lengths[static_cast<size_t>(i)])});
    }
    for (LayerProblem* problem : {&alone, &merged, &cut}) problem->Prefill(runner(), before);

    std::vector<float> expected;
    for (const Rows& call : calls) Append(alone.Prefill(runner(), {call}), expected);
    const std::vector<float> together = merged.Prefill(runner(), calls);
    // Segments of the calls, beside one another as far as they go.
    const int32_t multiple = PrefillMultiple(backend().info(), InputKind::kHiddenStates);
    const int64_t width = cut.hidden_size();
    std::vector<std::vector<float>> of_call(calls.size());
    for (int32_t begin = 0, round = 0; begin < 600; ++round) {
      const int32_t tokens = round % 2 == 0 ? multiple : 3 * multiple;
      std::vector<Rows> segments;
      std::vector<int32_t> call_tokens;
      for (size_t i = 0; i < calls.size(); ++i) {
        const int32_t end = std::min(begin + tokens, lengths[i]);
        if (begin >= end) continue;
        segments.push_back(
            {.slot = calls[i].slot, .token_count = kBefore + begin, .x = SliceRows(calls[i].x, width, begin, end)});
        call_tokens.push_back(lengths[i]);
      }
      PackedRows packed(segments, cut.weights(), cut.pool().view());
      packed.step.call_tokens = call_tokens.data();
      ASSERT_EQ(runner().Prefill(packed.step), absl::OkStatus());
      ASSERT_EQ(backend().Synchronize(), absl::OkStatus());
      for (size_t s = 0; s < segments.size(); ++s) {
        Append(SliceRows(packed.y, width, packed.cu_seqlens[s], packed.cu_seqlens[s + 1]),
               of_call[static_cast<size_t>(segments[s].slot)]);
      }
      begin += tokens;
    }
    std::vector<float> in_segments;
    for (const std::vector<float>& y : of_call) Append(y, in_segments);

    EXPECT_TRUE(BitEqual(together, expected));
    EXPECT_TRUE(BitEqual(in_segments, expected));
    for (int32_t i = 0; i < sessions; ++i) {
      EXPECT_TRUE(BitEqual(SlotOf(merged.pool(), i), SlotOf(alone.pool(), i))) << lengths[static_cast<size_t>(i)];
      EXPECT_TRUE(BitEqual(SlotOf(cut.pool(), i), SlotOf(alone.pool(), i))) << lengths[static_cast<size_t>(i)];
    }
  }
}

// The norm's output takes the order of the columns. Sums are in another order, so the bits are others.
TEST_P(LayerBits, AnOutProjectionMayHaveItsHeadsInTiledOrder) {
  constexpr double kTolerance = 1e-6;
  for (const ProjectionLayout layout : {ProjectionLayout::kFlat, ProjectionLayout::kInterleaved}) {
    LayerProblemOptions options{
        .dims = {.key_heads = 2, .value_heads = 6, .key_dim = 8, .value_dim = 12, .conv_width = 4, .hidden_size = 16},
        .layout = layout};
    LayerProblem grouped(options, /*slots=*/2);
    options.tiled_out = true;
    LayerProblem tiled(options, /*slots=*/2);
    std::vector<Rows> rows = {{.slot = 0, .x = grouped.Inputs(5)}, {.slot = 1, .x = grouped.Inputs(40)}};
    EXPECT_LE(RelativeNormError(tiled.Prefill(runner(), rows), grouped.Prefill(runner(), rows)), kTolerance);
    for (int step = 0; step < 3; ++step) {
      rows = {{.slot = 0, .token_count = 5 + step, .log_length = step, .x = grouped.Inputs(1)},
              {.slot = 1, .token_count = 40 + step, .log_length = step, .x = grouped.Inputs(1)}};
      std::vector<Rows> same = rows;
      EXPECT_LE(RelativeNormError(tiled.Decode(runner(), same), grouped.Decode(runner(), rows)), kTolerance);
    }
    for (const int32_t slot : {0, 1}) {
      EXPECT_TRUE(BitEqual(SlotOf(tiled.pool(), slot), SlotOf(grouped.pool(), slot))) << slot;
    }
  }
}

}  // namespace
}  // namespace gdn::layer_bits_test
