// Rows reach a device that works behind the host, and come back to their calls, whether they are gathered or the device
// copies from and to the calls' own memory.
#include "server/batcher/launch_lane.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/gpu/on_host/host_streams.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/support/forwarding_backend.h"

namespace gdn::launch_lane_test {
namespace {

using gpu::HostStreams;

constexpr int64_t kFeatures = 512;
constexpr int32_t kLong = 64;  // tokens of a row that is copied for itself
constexpr size_t kTokenBytes = kFeatures * sizeof(float);

// A call: rows that lie side by side, in memory as the server gives it.
class Call {
 public:
  Call(Backend& backend, std::vector<int32_t> tokens, float value, bool page_locked = true) {
    int32_t total = 0;
    for (const int32_t count : tokens) total += count;
    const size_t bytes = static_cast<size_t>(total) * kTokenBytes;
    own_input_ = *HostBuffer::Make(backend, bytes);
    own_output_ = *HostBuffer::Make(backend, bytes);
    Fill(own_input_.floats(), own_output_.floats(), tokens, total, value, page_locked);
  }
  // In memory of its own by chance right behind other calls'.
  Call(float* input, float* output, int32_t tokens, float value) {
    Fill(input, output, {tokens}, tokens, value, /*page_locked=*/true);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  // Tokens [first, first + tokens) of its only row; -1: all rows.
  void AddTo(LanePart& part, int32_t first = 0, int32_t tokens = -1) {
    for (StepRow& row : job_.rows) {
      part.rows.push_back({.job = &job_, .row = &row, .first = first, .tokens = tokens < 0 ? row.tokens : tokens});
    }
  }
  bool CameBack() const { return std::equal(input_, input_ + values_, output_); }

 private:
  void Fill(float* input, float* output, const std::vector<int32_t>& tokens, int32_t total, float value,
            bool page_locked) {
    input_ = input;
    output_ = output;
    values_ = static_cast<size_t>(total) * kFeatures;
    for (size_t i = 0; i < values_; ++i) input_[i] = value + static_cast<float>(i % 1000);
    std::fill_n(output_, values_, -1.0f);
    job_.shape.kind = InputKind::kHiddenStates;
    job_.shape.fields[0] = {.dtype = DType::kF32, .features = kFeatures};
    job_.shape.field_count = 1;
    job_.shape.output_features = kFeatures;
    job_.page_locked = page_locked;
    job_.rows.resize(tokens.size());
    size_t at = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      job_.rows[i].tokens = tokens[i];
      job_.rows[i].inputs[0] = reinterpret_cast<const char*>(input_) + at;
      job_.rows[i].output = reinterpret_cast<char*>(output_) + at;
      at += static_cast<size_t>(tokens[i]) * kTokenBytes;
    }
  }
  HostBuffer own_input_, own_output_;
  float* input_ = nullptr;
  float* output_ = nullptr;
  size_t values_ = 0;
  StepJob job_;
};

// Sends the part through the device and back, as a launch whose operators copy. It has come back when the fence has
// passed and Scatter was called. `ahead`: its inputs are sent first, as those of prefills are.
absl::StatusOr<Fence> Issue(Backend& backend, LaunchLane& lane, LanePart& part, bool ahead = false) {
  std::vector<int32_t> cu_seqlens = {0}, slots;
  for (const RowSpan& row : part.rows) {
    cu_seqlens.push_back(cu_seqlens.back() + row.tokens);
    slots.push_back(static_cast<int32_t>(slots.size()));
  }
  LayerStep step;
  step.kind = InputKind::kHiddenStates;
  step.batch = {
      .sequences = static_cast<int32_t>(slots.size()), .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
  GDN_RETURN_IF_ERROR(backend.UseThread());
  GDN_RETURN_IF_ERROR(lane.Reserve({&part}));
  if (ahead) GDN_RETURN_IF_ERROR(lane.SendAhead(part));
  GDN_RETURN_IF_ERROR(lane.Gather(part, /*log_lengths=*/nullptr, /*fold=*/nullptr, &step));
  GDN_RETURN_IF_ERROR(backend.Copy(step.output.data, step.hidden_states.data, part.output_bytes()));
  GDN_RETURN_IF_ERROR(lane.StageOut(part));
  return backend.MakeFence();
}

class LaunchLaneTest : public testing::TestWithParam<uint64_t> {
 protected:
  LaunchLaneTest() { HostStreams::Configure({.asynchronous = true, .seed = GetParam()}); }
  ~LaunchLaneTest() override { HostStreams::ConfigureFromEnvironment(); }

  absl::Status RoundTrip(LanePart& part) {
    GDN_ASSIGN_OR_RETURN(const Fence fence, Issue(*backend_, lane_, part, /*ahead=*/GetParam() % 2 == 1));
    GDN_RETURN_IF_ERROR(backend_->WaitFence(fence));
    lane_.Scatter(part);
    return absl::OkStatus();
  }

  const std::unique_ptr<Backend> backend_ = *MakeGpuBackend({});
  LaunchLane lane_{*backend_};
};
INSTANTIATE_TEST_SUITE_P(Seeds, LaunchLaneTest, testing::Range<uint64_t>(0, 8));

TEST_P(LaunchLaneTest, GathersShortRowsOfManyCalls) {
  Call a(*backend_, {1}, 1), b(*backend_, {2, 1}, 2), c(*backend_, {3}, 3);
  LanePart part;
  a.AddTo(part);
  b.AddTo(part);
  c.AddTo(part);
  ASSERT_TRUE(RoundTrip(part).ok());
  EXPECT_FALSE(part.direct);
  EXPECT_TRUE(a.CameBack() && b.CameBack() && c.CameBack());
}

TEST_P(LaunchLaneTest, CopiesFromAndToCallsWithMuchSideBySide) {
  Call batch(*backend_, std::vector<int32_t>(kLong, 1), 1), prompt(*backend_, {2 * kLong}, 2);
  LanePart part;
  batch.AddTo(part);
  prompt.AddTo(part);
  ASSERT_TRUE(RoundTrip(part).ok());
  EXPECT_TRUE(part.direct);
  EXPECT_TRUE(batch.CameBack() && prompt.CameBack());
}

// Each has too little to be copied for itself. A copy from one allocation into the next fails, and the device with it.
TEST_P(LaunchLaneTest, CallsThatLieSideBySideByChanceAreNotOne) {
  constexpr int32_t kTokens = kLong / 4;
  constexpr size_t kValues = static_cast<size_t>(kTokens) * kFeatures;
  const HostBuffer input = *HostBuffer::Make(*backend_, 4 * kValues * sizeof(float));
  const HostBuffer output = *HostBuffer::Make(*backend_, 4 * kValues * sizeof(float));
  std::vector<std::unique_ptr<Call>> calls;
  LanePart part;
  for (size_t i = 0; i < 4; ++i) {
    calls.push_back(std::make_unique<Call>(input.floats() + i * kValues, output.floats() + i * kValues, kTokens,
                                           static_cast<float>(i)));
    calls.back()->AddTo(part);
  }
  ASSERT_TRUE(RoundTrip(part).ok());
  EXPECT_FALSE(part.direct);
  for (const auto& call : calls) EXPECT_TRUE(call->CameBack());
}

TEST_P(LaunchLaneTest, CopiesSegmentsToTheirPlaces) {
  Call prompt(*backend_, {3 * kLong}, 1), other(*backend_, {kLong}, 2);
  for (int32_t first = 0; first < 3 * kLong; first += kLong) {
    LanePart part;
    if (first == kLong) other.AddTo(part);
    prompt.AddTo(part, first, kLong);
    ASSERT_TRUE(RoundTrip(part).ok());
    EXPECT_TRUE(part.direct);
    EXPECT_EQ(prompt.CameBack(), first == 2 * kLong);
  }
  EXPECT_TRUE(other.CameBack());
}

TEST_P(LaunchLaneTest, GathersWhatIsNotPageLocked) {
  Call a(*backend_, {kLong}, 1), b(*backend_, {kLong}, 2, /*page_locked=*/false);
  LanePart part;
  a.AddTo(part);
  b.AddTo(part);
  ASSERT_TRUE(RoundTrip(part).ok());
  EXPECT_FALSE(part.direct);
  EXPECT_TRUE(a.CameBack() && b.CameBack());
}

// One launch runs while the next is issued, as in the engine. Lanes grow, and take short rows and long ones by turns.
TEST_P(LaunchLaneTest, LanesAreUsedAgainWhileTheOtherLaunchIsOnItsWay) {
  struct OnItsWay {
    LaunchLane lane;
    std::unique_ptr<Call> call;
    LanePart part;
    Fence fence;
  };
  OnItsWay launches[2] = {{LaunchLane(*backend_), nullptr, {}, {}}, {LaunchLane(*backend_), nullptr, {}, {}}};
  const auto end = [&](OnItsWay& launch) {
    if (launch.call == nullptr) return;
    ASSERT_EQ(backend_->WaitFence(launch.fence), absl::OkStatus());
    launch.lane.Scatter(launch.part);
    EXPECT_TRUE(launch.call->CameBack());
    launch.call.reset();
  };
  for (int32_t i = 0; i < 24; ++i) {
    OnItsWay& launch = launches[i % 2];
    end(launch);
    launch.call = std::make_unique<Call>(
        *backend_, i % 3 == 0 ? std::vector<int32_t>{kLong + 8 * i} : std::vector<int32_t>(1 + i % 5, 1 + i % 4),
        static_cast<float>(i));
    launch.part = LanePart();
    launch.call->AddTo(launch.part);
    const absl::StatusOr<Fence> fence = Issue(*backend_, launch.lane, launch.part);
    ASSERT_EQ(fence.status(), absl::OkStatus());
    EXPECT_EQ(launch.part.direct, i % 3 == 0);
    launch.fence = *fence;
  }
  for (OnItsWay& launch : launches) end(launch);
}

// Counts what is allocated on the device, which has no more than `most` bytes for one buffer.
class CountingBackend final : public ForwardingBackend {
 public:
  explicit CountingBackend(Backend& other) : ForwardingBackend(other) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    ++allocations;
    if (bytes > most) return absl::ResourceExhaustedError("the device is full");
    return ForwardingBackend::Allocate(bytes);
  }
  int allocations = 0;
  size_t most = size_t{1} << 40;
};

TEST(LaunchLane, GrowsAFewTimesForSegmentsThatGrowByAndBy) {
  const std::unique_ptr<Backend> gpu = *MakeGpuBackend({});
  CountingBackend backend(*gpu);
  LaunchLane lane(backend);
  for (int32_t tokens = 1; tokens <= 256; ++tokens) {
    Call call(backend, {tokens}, 1);
    LanePart part;
    call.AddTo(part);
    ASSERT_TRUE(lane.Reserve({&part}).ok());
  }
  EXPECT_LE(backend.allocations, 2 * 10) << "inputs and outputs";
}

TEST(LaunchLane, TakesWhatItNeedsIfTheDeviceHasNoMore) {
  const std::unique_ptr<Backend> gpu = *MakeGpuBackend({});
  CountingBackend backend(*gpu);
  LaunchLane lane(backend);
  Call call(backend, {33}, 1);
  LanePart part;
  call.AddTo(part);
  backend.most = 1000;
  EXPECT_EQ(lane.Reserve({&part}).code(), absl::StatusCode::kResourceExhausted);
  backend.most = 35 * kTokenBytes;
  EXPECT_TRUE(lane.Reserve({&part}).ok()) << "less than the next power of two";
}

}  // namespace
}  // namespace gdn::launch_lane_test
