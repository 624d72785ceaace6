// Decode steps that are recorded and replayed: the bits and lengths of those that are launched, and nothing of a
// recording outlives the memory that it names.

#include "kernels/gpu_backend/step_graphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/fill/fill.h"
#include "kernels/gpu/on_host/host_streams.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/kernels/layer_problem.h"
#include "tests/support/compare.h"

namespace gdn::step_graphs_test {
namespace {

using gpu::StepGraphs;

constexpr int32_t kSlots = 4;

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

  // Unless `staged`, only the rows are brought, and the arrays are left to the operators. Forks have base slots, and
  // from the first fold on their own.
  std::vector<float> Decode(std::vector<Rows>& rows, bool draft = false, bool staged = true,
                            std::vector<int32_t>* base_slots = nullptr) {
    PackedRows packed(rows, problem_.weights(), problem_.pool().view());
    if (base_slots != nullptr) packed.step.base_slots = base_slots->data();
    const StageInParams inputs = packed.Staged(in_.data(), host_.data());
    EXPECT_EQ(backend_->UseThread(), absl::OkStatus());
    EXPECT_EQ(staged ? backend_->StageIn(inputs) : backend_->StagePiece(in_.data(), host_.data(), inputs.bytes),
              absl::OkStatus());
    packed.step.hidden_states = in_.floats();
    packed.step.output = out_.floats();
    packed.step.draft = draft;
    EXPECT_EQ(runner_.Decode(packed.step, packed.log_lengths.data()), absl::OkStatus());
    EXPECT_EQ(backend_->CopyOut(packed.y.data(), out_.data(), packed.y.size() * sizeof(float)), absl::OkStatus());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].slot < 0 || draft) continue;
      const auto tokens = packed.step.batch.length(static_cast<int32_t>(i));
      if (base_slots != nullptr && rows[i].log_length + tokens >= kLogCapacity) (*base_slots)[i] = rows[i].slot;
      rows[i].log_length = packed.log_lengths[i];
      rows[i].token_count += tokens;
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

