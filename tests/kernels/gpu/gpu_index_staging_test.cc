// Index arrays that come to the device with a launch's inputs: operators find what they were given, at every pace, and
// never what an earlier launch brought.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/gpu/on_host/host_streams.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/layer/gdn_layer.h"
#include "tests/kernels/layer_problem.h"
#include "tests/support/compare.h"

namespace gdn::gpu_index_staging_test {
namespace {

using gpu::HostStreams;

constexpr uint64_t kSeeds = 8;
constexpr int32_t kSlots = 6;

LayerProblemOptions SmallLayer() {
  return {.dims = {.key_heads = 1, .value_heads = 2, .key_dim = 8, .value_dim = 8, .conv_width = 4, .hidden_size = 12}};
}

// Memory for a launch's inputs and arrays, and for its output.
struct Memory {
  explicit Memory(Backend& backend)
      : in(*DeviceBuffer::Make(backend, kBytes)),
        out(*DeviceBuffer::Make(backend, kBytes)),
        host_in(*HostBuffer::Make(backend, kBytes)),
        host_out(*HostBuffer::Make(backend, kBytes)) {}

  static constexpr size_t kBytes = 4096;
  DeviceBuffer in, out;
  HostBuffer host_in, host_out;
};

// A decode on its way.
struct Decode {
  PackedRows packed;
  Memory* memory;
  Fence fence;

  Decode(const std::vector<Rows>& rows, LayerProblem& problem, Memory& at)
      : packed(rows, problem.weights(), problem.pool().view()), memory(&at) {}

  // Arrays come with the inputs, or, where not `staged`, when operators ask.
  void Issue(Backend& backend, GdnLayerRunner& runner, bool staged = true) {
    ASSERT_LE(packed.staged_bytes() + backend.BatchArrayBytes(packed.step.batch.sequences), Memory::kBytes);
    ASSERT_EQ(backend.UseThread(), absl::OkStatus());
    if (staged) {
      ASSERT_EQ(backend.StageIn(packed.Staged(memory->in.data(), memory->host_in.data())), absl::OkStatus());
    } else {
      ASSERT_EQ(backend.CopyIn(memory->in.data(), packed.x.data(), packed.x.size() * sizeof(float)), absl::OkStatus());
    }
    packed.step.hidden_states = memory->in.floats();
    packed.step.output = memory->out.floats();
    ASSERT_EQ(runner.Decode(packed.step, packed.log_lengths.data()), absl::OkStatus());
    ASSERT_EQ(backend.StageOut(memory->host_out.data(), memory->out.data(), packed.y.size() * sizeof(float)),
              absl::OkStatus());
    fence = *backend.MakeFence();
  }
  std::vector<float> Wait(Backend& backend) {
    EXPECT_EQ(backend.WaitFence(fence), absl::OkStatus());
    const auto* y = static_cast<const float*>(memory->host_out.data());
    return {y, y + packed.y.size()};
  }
};

// Three launches: other sequences, and then the first ones again.
struct Launches {
  explicit Launches(LayerProblem& problem) {
    for (int64_t round = 0; round < 3; ++round) {
      for (const int32_t slot : round == 1 ? std::vector<int32_t>{5, 0} : std::vector<int32_t>{3, 1, 4}) {
        rows[round].push_back({.slot = slot, .token_count = round, .log_length = 0, .x = problem.Inputs(1)});
        if (round == 2) rows[round].back().log_length = rows[round].back().token_count = 1;
      }
    }
  }
  std::vector<Rows> rows[3];
};

// Returns the outputs of the launches on a backend that stages nothing and ends each launch before the next.
std::vector<std::vector<float>> Expected() {
  HostStreams::Configure({});
  const std::unique_ptr<Backend> backend = *MakeGpuBackend({});
  GdnLayerRunner runner(*backend);
  LayerProblem problem(SmallLayer(), kSlots);
  Launches launches(problem);
  std::vector<std::vector<float>> y;
  for (std::vector<Rows>& rows : launches.rows) y.push_back(problem.Decode(runner, rows));
  return y;
}

class GpuIndexStaging : public testing::Test {
 protected:
  ~GpuIndexStaging() override { HostStreams::ConfigureFromEnvironment(); }
};

TEST_F(GpuIndexStaging, LaunchesOnTheirWayTogetherHaveTheirOwnArrays) {
  const std::vector<std::vector<float>> expected = Expected();
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HostStreams::Configure({.asynchronous = true, .seed = seed});
    const std::unique_ptr<Backend> backend = *MakeGpuBackend({});
    GdnLayerRunner runner(*backend);
    LayerProblem problem(SmallLayer(), kSlots);
    Launches launches(problem);
    Memory memory[3] = {Memory(*backend), Memory(*backend), Memory(*backend)};
    std::vector<std::unique_ptr<Decode>> decodes;
    for (int i = 0; i < 3; ++i) {
      decodes.push_back(std::make_unique<Decode>(launches.rows[i], problem, memory[i]));
      decodes[i]->Issue(*backend, runner);
    }
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(BitEqual(decodes[i]->Wait(*backend), expected[i])) << i;
  }
}

// The next launch has the arrays of the last, whose memory is now full of something else.
TEST_F(GpuIndexStaging, ALaunchDoesNotFindWhatTheOneBeforeItBrought) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    HostStreams::Configure({.asynchronous = true, .seed = seed});
    const std::unique_ptr<Backend> backend = *MakeGpuBackend({});
    GdnLayerRunner runner(*backend);
    LayerProblem problem(SmallLayer(), kSlots);
    const std::vector<Rows> rows = {{.slot = 2, .x = problem.Inputs(1)}, {.slot = 5, .x = problem.Inputs(1)}};
    Memory first(*backend), second(*backend);
    Decode staged(rows, problem, first);
    staged.Issue(*backend, runner);
    const std::vector<float> expected = staged.Wait(*backend);
    const std::vector<char> garbage(Memory::kBytes, 0x55);
    ASSERT_EQ(backend->TransferIn(first.in.data(), garbage.data(), garbage.size()), absl::OkStatus());
    // The same step again: fresh states give the same outputs.
    for (const Rows& row : rows) {
      ASSERT_EQ(backend->ZeroSlot(problem.pool().view(), row.slot), absl::OkStatus());
    }
    Decode again(rows, problem, second);
    again.Issue(*backend, runner, /*staged=*/false);
    EXPECT_TRUE(BitEqual(again.Wait(*backend), expected));
  }
}

