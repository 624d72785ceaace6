// Every form of the delta rule, on every backend, gives results over whole sequences that do not depend on the batch,
// the parallelism, later tokens or the split of a prompt. The rows of gdn_parity have the errors against double.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/test_backend.h"

namespace gdn::delta_rule_prefill_test {
namespace {

constexpr double kChunkTolerance = 5e-6;
constexpr double kReferenceTolerance = 1e-7;  // one rounding to float32

class DeltaRule : public BackendTest {
 protected:
  // test(path), named in failures.
  void OnEveryPath(const std::function<void(DeltaRulePath)>& test) {
    for (const DeltaRulePath path : kDeltaRulePaths) {
      SCOPED_TRACE(DeltaRulePathName(path));
      test(path);
    }
  }
  void OnEveryPathAndDecay(const LayerDims& dims, const std::function<void(DeltaRulePath, const LayerDims&)>& test) {
    for (const LayerDims& of_kind : WithChannelDecays({dims})) {
      SCOPED_TRACE(LayerDimsToString(of_kind));
      OnEveryPath([&](DeltaRulePath path) { test(path, of_kind); });
    }
  }
  // True if bits are the same for every wave width. The chunked form takes another path for waves of 32.
  static bool IsOfAnyWave(DeltaRulePath path) { return path != DeltaRulePath::kChunk; }
};
GDN_ON_EVERY_BACKEND(DeltaRule);

TEST_P(DeltaRule, LeavesTheStateAloneForNoTokens) {
  OnEveryPath([this](DeltaRulePath path) {
    Random random(4);
    const LayerDims dims = OperatorDims(1, 2, 8, 8);
    DecodeSlots slots(backend(), dims, 1);
    const std::vector<float> state = random.Normal(dims.state_elements());
    slots.SetBase(0, state);
    slots.Run(path, RandomDeltaRuleInputs(dims, 0, random));
    EXPECT_TRUE(BitEqual(slots.Base(0), state));
  });
}

TEST_P(DeltaRule, GivesTheSameBitsAloneAndInABatchWithPadding) {
  const std::vector<int32_t> lengths = {70, 0, 9, 1, 128, 65, 37, 5};
  const std::vector<int32_t> on = {4, 0, -1, 6, 1, 3, 8, 9};
  const std::vector<int32_t> offsets = CumulativeLengths(lengths);
  for (const LayerDims& dims : WithChannelDecays({OperatorDims(2, 4, 36, 40), OperatorDims(1, 4, 64, 64)})) {
    SCOPED_TRACE(LayerDimsToString(dims));
    OnEveryPath([&](DeltaRulePath path) {
      const std::vector<std::unique_ptr<Backend>> others = OthersOfTheSameBits(IsOfAnyWave(path));
      Random random(5);
      std::vector<DeltaRuleInputs> parts;
      for (const int32_t length : lengths) parts.push_back(RandomDeltaRuleInputs(dims, length, random));
      DecodeSlots slots(backend(), dims, 10), before(backend(), dims, 10);
      for (int32_t slot = 0; slot < 10; ++slot) {
        before.SetBase(slot, random.Normal(dims.state_elements()));
        slots.SetBase(slot, before.Base(slot));
      }
      const std::vector<float> packed = slots.Run(path, Concatenate(parts), lengths, on);
      for (size_t i = 0; i < lengths.size(); ++i) {
        SCOPED_TRACE("sequence " + std::to_string(i));
        const absl::Span<const float> rows =
            absl::MakeSpan(packed).subspan(offsets[i] * dims.value_features(), lengths[i] * dims.value_features());
        if (on[i] < 0) {
          EXPECT_TRUE(BitEqual(rows, std::vector<float>(rows.size(), 0.0f)));
          continue;
        }
        // Other batches and other parallelism lead to other grids and other columns a group.
        DecodeSlots alone(*others[i % others.size()], dims, 1);
        alone.SetBase(0, before.Base(on[i]));
        EXPECT_TRUE(BitEqual(rows, alone.Run(path, parts[i])));
        EXPECT_TRUE(BitEqual(slots.Base(on[i]), alone.Base(0)));
      }
      for (const int32_t bystander : {2, 5, 7}) {
        EXPECT_TRUE(BitEqual(slots.ReadAll(bystander), before.ReadAll(bystander))) << "slot " << bystander;
      }
    });
  }
}

TEST_P(DeltaRule, GivesTheSameBitsForAnyParallelism) {
  // Few heads and many columns, so that more threads mean other partitions.
  for (const LayerDims& dims : WithChannelDecays({OperatorDims(1, 4, 20, 150), OperatorDims(1, 1, 33, 100),
                                                  OperatorDims(2, 6, 16, 16), OperatorDims(1, 2, 64, 48)})) {
    SCOPED_TRACE(LayerDimsToString(dims));
    OnEveryPath([&](DeltaRulePath path) {
      Random random(6);
      const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, on_cpu() ? 100 : 40, random);
      const std::vector<float> base = random.Normal(dims.state_elements());
      DecodeSlots expected(backend(), dims, 1);
      expected.SetBase(0, base);
      const std::vector<float> output = expected.Run(path, inputs);
      for (const auto& other : OthersOfTheSameBits(IsOfAnyWave(path))) {
        DecodeSlots slots(*other, dims, 1);
        slots.SetBase(0, base);
        EXPECT_TRUE(BitEqual(slots.Run(path, inputs), output));
        EXPECT_TRUE(BitEqual(slots.Base(0), expected.Base(0)));
      }
    });
  }
}

TEST_P(DeltaRule, IsCausalToTheBitEvenBeforeNonFiniteTokens) {
  const int64_t tokens = 135;
  OnEveryPathAndDecay(OperatorDims(1, 2, 19, 37), [&](DeltaRulePath path, const LayerDims& dims) {
    Random random(7);
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, tokens, random);
    const std::vector<float> expected = DecodeSlots(backend(), dims, 1).Run(path, inputs);
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (int64_t changed = 0; changed < tokens; changed += !on_cpu() ? 31 : changed % 64 < 60 ? 3 : 1) {
      for (const float value : {0.125f, kNan, kInfinity}) {
        // The GPU's chunked form multiplies what a chunk's later tokens hold by zero: NaN reaches the chunk's first.
        if (!on_cpu() && path == DeltaRulePath::kChunk && value != 0.125f) continue;
        DeltaRuleInputs other = inputs;
        const auto poison = [&](std::vector<float>& tensor, int64_t row) {
          for (int64_t i = 0; i < row; ++i) tensor[changed * row + i] = value;
        };
        poison(other.q, dims.key_features());
        poison(other.k, dims.key_features());
        poison(other.v, dims.value_features());
        const std::vector<float> output = DecodeSlots(backend(), dims, 1).Run(path, other);
        const size_t earlier = changed * dims.value_features();
        ASSERT_TRUE(BitEqual(absl::MakeSpan(output).first(earlier), absl::MakeSpan(expected).first(earlier)))
            << "token " << changed << " changed to " << value;
        EXPECT_FALSE(BitEqual(output, expected)) << "token " << changed << " has no effect";
      }
    }
  });
}

