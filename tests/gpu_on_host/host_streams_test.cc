// Asynchronous streams of the host executor: the orders that the seam promises, and the faults of counting on more.

#include "kernels/gpu/on_host/host_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kFloats = 96;
constexpr size_t kBytes = kFloats * sizeof(float);
constexpr uint64_t kSeeds = 40;

struct AddParams {
  float* x;
  float amount;
};

__global__ void AddKernel(AddParams p) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < kFloats) p.x[i] += p.amount;
}

absl::Status Add(float* x, float amount, const Stream& stream) {
  return Launch("add", AddKernel, {CeilDivide(kFloats, 32)}, 32, stream, AddParams{x, amount});
}

struct RacyShared {
  LdsArray<float, 64> values;
};

// Without the barrier that its neighbours' values need.
__global__ void RacyKernel(float* out) {
  auto& shared = SharedMemory<RacyShared>();
  const int i = static_cast<int>(threadIdx.x);
  shared.values[i] = static_cast<float>(i);
  out[i] = shared.values[63 - i];
}

// Streams, memory and an event of a device that the test configures.
class World {
 public:
  World() {
    for (float*& memory : device_) memory = static_cast<float*>(*DeviceMalloc(kBytes));
    for (float*& memory : pinned_) memory = static_cast<float*>(*PinnedMalloc(kBytes));
    event_ = *MakeEvent();
  }
  ~World() {
    for (const Stream& stream : {a_, b_}) DestroyStream(stream);
    HostStreams::Drain();
    DestroyEvent(event_);
    for (float* memory : device_) DeviceFree(memory);
    for (float* memory : pinned_) PinnedFree(memory);
  }
  World(const World&) = delete;

  const Stream& a() const { return a_; }
  const Stream& b() const { return b_; }
  Event event() const { return event_; }
  float* device(int i) const { return device_[i]; }
  float* pinned(int i) const { return pinned_[i]; }
  void FillPinned(int i, float value) const { std::fill_n(pinned_[i], kFloats, value); }
  std::vector<float> Pinned(int i) const { return {pinned_[i], pinned_[i] + kFloats}; }

 private:
  const Stream a_ = *MakeStream(0);
  const Stream b_ = *MakeStream(0);
  Event event_ = nullptr;
  float* device_[2] = {};
  float* pinned_[2] = {};
};

class HostStreamsTest : public testing::Test {
 protected:
  ~HostStreamsTest() override { HostStreams::ConfigureFromEnvironment(); }
  static void Paces(std::vector<StreamPace> paces) {
    HostStreams::Configure({.asynchronous = true, .paces = std::move(paces)});
  }
};

// A fault shows in what `fault` returns. Under ThreadSanitizer it shows in its report, whatever the order was.
#if defined(__SANITIZE_THREAD__)
#define EXPECT_FAULT(expectation, fault)          \
  static_cast<void>([&] { expectation; });        \
  GTEST_FLAG_SET(death_test_style, "threadsafe"); \
  EXPECT_EXIT(                                    \
      {                                           \
        static_cast<void>(fault);                 \
        std::exit(0);                             \
      },                                          \
      testing::ExitedWithCode(66), "data race")
#else
#define EXPECT_FAULT(expectation, fault) expectation
#endif

bool All(const std::vector<float>& values, float expected) {
  return std::all_of(values.begin(), values.end(), [&](float value) { return value == expected; });
}

TEST_F(HostStreamsTest, WorkOfAStreamRunsInItsOrder) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    HostStreams::Configure({.asynchronous = true, .seed = seed});
    const World world;
    world.FillPinned(0, 1.0f);
    ASSERT_TRUE(CopyToDevice(world.device(0), world.pinned(0), kBytes, world.a()).ok());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(Add(world.device(0), 2.0f, world.a()).ok());
    ASSERT_TRUE(CopyOnDevice(world.device(1), world.device(0), kBytes, world.a()).ok());
    ASSERT_TRUE(CopyToHost(world.pinned(1), world.device(1), kBytes, world.a()).ok());
    ASSERT_TRUE(SynchronizeStream(world.a()).ok());
    EXPECT_THAT(world.Pinned(1), Each(7.0f)) << "seed " << seed;
  }
}

