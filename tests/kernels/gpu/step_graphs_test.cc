// Decode steps that are recorded and replayed: the bits and lengths of those that are launched, and nothing of a
// recording outlives the memory that it names.

#include "kernels/gpu_backend/step_graphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/fill/fill.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/gpu_on_host/host_streams.h"
#include "tests/kernels/layer_problem.h"
#include "tests/support/compare.h"

namespace gdn {
namespace {

using gpu::StepGraphs;

constexpr int32_t kSlots = 4;

size_t WholeLines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// A layer's sessions on a GPU backend of their own, stepped as the server does: rows and arrays come by StageIn.
class Served {
 public:
  explicit Served(GpuGraphs graphs)
      : backend_(*MakeGpuBackend({.graphs = graphs})), runner_(*backend_), problem_({}, kSlots) {
    Grow(1 << 20);
  }

  // Buffers of at least that size, at another place.
  void Grow(size_t bytes) {
    in_ = DeviceBuffer();
    out_ = DeviceBuffer();
    in_ = *DeviceBuffer::Make(*backend_, bytes);
    out_ = *DeviceBuffer::Make(*backend_, bytes);
    host_ = *HostBuffer::Make(*backend_, bytes);
  }

  // Unless `staged`, only the rows are brought, and the arrays are left to the operators.
  std::vector<float> Decode(std::vector<Rows>& rows, bool draft = false, bool staged = true) {
    PackedRows packed(rows, problem_.weights(), problem_.pool().view());
    const size_t bytes = WholeLines(packed.x.size() * sizeof(float));
    std::memcpy(host_.data(), packed.x.data(), packed.x.size() * sizeof(float));
    EXPECT_EQ(backend_->UseThread(), absl::OkStatus());
    EXPECT_EQ(staged ? backend_->StageIn({.device = in_.data(),
                                          .host = host_.data(),
                                          .bytes = bytes,
                                          .batch = packed.step.batch,
                                          .token_counts = packed.token_counts.data(),
                                          .log_lengths = packed.log_lengths.data()})
                     : backend_->StagePiece(in_.data(), host_.data(), bytes),
              absl::OkStatus());
    packed.step.hidden_states = in_.floats();
    packed.step.output = out_.floats();
    packed.step.draft = draft;
    EXPECT_EQ(runner_.Decode(packed.step, packed.log_lengths.data()), absl::OkStatus());
    EXPECT_EQ(backend_->CopyOut(packed.y.data(), out_.data(), packed.y.size() * sizeof(float)), absl::OkStatus());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].slot < 0 || draft) continue;
      rows[i].log_length = packed.log_lengths[i];
      rows[i].token_count += packed.step.batch.length(static_cast<int32_t>(i));
    }
    return packed.y;
  }

  // All that the sessions are.
  std::vector<float> States() {
    EXPECT_EQ(backend_->Synchronize(), absl::OkStatus());
    std::vector<float> all;
    for (int32_t i = 0; i < kSlots; ++i) Append({problem_.pool().slot(i).begin(), problem_.pool().slot(i).end()}, all);
    return all;
  }

  GpuGraphCounts counts() { return GpuGraphCountsOf(*backend_); }
  int64_t hidden_size() const { return problem_.hidden_size(); }

 private:
  std::unique_ptr<Backend> backend_;
  DeviceBuffer in_, out_;
  HostBuffer host_;
  GdnLayerRunner runner_;
  LayerProblem problem_;
};

// The same steps, replayed and launched.
struct Pair {
  Served replayed{GpuGraphs::kOn};
  Served launched{GpuGraphs::kOff};
  Random random{51};

  // `lengths` tokens of each of the rows; both sides have rows of their own, alike.
  void Step(std::vector<Rows>& rows, const std::vector<int64_t>& lengths, bool draft = false) {
    for (size_t i = 0; i < rows.size(); ++i) rows[i].x = random.Normal(lengths[i] * replayed.hidden_size());
    std::vector<Rows> others = rows;
    EXPECT_TRUE(BitEqual(replayed.Decode(rows, draft), launched.Decode(others, draft)));
    EXPECT_TRUE(BitEqual(replayed.States(), launched.States()));
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].log_length, others[i].log_length);
  }
};

TEST(StepGraphs, ReplayedStepsHaveTheBitsAndLengthsOfLaunchedOnes) {
  Pair pair;
  std::vector<Rows> two = {{.slot = 2}, {.slot = 0}};
  std::vector<Rows> padded = {{.slot = 1}, {.slot = -1}, {.slot = 3}};
  for (int step = 0; step < 40; ++step) {  // folds fall in the midst, and rows of several tokens fold too
    SCOPED_TRACE(step);
    pair.Step(two, {1, 1});
    pair.Step(two, {1, 2}, /*draft=*/true);
    pair.Step(padded, {1, 1, 1});
    if (step % 3 == 0) pair.Step(padded, {5, 2, 1});
    if (HasFailure()) return;
  }
  const GpuGraphCounts counts = pair.replayed.counts();
  EXPECT_EQ(counts.recorded, 4);
  EXPECT_EQ(counts.refused, 0);
  EXPECT_GT(counts.replayed, 110);
  EXPECT_EQ(pair.launched.counts().replayed, 0);
}

