// A layer's decodes on the GPU backend, round and round a small ring and a small arena: the bits of large ones.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/gpu/on_host/host_streams.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/layer/gdn_layer.h"
#include "tests/kernels/layer_problem.h"
#include "tests/support/compare.h"

namespace gdn::layer_laps_test {
namespace {

using gpu::HostStreams;
using gpu::StreamPace;

// A layer's decodes, whose operators ask for the arrays themselves as libgdn's do, or bring them with the rows as the
// server's do.
class LayerLaps : public testing::TestWithParam<StreamPace> {
 protected:
  LayerLaps() {
    HostStreams::Configure({.asynchronous = true, .seed = 12, .paces = std::vector<StreamPace>(8, GetParam())});
  }
  ~LayerLaps() override { HostStreams::ConfigureFromEnvironment(); }

  static constexpr int32_t kSlots = 24;
  static LayerProblemOptions SmallLayer() {
    return {
        .dims = {.key_heads = 1, .value_heads = 2, .key_dim = 8, .value_dim = 8, .conv_width = 4, .hidden_size = 12}};
  }
  // Outputs of `steps` decodes of all slots, and of a prefill of some in between.
  static std::vector<float> Run(Backend& backend, int steps, bool staged) {
    GdnLayerRunner runner(backend);
    LayerProblem problem(SmallLayer(), kSlots);
    std::vector<Rows> rows;
    for (int32_t slot = 0; slot < kSlots; ++slot) rows.push_back({.slot = slot});
    std::vector<float> outputs;
    for (int step = 0; step < steps; ++step) {
      for (Rows& row : rows) row.x = problem.Inputs(1);
      PackedRows packed(rows, problem.weights(), problem.pool().view());
      Decode(backend, runner, packed, staged, outputs);
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i].log_length = packed.log_lengths[i];
        ++rows[i].token_count;
      }
    }
    return outputs;
  }

 private:
  static void Decode(Backend& backend, GdnLayerRunner& runner, PackedRows& packed, bool staged,
                     std::vector<float>& outputs) {
    const size_t bytes = packed.staged_bytes();
    const DeviceBuffer in = *DeviceBuffer::Make(backend, bytes + backend.BatchArrayBytes(kSlots));
    const DeviceBuffer out = *DeviceBuffer::Make(backend, packed.y.size() * sizeof(float));
    const HostBuffer host = *HostBuffer::Make(backend, bytes + backend.BatchArrayBytes(kSlots));
    ASSERT_EQ(backend.UseThread(), absl::OkStatus());
    if (staged) {
      ASSERT_EQ(backend.StageIn(packed.Staged(in.data(), host.data())), absl::OkStatus());
    } else {
      ASSERT_EQ(backend.CopyIn(in.data(), packed.x.data(), packed.x.size() * sizeof(float)), absl::OkStatus());
    }
    packed.step.hidden_states = in.floats();
    packed.step.output = out.floats();
    ASSERT_EQ(runner.Decode(packed.step, packed.log_lengths.data()), absl::OkStatus());
    ASSERT_EQ(backend.CopyOut(packed.y.data(), out.data(), packed.y.size() * sizeof(float)), absl::OkStatus());
    outputs.insert(outputs.end(), packed.y.begin(), packed.y.end());
  }
};
INSTANTIATE_TEST_SUITE_P(Paces, LayerLaps, testing::Values(StreamPace::kLazy, StreamPace::kShuffled),
                         [](const auto& tested) { return tested.param == StreamPace::kLazy ? "Lazy" : "Shuffled"; });

TEST_P(LayerLaps, DecodesHaveTheSameBitsRoundAndRoundSmallRings) {
  constexpr int kSteps = 18;  // of 320 bytes of arrays each: five laps
  const std::vector<float> expected = Run(**MakeGpuBackend({}), kSteps, /*staged=*/false);
  for (const bool staged : {false, true}) {
    const std::unique_ptr<Backend> backend = *MakeGpuBackend({.pinned_ring_bytes = 4096, .index_arena_bytes = 1024});
    EXPECT_TRUE(BitEqual(Run(*backend, kSteps, staged), expected)) << (staged ? "staged" : "sent by operators");
  }
}

}  // namespace
}  // namespace gdn::layer_laps_test