TEST_F(HostStreamsTest, ALaunchKeepsTheArgumentsThatItWasGiven) {
  Paces({StreamPace::kLazy});
  const World world;
  world.FillPinned(0, 0.0f);
  ASSERT_TRUE(CopyToDevice(world.device(0), world.pinned(0), kBytes, world.a()).ok());
  AddParams params{world.device(0), 5.0f};
  ASSERT_TRUE(Launch("add", AddKernel, {CeilDivide(kFloats, 32)}, 32, world.a(), params).ok());
  params = {nullptr, 0.0f};
  ASSERT_TRUE(CopyToHost(world.pinned(1), world.device(0), kBytes, world.a()).ok());
  ASSERT_TRUE(SynchronizeStream(world.a()).ok());
  EXPECT_THAT(world.Pinned(1), Each(5.0f));
}

// The host fills the buffer again, before or after it waited for the copy of what was in it.
std::vector<float> SentFromABufferUsedTwice(bool waits) {
  const World world;
  world.FillPinned(0, 1.0f);
  EXPECT_TRUE(CopyToDevice(world.device(0), world.pinned(0), kBytes, world.a()).ok());
  EXPECT_TRUE(RecordEvent(world.event(), world.a()).ok());
  if (waits) {
    EXPECT_TRUE(WaitForEvent(world.event()).ok());
  }
  world.FillPinned(0, 2.0f);
  EXPECT_TRUE(CopyToHost(world.pinned(1), world.device(0), kBytes, world.a()).ok());
  EXPECT_TRUE(SynchronizeStream(world.a()).ok());
  return world.Pinned(1);
}

TEST_F(HostStreamsTest, APinnedBufferUsedAgainBeforeItsCopyRanIsSeen) {
  Paces({StreamPace::kLazy});
  EXPECT_FAULT(EXPECT_THAT(SentFromABufferUsedTwice(/*waits=*/false), Each(2.0f)), SentFromABufferUsedTwice(false));
}

TEST_F(HostStreamsTest, APinnedBufferMayBeUsedAgainAfterItsEvent) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    HostStreams::Configure({.asynchronous = true, .seed = seed});
    EXPECT_THAT(SentFromABufferUsedTwice(/*waits=*/true), Each(1.0f)) << "seed " << seed;
  }
}

TEST_F(HostStreamsTest, OtherHostMemoryIsReadAndWrittenBeforeACopyReturns) {
  Paces({StreamPace::kLazy});
  const World world;
  std::vector<float> values(kFloats, 3.0f);
  ASSERT_TRUE(CopyToDevice(world.device(0), values.data(), kBytes, world.a()).ok());
  values.assign(kFloats, 4.0f);
  ASSERT_TRUE(CopyToHost(values.data(), world.device(0), kBytes, world.a()).ok());
  EXPECT_THAT(values, Each(3.0f));
}

// One stream computes what another sends.
std::vector<float> SentByAnotherStream(bool waits) {
  const World world;
  world.FillPinned(0, 1.0f);
  EXPECT_TRUE(CopyToDevice(world.device(0), world.pinned(0), kBytes, world.a()).ok());
  EXPECT_TRUE(Add(world.device(0), 1.0f, world.a()).ok());
  EXPECT_TRUE(RecordEvent(world.event(), world.a()).ok());
  if (waits) {
    EXPECT_TRUE(StreamWaitsFor(world.b(), world.event()).ok());
  }
  EXPECT_TRUE(CopyToHost(world.pinned(1), world.device(0), kBytes, world.b()).ok());
  EXPECT_TRUE(SynchronizeStream(world.b()).ok());
  return world.Pinned(1);
}

TEST_F(HostStreamsTest, AMissingWaitBetweenStreamsIsSeenBySomeSeed) {
#if defined(__SANITIZE_THREAD__)
  Paces({StreamPace::kEager, StreamPace::kEager});
#endif
  const auto wrong_seeds = [] {
    int wrong = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      HostStreams::Configure({.asynchronous = true, .seed = seed});
      if (!All(SentByAnotherStream(/*waits=*/false), 2.0f)) ++wrong;
    }
    return wrong;
  };
  EXPECT_FAULT(EXPECT_GT(wrong_seeds(), 0), SentByAnotherStream(false));
}

TEST_F(HostStreamsTest, AStreamThatWaitsForAnotherSeesItsWork) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    HostStreams::Configure({.asynchronous = true, .seed = seed});
    EXPECT_THAT(SentByAnotherStream(/*waits=*/true), Each(2.0f)) << "seed " << seed;
  }
}