TEST(StepGraphs, NothingIsReplayedFromMemoryThatHasMoved) {
  Pair pair;
  std::vector<Rows> rows = {{.slot = 2}, {.slot = 0}};
  const auto steps = [&](int count) {
    for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) pair.Step(rows, {1, 1});
  };
  steps(5);
  EXPECT_EQ(pair.replayed.counts().recorded, 1);
  // The rows' buffers: freed, and made anew elsewhere or at the same place.
  pair.replayed.Grow(1 << 20);
  pair.launched.Grow(1 << 20);
  int64_t plain = pair.replayed.counts().plain;
  steps(5);
  EXPECT_EQ(pair.replayed.counts().plain, plain + 2) << "seen anew before it is recorded anew";
  EXPECT_EQ(pair.replayed.counts().recorded, 2);
  // The runner's workspace, which a longer step outgrows.
  pair.Step(rows, {8, 8});
  plain = pair.replayed.counts().plain;
  steps(5);
  EXPECT_EQ(pair.replayed.counts().plain, plain + 2);
  EXPECT_EQ(pair.replayed.counts().recorded, 3);
}

TEST(StepGraphs, ArraysThatNoLaunchBroughtAreSentAndTheStepIsLaunched) {
  Served served(GpuGraphs::kOn);
  std::vector<Rows> rows = {{.slot = 0, .x = std::vector<float>(served.hidden_size(), 0.5f)}};
  for (int i = 0; i < 6; ++i) served.Decode(rows, /*draft=*/false, /*staged=*/false);
  EXPECT_EQ(served.counts().plain + served.counts().replayed, 0);
}

class StepGraphsAlone : public testing::Test {
 protected:
  ~StepGraphsAlone() override { graphs_.DropAll(); }  // waits for the stream, which writes to values_

  alignas(16) float values_[8] = {};
  const gpu::Stream stream_ = *gpu::MakeStream(0);
  StepGraphs graphs_{stream_};
  int forgotten_ = 0;

  absl::Status Run(const std::string& key, absl::FunctionRef<absl::Status()> issue) {
    return graphs_.Run(key, issue, [this] { ++forgotten_; });
  }
};

TEST_F(StepGraphsAlone, WhatCannotBeRecordedIsLaunched) {
  int issued = 0;
  const auto issue = [&]() -> absl::Status {
    ++issued;
    const absl::StatusOr<void*> memory = gpu::DeviceMalloc(64);
    if (!memory.ok()) return memory.status();
    gpu::DeviceFree(*memory);
    return FillZeroGpu(values_, sizeof(values_), stream_);
  };
  for (int i = 0; i < 6; ++i) {
    std::fill_n(values_, 8, 1.0f);
    EXPECT_EQ(Run("key", issue), absl::OkStatus());
    EXPECT_EQ(gpu::SynchronizeStream(stream_), absl::OkStatus());
    EXPECT_EQ(values_[7], 0.0f);
  }
  EXPECT_EQ(graphs_.counts().refused, 1);
  EXPECT_EQ(graphs_.counts().replayed, 0);
  EXPECT_EQ(forgotten_, 1);
  EXPECT_EQ(issued, 7) << "one in vain";
}

TEST_F(StepGraphsAlone, TheMeasurementAtTheStartRunsWhatItRecords) {
  const absl::StatusOr<gpu::GraphGain> gain = gpu::MeasureGraphGain(stream_);
  ASSERT_EQ(gain.status(), absl::OkStatus());
  EXPECT_GT(gain->plain_us, 0.0);
  EXPECT_GT(gain->replayed_us, 0.0);
}

TEST_F(StepGraphsAlone, AnErrorOfAStepIsItsCallers) {
  const auto issue = [] { return absl::InvalidArgumentError("a bad step"); };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Run("key", issue), absl::InvalidArgumentError("a bad step"));
}

TEST_F(StepGraphsAlone, KeepsTheKeysThatWereUsedLast) {
  const auto issue = [&] { return FillZeroGpu(values_, sizeof(values_), stream_); };
  for (int round = 0; round < 4; ++round) {
    for (int key = 0; key < 600; ++key) EXPECT_EQ(Run(std::to_string(key), issue), absl::OkStatus());
    for (int i = 0; i < 4; ++i) EXPECT_EQ(Run("often", issue), absl::OkStatus());
  }
  EXPECT_EQ(graphs_.counts().recorded, 4) << "600 keys in turn push one another out, and `often` with them";
  EXPECT_EQ(graphs_.counts().replayed, 8);
}

}  // namespace
}  // namespace gdn