  // All but the base: what a fork copies.
  void CopyLog(int32_t from, int32_t to) {
    EXPECT_EQ(backend_->Synchronize(), absl::OkStatus());
    const StatePoolView& pool = problem_.pool().view();
    const std::vector<float> base = BaseOf(to);
    std::memcpy(pool.slot(to), pool.slot(from), static_cast<size_t>(pool.layout.slot_bytes()));
    std::memcpy(pool.base<float>(to, 0), base.data(), base.size() * sizeof(float));
  }
  std::vector<float> BaseOf(int32_t slot) {
    EXPECT_EQ(backend_->Synchronize(), absl::OkStatus());
    const StatePoolView& pool = problem_.pool().view();
    const float* base = pool.base<float>(slot, 0);
    return {base, base + pool.layout.dims().state_elements()};
  }
  void Fill(int32_t slot, float value) {
    EXPECT_EQ(backend_->Synchronize(), absl::OkStatus());
    const StatePoolView& pool = problem_.pool().view();
    std::fill_n(pool.base<float>(slot, 0), pool.layout.dims().state_elements(), value);
  }
  // A step that says that it needs the batch's arrays, and folds by others.
  void FoldBetweenStages(int32_t from, int32_t to) {
    const std::array<int32_t, 2> cu_seqlens = {0, 1};
    const std::array<int32_t, 1> slots = {0};
    const std::array<int32_t, 1> no_log = {0};
    const PackedBatch batch{.sequences = 1, .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
    EXPECT_EQ(backend_->UseThread(), absl::OkStatus());
    EXPECT_EQ(backend_->StageIn({.device = in_.data(), .host = host_.data(), .bytes = 64, .batch = batch}),
              absl::OkStatus());
    EXPECT_EQ(
        backend_->IssueOrReplay(
            {.key = "fold", .batch = batch},
            [&] {
              return backend_->MaterializeState(
                  {.pool = problem_.pool().view(), .count = 1, .src = &from, .dst = &to, .log_lengths = no_log.data()});
            }),
        absl::OkStatus());
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
  void Step(std::vector<Rows>& rows, const std::vector<int64_t>& lengths, bool draft = false,
            std::vector<int32_t>* base_slots = nullptr) {
    for (size_t i = 0; i < rows.size(); ++i) rows[i].x = random.Normal(lengths[i] * replayed.hidden_size());
    std::vector<Rows> others = rows;
    std::vector<int32_t> bases = base_slots != nullptr ? *base_slots : std::vector<int32_t>();
    const std::vector<float> output = replayed.Decode(rows, draft, /*staged=*/true, base_slots);
    EXPECT_TRUE(BitEqual(output, launched.Decode(others, draft, /*staged=*/true, base_slots ? &bases : nullptr)));
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

TEST(StepGraphs, ForksAreReplayedFromTheirParentsBasesAndFromTheirOwn) {
  Pair pair;
  std::vector<Rows> parents = {{.slot = 0}, {.slot = 1}};
  for (int i = 0; i < 18; ++i) pair.Step(parents, {1, 1});
  for (Served* served : {&pair.replayed, &pair.launched}) served->CopyLog(/*from=*/0, /*to=*/2);
  for (Served* served : {&pair.replayed, &pair.launched}) served->CopyLog(/*from=*/0, /*to=*/3);
  const int64_t before = pair.replayed.counts().replayed;
  std::vector<Rows> forks = {parents[0], parents[0]};
  std::vector<int32_t> base_slots = {0, 0};
  for (int i = 0; i < 2; ++i) forks[i].slot = 2 + i;
  for (int i = 0; i < 40 && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    pair.Step(forks, {1, 1}, /*draft=*/false, &base_slots);
  }
  EXPECT_EQ(base_slots, (std::vector<int32_t>{2, 3}));
  EXPECT_GT(pair.replayed.counts().replayed, before + 30);
}

// A recording would send what the array held then, for good.
TEST(StepGraphs, AStepThatSendsAnArrayOfItsOwnIsLaunched) {
  Served served(GpuGraphs::kOn);
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    served.Fill(3, static_cast<float>(i + 1));
    served.FoldBetweenStages(/*from=*/3, /*to=*/1 + i % 2);
    EXPECT_EQ(served.BaseOf(1 + i % 2), served.BaseOf(3));
  }
  EXPECT_EQ(served.counts().refused, 1);
  EXPECT_EQ(served.counts().replayed, 0);
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
    EXPECT_EQ(graphs_.Run("key", issue), absl::OkStatus());
    EXPECT_EQ(gpu::SynchronizeStream(stream_), absl::OkStatus());
    EXPECT_EQ(values_[7], 0.0f);
  }
  EXPECT_EQ(graphs_.counts().refused, 1);
  EXPECT_EQ(graphs_.counts().replayed, 0);
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
  for (int i = 0; i < 4; ++i) EXPECT_EQ(graphs_.Run("key", issue), absl::InvalidArgumentError("a bad step"));
}

TEST_F(StepGraphsAlone, KeepsTheKeysThatWereUsedLast) {
  const auto issue = [&] { return FillZeroGpu(values_, sizeof(values_), stream_); };
  for (int round = 0; round < 4; ++round) {
    for (int key = 0; key < 600; ++key) EXPECT_EQ(graphs_.Run(std::to_string(key), issue), absl::OkStatus());
    for (int i = 0; i < 4; ++i) EXPECT_EQ(graphs_.Run("often", issue), absl::OkStatus());
  }
  EXPECT_EQ(graphs_.counts().recorded, 4) << "600 keys in turn push one another out, and `often` with them";
  EXPECT_EQ(graphs_.counts().replayed, 8);
}

}  // namespace
}  // namespace gdn::step_graphs_test