TEST_F(HostStreamsTest, AnEventIsDoneOnceItsStreamCameThere) {
  Paces({StreamPace::kLazy});
  const World world;
  EXPECT_TRUE(*EventIsDone(world.event())) << "it was never recorded";
  EXPECT_TRUE(WaitForEvent(world.event()).ok());
  ASSERT_TRUE(Add(world.device(0), 1.0f, world.a()).ok());
  ASSERT_TRUE(RecordEvent(world.event(), world.a()).ok());
  EXPECT_FALSE(*EventIsDone(world.event()));
  ASSERT_TRUE(WaitForEvent(world.event()).ok());
  EXPECT_TRUE(*EventIsDone(world.event()));
  ASSERT_TRUE(RecordEvent(world.event(), world.a()).ok());
  EXPECT_FALSE(*EventIsDone(world.event())) << "it was recorded anew";
  while (!*EventIsDone(world.event())) {  // who only asks gets there too
  }
}

TEST_F(HostStreamsTest, AWaitIsForTheRecordBeforeIt) {
  Paces({StreamPace::kLazy, StreamPace::kEager});
  const World world;
  ASSERT_TRUE(RecordEvent(world.event(), world.a()).ok());
  ASSERT_TRUE(StreamWaitsFor(world.b(), world.event()).ok());
  ASSERT_TRUE(Add(world.device(0), 1.0f, world.a()).ok());
  ASSERT_TRUE(RecordEvent(world.event(), world.a()).ok());
  ASSERT_TRUE(SynchronizeStream(world.b()).ok());
  EXPECT_FALSE(*EventIsDone(world.event())) << "the other stream did not have to come this far";
}

TEST_F(HostStreamsTest, AnEventMayGoWhileItIsWaitedFor) {
  Paces({StreamPace::kLazy, StreamPace::kLazy});
  const World world;
  const Event event = *MakeEvent();
  ASSERT_TRUE(Add(world.device(0), 1.0f, world.a()).ok());
  ASSERT_TRUE(RecordEvent(event, world.a()).ok());
  ASSERT_TRUE(StreamWaitsFor(world.b(), event).ok());
  DestroyEvent(event);
  EXPECT_TRUE(SynchronizeStream(world.b()).ok());
}

TEST_F(HostStreamsTest, ADestroyedStreamRunsWhatItWasGiven) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    HostStreams::Configure({.asynchronous = true, .seed = seed});
    const World world;
    const Stream stream = *MakeStream(0);
    world.FillPinned(0, 1.0f);
    ASSERT_TRUE(CopyToDevice(world.device(0), world.pinned(0), kBytes, stream).ok());
    ASSERT_TRUE(Add(world.device(0), 1.0f, stream).ok());
    ASSERT_TRUE(CopyToHost(world.pinned(1), world.device(0), kBytes, stream).ok());
    ASSERT_TRUE(RecordEvent(world.event(), stream).ok());
    DestroyStream(stream);
    ASSERT_TRUE(WaitForEvent(world.event()).ok());
    EXPECT_THAT(world.Pinned(1), Each(2.0f)) << "seed " << seed;
  }
}

bool IsLost(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable && ErrorReason(status) == reason::kDeviceFailed;
}

void ExpectEverythingFails(const World& world) {
  EXPECT_TRUE(IsLost(SynchronizeStream(world.a())));
  EXPECT_TRUE(IsLost(SynchronizeStream(world.b())));
  EXPECT_TRUE(IsLost(Add(world.device(0), 1.0f, world.b())));
  EXPECT_TRUE(IsLost(CopyToDevice(world.device(0), world.pinned(0), kBytes, world.a())));
  EXPECT_TRUE(IsLost(CopyToHost(world.pinned(0), world.device(0), kBytes, world.a())));
  EXPECT_TRUE(IsLost(CopyOnDevice(world.device(1), world.device(0), kBytes, world.a())));
  EXPECT_TRUE(IsLost(RecordEvent(world.event(), world.a())));
  EXPECT_TRUE(IsLost(StreamWaitsFor(world.b(), world.event())));
  EXPECT_TRUE(IsLost(WaitForEvent(world.event())));
  EXPECT_TRUE(IsLost(EventIsDone(world.event()).status()));
  EXPECT_TRUE(IsLost(MakeEvent().status()));
  EXPECT_TRUE(IsLost(MakeStream(0).status()));
  EXPECT_TRUE(IsLost(DeviceMalloc(kBytes).status()));
  EXPECT_TRUE(IsLost(PinnedMalloc(kBytes).status()));
}