TEST_P(DeltaRule, ANotANumberStaysInItsSequence) {
  OnEveryPathAndDecay(OperatorDims(1, 1, 32, 32), [this](DeltaRulePath path, const LayerDims& dims) {
    Random random(16);
    const DeltaRuleInputs good = RandomDeltaRuleInputs(dims, 20, random);
    DeltaRuleInputs bad = good;
    bad.v[5] = std::numeric_limits<float>::quiet_NaN();
    DecodeSlots slots(backend(), dims, 2);
    slots.Run(path, Concatenate({bad, good}), {20, 20}, {0, 1});
    EXPECT_FALSE(AllFinite(slots.Base(0)));
    EXPECT_TRUE(AllFinite(slots.Base(1)));
  });
}

TEST_P(DeltaRule, AnySplitOfAPromptMatchesTheWhole) {
  std::vector<int64_t> splits = {0, 1, 31, 63, 64, 65, 100, 127, 128, 129, 191, 192, 193, 199, 200};
  if (!on_cpu()) splits = {1, 64, 129};
  OnEveryPathAndDecay(OperatorDims(1, 2, 32, 40), [&](DeltaRulePath path, const LayerDims& dims) {
    Random random(13);
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 200, random, /*g_low=*/-0.05f);
    std::vector<double> state(dims.state_elements(), 0.0);
    const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
    for (const DeltaRulePath first : kDeltaRulePaths) {
      for (const int64_t split : splits) {
        DecodeSlots slots(backend(), dims, 1);
        std::vector<float> output = slots.Run(first, Slice(inputs, 0, split));
        Append(slots.Run(path, Slice(inputs, split, inputs.tokens)), output);
        EXPECT_LE(RelativeNormError(output, expected), kChunkTolerance) << DeltaRulePathName(first) << " to " << split;
        EXPECT_LE(RelativeNormError(slots.Base(0), state), kChunkTolerance)
            << DeltaRulePathName(first) << " to " << split;
      }
    }
  });
}

