// The GPU kernels where each key channel has a decay, in what is theirs alone: a batch that takes another kernel than
// each of its sequences alone, spans of chunks, decays that a product of two exponentials would lose.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/test_backend.h"

namespace gdn::channel_decay_gpu_test {
namespace {

constexpr double kPromise = 1e-5;  // the service's: float32 against float64

LayerDims ChannelDims(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim) {
  LayerDims dims = OperatorDims(key_heads, value_heads, key_dim, value_dim);
  dims.decay = DecayKind::kPerChannel;
  return dims;
}

DeltaRuleInputs ChannelInputs(const LayerDims& dims, int64_t tokens, Random& random, float g_low = -1.0f) {
  DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, tokens, random);
  inputs.g = random.Uniform(tokens * dims.decay_features(), g_low, 0.0f);
  return inputs;
}

DeltaRuleInputs Row(const DeltaRuleInputs& inputs, int64_t row) {
  const LayerDims& dims = inputs.dims;
  return {.dims = dims,
          .tokens = 1,
          .q = SliceRows(inputs.q, dims.key_features(), row, row + 1),
          .k = SliceRows(inputs.k, dims.key_features(), row, row + 1),
          .v = SliceRows(inputs.v, dims.value_features(), row, row + 1),
          .g = SliceRows(inputs.g, dims.decay_features(), row, row + 1),
          .beta = SliceRows(inputs.beta, dims.value_heads, row, row + 1)};
}

SlotImage ChannelImage(const LayerDims& dims, Random& random) {
  SlotImage image = RandomSlotImage(dims, kLogCapacity, random);
  image.log_g = random.Uniform(kLogCapacity * dims.decay_features(), -1.0f, 0.0f);
  return image;
}

class ChannelDecayGpu : public BackendTest {};
GDN_ON_BACKENDS(ChannelDecayGpu, WithGpus({}));

TEST_P(ChannelDecayGpu, ADecodeOfManySequencesHasTheBitsOfEachAloneAcrossFolds) {
  const std::vector<int32_t> lengths = {0, 3, 7, 11, 13, 14, 15, 15};
  const int32_t sequences = static_cast<int32_t>(lengths.size());
  for (const LayerDims& dims : {ChannelDims(1, 2, 128, 64), ChannelDims(2, 2, 64, 32), ChannelDims(1, 1, 96, 32)}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(LayerDimsToString(dims) + (dtype == DType::kF32 ? " F32" : " BF16"));
      Random random(7);
      DecodeSlots many(backend(), dims, sequences + 1, 8, dtype);
      DecodeSlots alone(backend(), dims, sequences + 1, 8, dtype);
      std::vector<Log> logs;
      for (int32_t i = 0; i <= sequences; ++i) {
        const SlotImage image = ChannelImage(dims, random);
        many.Write(i, image);
        alone.Write(i, image);
        if (i < sequences) logs.push_back({.slot = i, .base_slot = i, .length = lengths[i]});
      }
      logs.back().base_slot = sequences;  // a fork's: its fold writes its own slot
      std::vector<Log> alone_logs = logs;
      for (int step = 0; step < 4; ++step) {
        const DeltaRuleInputs inputs = ChannelInputs(dims, sequences, random);
        const std::vector<float> output = many.Decode(inputs, std::vector<int32_t>(sequences, 1), logs);
        for (int32_t i = 0; i < sequences; ++i) {
          const std::vector<float> expected = alone.Decode(Row(inputs, i), alone_logs[i]);
          EXPECT_TRUE(BitEqual(SliceRows(output, dims.value_features(), i, i + 1), expected))
              << "step " << step << " sequence " << i;
        }
        for (std::vector<Log>* each : {&logs, &alone_logs}) each->back().base_slot = sequences - 1;
      }
      for (int32_t i = 0; i < sequences; ++i) {
        EXPECT_TRUE(BitEqual(many.Read(i, logs[i].length), alone.Read(i, alone_logs[i].length))) << "slot " << i;
      }
    }
  }
}

TEST_P(ChannelDecayGpu, AChunkTakesDecaysWhoseInverseWouldOverflow) {
  const std::unique_ptr<Backend> reference = *MakeBackend("reference");
  for (const LayerDims& dims : {ChannelDims(1, 2, 128, 32), ChannelDims(1, 1, 40, 20), ChannelDims(1, 1, 256, 16)}) {
    SCOPED_TRACE(LayerDimsToString(dims));
    Random random(8);
    constexpr int64_t kTokens = 75;
    DeltaRuleInputs inputs = ChannelInputs(dims, kTokens, random, -0.01f);
    for (size_t i = 0; i < inputs.g.size(); ++i) {
      if (i % 7 == 0) inputs.g[i] = -20.0f;
      if (i % 101 == 0) inputs.g[i] = -1e4f;
    }
    const std::vector<float> initial = random.Normal(dims.state_elements());
    DecodeSlots slots(backend(), dims, 1), expected(*reference, dims, 1);
    slots.SetBase(0, initial);
    expected.SetBase(0, initial);
    const std::vector<float> output = slots.Run(DeltaRulePath::kChunk, inputs);
    EXPECT_LE(RelativeNormError(output, expected.Run(DeltaRulePath::kScan, inputs)), kPromise);
    EXPECT_LE(RelativeNormError(slots.Base(0), expected.Base(0)), kPromise);
  }
}

TEST_P(ChannelDecayGpu, AChunkedCallHasTheBitsOfItsPartsCutAtChunks) {
  const LayerDims dims = ChannelDims(2, 2, 64, 32);
  Random random(9);
  constexpr int64_t kTokens = 144;
  const DeltaRuleInputs inputs = ChannelInputs(dims, kTokens, random);
  const auto rows = [&](int64_t first, int64_t last) {
    DeltaRuleInputs part = Row(inputs, first);
    for (int64_t row = first + 1; row < last; ++row) part = Concatenate({part, Row(inputs, row)});
    return part;
  };
  DecodeSlots whole(backend(), dims, 1), parts(backend(), dims, 1);
  const std::vector<float> initial = random.Normal(dims.state_elements());
  whole.SetBase(0, initial);
  parts.SetBase(0, initial);
  const std::vector<float> output = whole.Run(DeltaRulePath::kChunk, inputs);
  std::vector<float> joined = parts.Run(DeltaRulePath::kChunk, rows(0, 64));
  Append(parts.Run(DeltaRulePath::kChunk, rows(64, kTokens)), joined);
  EXPECT_TRUE(BitEqual(output, joined));
  EXPECT_TRUE(BitEqual(whole.Base(0), parts.Base(0)));
}

}  // namespace
}  // namespace gdn::channel_decay_gpu_test