// Each kind of operation; a later one may be refused already.
absl::Status WorkOnBothStreams(const World& world) {
  GDN_RETURN_IF_ERROR(CopyToDevice(world.device(0), world.pinned(0), kBytes, world.a()));
  GDN_RETURN_IF_ERROR(Add(world.device(0), 1.0f, world.a()));
  GDN_RETURN_IF_ERROR(RecordEvent(world.event(), world.a()));
  GDN_RETURN_IF_ERROR(StreamWaitsFor(world.b(), world.event()));
  GDN_RETURN_IF_ERROR(CopyOnDevice(world.device(1), world.device(0), kBytes, world.b()));
  GDN_RETURN_IF_ERROR(CopyToHost(world.pinned(1), world.device(1), kBytes, world.b()));
  return SynchronizeStream(world.b());
}

TEST_F(HostStreamsTest, AFailureAtAnyOperationIsReportedOnceWaitedForAndStays) {
  constexpr int64_t kOperations = 6;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    for (int64_t fail_at = 0; fail_at <= kOperations; ++fail_at) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", operation " << fail_at);
      HostStreams::Configure({.asynchronous = true, .seed = seed, .fail_at = fail_at});
      const World world;
      world.FillPinned(0, 1.0f);
      const absl::Status status = WorkOnBothStreams(world);
      if (fail_at == kOperations) {
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(HostStreams::operations(), kOperations);
        continue;
      }
      EXPECT_TRUE(IsLost(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("operation " + std::to_string(fail_at)));
      ExpectEverythingFails(world);
    }
  }
  HostStreams::Configure({.asynchronous = true});
  EXPECT_TRUE(WorkOnBothStreams(World()).ok()) << "another device has not failed";
}

TEST_F(HostStreamsTest, AKernelsFaultIsHeardOfWhenItsStreamIsWaitedFor) {
  Paces({StreamPace::kLazy});
  const World world;
  EXPECT_TRUE(Launch("racy", RacyKernel, {1}, 64, world.a(), world.device(0)).ok());
  const absl::Status status = SynchronizeStream(world.a());
  EXPECT_THAT(std::string(status.message()), HasSubstr("racy: an LDS element is read"));
  ExpectEverythingFails(world);
}

TEST_F(HostStreamsTest, ACopyOfMemoryFreedMeanwhileFails) {
  for (const bool pinned_is_freed : {true, false}) {
    Paces({StreamPace::kLazy});
    const World world;
    void* device = *DeviceMalloc(kBytes);
    void* pinned = *PinnedMalloc(kBytes);
    std::fill_n(static_cast<float*>(pinned), kFloats, 1.0f);
    ASSERT_TRUE(CopyToDevice(device, pinned, kBytes, world.a()).ok());
    pinned_is_freed ? PinnedFree(pinned) : DeviceFree(device);
    EXPECT_TRUE(IsLost(SynchronizeStream(world.a())));
    pinned_is_freed ? DeviceFree(device) : PinnedFree(pinned);
  }
}

TEST_F(HostStreamsTest, ACopyThatLeavesTheRuntimesMemoryIsRefused) {
  Paces({});
  const World world;
  EXPECT_TRUE(IsLost(CopyToDevice(world.device(0) + 1, world.pinned(0), kBytes, world.a())));
  EXPECT_TRUE(IsLost(CopyToHost(world.pinned(0), world.pinned(1), kBytes, world.a())));
}

// A kernel's own accesses are watched by AddressSanitizer, or by the poison that it spoils.
void WriteMemoryFreedMeanwhile() {
  const World world;
  float* memory = static_cast<float*>(*DeviceMalloc(kBytes));
  ASSERT_TRUE(CopyToDevice(world.device(0), world.pinned(0), kBytes, world.a()).ok());
  ASSERT_TRUE(Launch(
                  "fill", +[](float* x) { x[threadIdx.x] = 1.0f; }, {1}, 32, world.a(), memory)
                  .ok());
  DeviceFree(memory);
  EXPECT_TRUE(IsLost(SynchronizeStream(world.a())));
}

TEST_F(HostStreamsTest, AKernelThatWritesMemoryFreedMeanwhileIsSeen) {
  Paces({StreamPace::kLazy});
#if defined(__SANITIZE_ADDRESS__)
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(WriteMemoryFreedMeanwhile(), "heap-use-after-free");
#elif defined(__SANITIZE_THREAD__)
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        WriteMemoryFreedMeanwhile();
        std::exit(0);
      },
      testing::ExitedWithCode(66), "use-after-free|data race");
#else
  WriteMemoryFreedMeanwhile();
#endif
}

}  // namespace
}  // namespace gdn::gpu
