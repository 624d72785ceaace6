// The walk over a sequence's chunks in blocks of every shape. Devices of many sizes choose different ones.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/common/packed_batch.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"
#include "tests/kernels/decode_slots.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"

namespace gdn::walk_shapes_test {
namespace {

using WalkShapes = GpuTest;
GDN_ON_BACKENDS(WalkShapes, WithGpus({}));

struct Walked {
  std::vector<float> output;
  std::vector<std::vector<float>> slots;
};

TEST_P(WalkShapes, GiveTheSameBits) {
  const std::vector<int32_t> lengths = {70, 33, 0, 5, 40};
  const std::vector<int32_t> on = {2, 0, 3, 1, -1};
  const std::vector<int32_t> offsets = CumulativeLengths(lengths);
  for (const LayerDims& dims : WithChannelDecays({OperatorDims(1, 2, 128, 48), OperatorDims(2, 2, 100, 37),
                                                  OperatorDims(1, 2, 256, 32), OperatorDims(1, 1, 192, 40)})) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(LayerDimsToString(dims) + (dtype == DType::kF32 ? " F32" : " BF16"));
      Random random(3);
      const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, offsets.back(), random);
      const std::vector<float> base = random.Normal(dims.state_elements());
      // Of one processor the blocks are staged, of three wide, of a thousand narrow.
      const auto walk = [&](int32_t processors) {
        DecodeSlots slots(backend(), dims, 4, 8, dtype);
        for (int32_t slot = 0; slot < 4; ++slot) slots.SetBase(slot, base);
        float* const output = Poisoned(static_cast<int64_t>(inputs.v.size()));
        DeltaRuleParams params{.pool = slots.pool(),
                               .batch = {.sequences = static_cast<int32_t>(lengths.size()),
                                         .cu_seqlens = offsets.data(),
                                         .slots = on.data()},
                               .q = Upload(inputs.q),
                               .k = Upload(inputs.k),
                               .v = Upload(inputs.v),
                               .g = Upload(inputs.g),
                               .beta = Upload(inputs.beta),
                               .q_stride = dims.key_features(),
                               .k_stride = dims.key_features(),
                               .v_stride = dims.value_features(),
                               .output = output,
                               .max_beta = 1.0f};
        const gpu::DeviceBatch batch{.sequences = params.batch.sequences,
                                     .tokens = offsets.back(),
                                     .max_length = 70,
                                     .cu_seqlens = Upload(offsets),
                                     .slots = Upload(on)};
        gpu::Stream device = stream();
        device.processors = processors;
        EXPECT_EQ(DeltaRuleChunkGpu(params, batch, Poisoned(GpuWorkspaceFloats(params, device)), device),
                  absl::OkStatus());
        Walked walked{.output = Download(output, static_cast<int64_t>(inputs.v.size())), .slots = {}};
        for (int32_t slot = 0; slot < 4; ++slot) walked.slots.push_back(slots.ReadAll(slot));
        return walked;
      };
      const Walked expected = walk(1000);
      for (const int32_t processors : {1, 3}) {
        SCOPED_TRACE(std::to_string(processors) + " processors");
        const Walked walked = walk(processors);
        EXPECT_TRUE(BitEqual(walked.output, expected.output));
        for (size_t slot = 0; slot < 4; ++slot) EXPECT_TRUE(BitEqual(walked.slots[slot], expected.slots[slot])) << slot;
      }
    }
  }
}

}  // namespace
}  // namespace gdn::walk_shapes_test