// Rows of q, k and v interleaved as a convolution leaves them.
TEST_P(DeltaRule, ReadsStridedRowsAndWritesOnlyItsOwn) {
  OnEveryPathAndDecay(OperatorDims(2, 4, 12, 20), [this](DeltaRulePath path, const LayerDims& dims) {
    const int64_t keys = dims.key_features(), values = dims.value_features();
    const int64_t stride = 2 * keys + values;
    Random random(14);
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 6, random);
    std::vector<float> mixed(6 * stride);
    for (int64_t t = 0; t < 6; ++t) {
      std::copy_n(inputs.q.begin() + t * keys, keys, mixed.begin() + t * stride);
      std::copy_n(inputs.k.begin() + t * keys, keys, mixed.begin() + t * stride + keys);
      std::copy_n(inputs.v.begin() + t * values, values, mixed.begin() + t * stride + 2 * keys);
    }
    const int32_t offsets[] = {0, 6};
    const int32_t slot = 1;
    const auto run = [&](bool strided, HostStatePool& pool) {
      std::vector<float> output(inputs.v.size());
      DeltaRuleParams params =
          MakeDeltaRuleParams(inputs, pool.view(), {.sequences = 1, .cu_seqlens = offsets, .slots = &slot}, output);
      if (strided) {
        params.q = mixed.data();
        params.k = mixed.data() + keys;
        params.v = mixed.data() + 2 * keys;
        params.q_stride = params.k_stride = params.v_stride = stride;
      }
      int32_t log_length = 0;
      EXPECT_EQ(path == DeltaRulePath::kScan    ? backend().DeltaRuleScan(params)
                : path == DeltaRulePath::kChunk ? backend().DeltaRuleChunk(params)
                                                : backend().DeltaRuleDecode({params, &log_length}),
                absl::OkStatus());
      return output;
    };
    HostStatePool dense_pool(dims, 3), pool(dims, 3);
    EXPECT_TRUE(BitEqual(run(/*strided=*/true, pool), run(/*strided=*/false, dense_pool)));
    for (int32_t i = 0; i < 3; ++i) EXPECT_TRUE(BitEqual(pool.slot(i), dense_pool.slot(i))) << "slot " << i;
  });
}

// The scan at any token, the chunked form at its chunks' edges.
TEST_P(DeltaRule, ASplitGivesTheSameBits) {
  const auto expect_same = [&](const LayerDims& dims, DeltaRulePath path, int64_t tokens, int64_t step) {
    SCOPED_TRACE(LayerDimsToString(dims) + " " + DeltaRulePathName(path) + " in steps of " + std::to_string(step));
    Random random(15);
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, tokens, random);
    DecodeSlots whole(backend(), dims, 1), parts(backend(), dims, 1);
    std::vector<float> output;
    for (int64_t t = 0; t < tokens; t += step) {
      Append(parts.Run(path, Slice(inputs, t, std::min(t + step, tokens))), output);
    }
    EXPECT_TRUE(BitEqual(output, whole.Run(path, inputs)));
    EXPECT_TRUE(BitEqual(parts.Base(0), whole.Base(0)));
  };
  for (const LayerDims& dims : WithChannelDecays({OperatorDims(1, 2, 21, 45)})) {
    for (const int64_t step : {1, 2, 3, 7, 16, 39}) expect_same(dims, DeltaRulePath::kScan, 40, step);
    for (const int64_t chunks : {1, 2}) expect_same(dims, DeltaRulePath::kChunk, 200, chunks * kChunkTokens);
  }
}

TEST(DeltaRuleScanReference, MatchesDoubleForPackedSequences) {
  Random random(17);
  const LayerDims dims = OperatorDims(2, 4, 10, 14);
  const std::vector<int32_t> lengths = {20, 3, 11};
  const std::vector<int32_t> on = {1, -1, 0};
  std::vector<DeltaRuleInputs> parts;
  for (const int32_t length : lengths) parts.push_back(RandomDeltaRuleInputs(dims, length, random));
  const std::vector<int32_t> offsets = CumulativeLengths(lengths);
  const std::unique_ptr<Backend> reference = *MakeBackend("reference");
  DecodeSlots slots(*reference, dims, 2);
  const std::vector<float> output = slots.Run(DeltaRulePath::kScan, Concatenate(parts), lengths, on);
  for (int i = 0; i < 3; ++i) {
    std::vector<double> state(dims.state_elements(), 0.0);
    std::vector<double> expected = DeltaRuleInDouble(parts[i], state);
    if (on[i] < 0) expected.assign(expected.size(), 0.0);
    EXPECT_LE(RelativeNormError(absl::MakeSpan(output).subspan(offsets[i] * dims.value_features(), expected.size()),
                                expected),
              kReferenceTolerance);
    if (on[i] < 0) continue;
    EXPECT_LE(RelativeNormError(slots.Base(on[i]), state), kReferenceTolerance);
  }
}

}  // namespace
}  // namespace gdn::delta_rule_prefill_test