// Log lengths move on while a launch is issued: a second decode of it must not take the first one's.
TEST_F(GpuIndexStaging, ArraysThatChangedInPlaceAreSentAgain) {
  HostStreams::Configure({.asynchronous = true, .seed = 5});
  const std::unique_ptr<Backend> backend = *MakeGpuBackend({});
  std::vector<float> y[2];
  for (const bool staged : {false, true}) {
    LayerProblem problem(SmallLayer(), kSlots);
    GdnLayerRunner runner(*backend);
    Memory memory(*backend);
    Decode decode({{.slot = 2, .x = problem.Inputs(1)}, {.slot = 5, .x = problem.Inputs(1)}}, problem, memory);
    decode.Issue(*backend, runner, staged);
    decode.Wait(*backend);
    for (int64_t& count : decode.packed.token_counts) ++count;
    ASSERT_EQ(decode.packed.log_lengths, (std::vector<int32_t>{1, 1}));
    ASSERT_EQ(runner.Decode(decode.packed.step, decode.packed.log_lengths.data()), absl::OkStatus());
    y[staged].resize(decode.packed.y.size());
    ASSERT_EQ(backend->CopyOut(y[staged].data(), memory.out.data(), y[staged].size() * sizeof(float)),
              absl::OkStatus());
  }
  EXPECT_TRUE(BitEqual(y[0], y[1]));
}

// A fold's arrays too, with sources' bases and without.
TEST_F(GpuIndexStaging, AFoldFindsItsArraysInTheLaunchsCopy) {
  HostStreams::Configure({.asynchronous = true, .seed = 2});
  const std::unique_ptr<Backend> backend = *MakeGpuBackend({});
  LayerProblem problem(SmallLayer(), kSlots);
  const StatePoolView pool = problem.pool().view();
  const auto floats = static_cast<size_t>(pool.layout.slot_floats());
  for (int32_t slot = 0; slot < kSlots; ++slot) std::fill_n(pool.slot(slot), floats, 1.0f + static_cast<float>(slot));
  const std::vector<int32_t> offsets = {0, 1, 2}, slots = {4, 5}, src = {0, -1}, dst = {4, 5}, logs = {0, 0};
  const std::vector<int32_t> bases = {2, -1};
  Memory memory(*backend);
  for (const int32_t* const src_bases : {static_cast<const int32_t*>(nullptr), bases.data()}) {
    const MaterializeStateParams fold{.pool = pool,
                                      .count = 2,
                                      .src = src.data(),
                                      .dst = dst.data(),
                                      .log_lengths = logs.data(),
                                      .src_bases = src_bases};
    ASSERT_EQ(backend->UseThread(), absl::OkStatus());
    const int64_t before = HostStreams::operations();
    ASSERT_EQ(backend->StageIn({.device = memory.in.data(),
                                .host = memory.host_in.data(),
                                .bytes = 64,
                                .batch = {.sequences = 2, .cu_seqlens = offsets.data(), .slots = slots.data()},
                                .fold = &fold}),
              absl::OkStatus());
    ASSERT_EQ(backend->MaterializeState(fold), absl::OkStatus());
    EXPECT_EQ(HostStreams::operations(), before + 2) << "one copy, one launch";
    ASSERT_EQ(backend->Synchronize(), absl::OkStatus());
    EXPECT_EQ(pool.base<float>(4, 0)[0], src_bases == nullptr ? 1.0f : 3.0f);
    EXPECT_EQ(pool.base<float>(5, 0)[0], 0.0f);
  }
}

}  // namespace
}  // namespace gdn::gpu_index_staging_test
