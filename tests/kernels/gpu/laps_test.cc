// Every ring, arena and pool of the GPU backend is driven round several times within one test, on streams that run
// behind the host: the arrays of one call never overlap, and nothing in flight is overwritten.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/fill/fill.h"
#include "kernels/gpu/on_host/device_memory.h"
#include "kernels/gpu/on_host/host_streams.h"
#include "kernels/gpu/runtime.h"
#include "kernels/gpu_backend/gpu_staging.h"
#include "kernels/gpu_backend/gpu_transfers.h"
#include "kernels/gpu_backend/index_staging.h"
#include "kernels/gpu_backend/launch_streams.h"
#include "kernels/gpu_backend/step_graphs.h"
#include "tests/support/random.h"

namespace gdn::laps_test {
namespace {

using gpu::HostStreams;
using gpu::StreamPace;

constexpr size_t kArenaBytes = 2048;
constexpr size_t kRingBytes = 4096;
constexpr int64_t kLaps = 8;

// On a lazy stream nothing runs until the host waits, so whatever is overwritten too early is still needed.
constexpr StreamPace kPaces[] = {StreamPace::kLazy, StreamPace::kShuffled, StreamPace::kEager};

class GpuLaps : public testing::TestWithParam<StreamPace> {
 protected:
  GpuLaps() {
    HostStreams::Configure({.asynchronous = true, .seed = 11, .paces = std::vector<StreamPace>(8, GetParam())});
  }
  ~GpuLaps() override { HostStreams::ConfigureFromEnvironment(); }
};
INSTANTIATE_TEST_SUITE_P(Paces, GpuLaps, testing::ValuesIn(kPaces), [](const auto& tested) {
  return std::string(tested.param == StreamPace::kLazy       ? "Lazy"
                     : tested.param == StreamPace::kShuffled ? "Shuffled"
                                                             : "Eager");
});

// A stream, and page-locked and device memory beside it, which live until it has run.
struct Device {
  Device() = default;
  Device(const Device&) = delete;
  ~Device() {
    EXPECT_EQ(gpu::SynchronizeStream(stream), absl::OkStatus());
    gpu::DestroyStream(stream);
    for (void* data : pinned) gpu::PinnedFree(data);
    for (void* data : device) gpu::DeviceFree(data);
  }
  char* Pinned(size_t bytes) { return static_cast<char*>(pinned.emplace_back(*gpu::PinnedMalloc(bytes))); }
  char* Memory(size_t bytes) { return static_cast<char*>(device.emplace_back(*gpu::DeviceMalloc(bytes))); }

  const gpu::Stream stream = *gpu::MakeStream(0);
  std::vector<void*> pinned, device;
};

// An array that an operator reads: bytes of the device, which are `expected` when it runs.
struct DeviceArray {
  const void* at;
  std::string expected;
};
template <typename T>
DeviceArray ArrayOf(const T* at, const std::vector<T>& expected) {
  return {at, std::string(reinterpret_cast<const char*>(expected.data()), expected.size() * sizeof(T))};
}

// Stands for operators: copies what each was given to the host, in the stream's order.
class Operators {
 public:
  explicit Operators(Device& device) : device_(device) {}

  void Issue(const std::vector<DeviceArray>& arrays) {
    std::vector<std::pair<const char*, const char*>> ranges;
    for (const DeviceArray& array : arrays) {
      const auto* begin = static_cast<const char*>(array.at);
      ranges.emplace_back(begin, begin + array.expected.size());
      char* host = device_.Pinned(array.expected.size());
      ASSERT_EQ(gpu::CopyToHost(host, array.at, array.expected.size(), device_.stream), absl::OkStatus());
      read_.push_back({host, array.expected});
    }
    std::ranges::sort(ranges);
    for (size_t i = 1; i < ranges.size(); ++i) {
      EXPECT_LE(ranges[i - 1].second, ranges[i].first) << "two arrays of operator " << issued_ << " overlap";
    }
    ++issued_;
  }
  // How many arrays were not as expected when their operators ran.
  int64_t Wrong() {
    EXPECT_EQ(gpu::SynchronizeStream(device_.stream), absl::OkStatus());
    return std::ranges::count_if(
        read_, [](const auto& read) { return std::memcmp(read.first, read.second.data(), read.second.size()) != 0; });
  }

 private:
  Device& device_;
  int64_t issued_ = 0;
  std::vector<std::pair<const char*, std::string>> read_;
};

// Arrays of random sequences.
struct RandomBatch {
  RandomBatch(Random& random, int32_t most) {
    const int32_t sequences = random.NextInt(1, most), first = random.NextInt(0, 1);
    for (int32_t i = 0; i < sequences; ++i) {
      cu_seqlens.push_back(i + 1);
      slots.push_back(first + i);
      log_lengths.push_back(random.NextInt(0, 1));
      base_slots.push_back(100 * random.NextInt(1, 3) + i);
    }
    token_counts.assign(slots.size(), random.NextInt(0, 1000));
  }
  PackedBatch packed() const {
    return {.sequences = static_cast<int32_t>(slots.size()), .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
  }
  // Places the arrays that an operator takes.
  std::vector<DeviceArray> Place(gpu::PinnedRing& ring, gpu::IndexStaging& indices, bool counts = true,
                                 bool lengths = true, bool bases = true) const {
    const gpu::DeviceBatch placed = *indices.Batch(ring, {.batch = packed(),
                                                          .token_counts = counts ? token_counts.data() : nullptr,
                                                          .log_lengths = lengths ? log_lengths.data() : nullptr,
                                                          .base_slots = bases ? base_slots.data() : nullptr});
    std::vector<DeviceArray> arrays = {ArrayOf(placed.cu_seqlens, cu_seqlens), ArrayOf(placed.slots, slots)};
    if (counts) arrays.push_back(ArrayOf(placed.token_counts, token_counts));
    if (lengths) arrays.push_back(ArrayOf(placed.log_lengths, log_lengths));
    if (bases) arrays.push_back(ArrayOf(placed.base_slots, base_slots));
    return arrays;
  }

  std::vector<int32_t> cu_seqlens{0}, slots, log_lengths, base_slots;
  std::vector<int64_t> token_counts;
};

TEST_P(GpuLaps, TheIndexArrayArenaKeepsTheArraysOfAnOperatorUntilItHasRun) {
  Device device;
  gpu::PinnedRing ring = *gpu::PinnedRing::Make(device.stream, kRingBytes);
  gpu::IndexStaging indices(device.stream, kArenaBytes);
  Operators operators(device);
  Random random(5);
  std::vector<RandomBatch> batches;  // few, so that sequences are found in the arena while their counts are not
  for (int i = 0; i < 4; ++i) batches.emplace_back(random, /*most=*/24);
  size_t sent = 0;
  for (int call = 0; sent < kLaps * kArenaBytes; ++call) {
    RandomBatch& batch = batches[static_cast<size_t>(random.NextInt(0, 3))];
    sent += batch.slots.size() * sizeof(int64_t);
    std::ranges::fill(batch.token_counts, call);
    for (int32_t& length : batch.log_lengths) length = random.NextInt(0, 1);
    if (call % 5 < 4) {
      operators.Issue(batch.Place(ring, indices, call % 4 != 1, call % 3 != 1, call % 2 == 0));
      continue;
    }
    const MaterializeStateParams fold{.pool = {},
                                      .count = batch.packed().sequences,
                                      .src = batch.slots.data(),
                                      .dst = batch.base_slots.data(),
                                      .log_lengths = batch.log_lengths.data()};
    const gpu::DeviceFold placed = *indices.Fold(ring, fold);
    operators.Issue({ArrayOf(placed.src, batch.slots), ArrayOf(placed.dst, batch.base_slots),
                     ArrayOf(placed.log_lengths, batch.log_lengths)});
  }
  EXPECT_EQ(operators.Wrong(), 0);
}

// The same sequences at the next token: their slots are found, wherever the arena's end is.
TEST_P(GpuLaps, AnArrayThatIsFoundIsNotOverwrittenByTheNextOfItsOperator) {
  Device device;
  gpu::PinnedRing ring = *gpu::PinnedRing::Make(device.stream, kRingBytes);
  gpu::IndexStaging indices(device.stream, kArenaBytes);
  Operators operators(device);
  Random random(6);
  RandomBatch batch(random, /*most=*/40);
  for (int64_t step = 0; step < kLaps * 8; ++step) {
    std::ranges::fill(batch.token_counts, step);
    std::ranges::fill(batch.log_lengths, static_cast<int32_t>(step % kLogCapacity));
    operators.Issue(batch.Place(ring, indices));
  }
  EXPECT_EQ(operators.Wrong(), 0);
}

TEST_P(GpuLaps, AnArenaThatGrowsKeepsTheArraysOfTheOperatorForWhichItGrows) {
  Device device;
  gpu::PinnedRing ring = *gpu::PinnedRing::Make(device.stream, kRingBytes);
  gpu::IndexStaging indices(device.stream, /*arena_bytes=*/64);
  Operators operators(device);
  Random random(7);
  for (int32_t most = 1; most < 4000; most *= 3) {
    for (int call = 0; call < 4; ++call) operators.Issue(RandomBatch(random, most).Place(ring, indices));
  }
  EXPECT_EQ(operators.Wrong(), 0);
}

TEST_P(GpuLaps, OperatorsOfAReservedSizeAllocateNothing) {
  Device device;
  gpu::PinnedRing ring = *gpu::PinnedRing::Make(device.stream, kRingBytes);
  gpu::IndexStaging indices(device.stream, /*arena_bytes=*/64);
  constexpr int32_t kMost = 100;
  const size_t reserved = gpu::IndexStaging::StagedBytes(kMost);
  ASSERT_EQ(indices.Reserve(reserved), absl::OkStatus());
  Random random(8);
  std::shared_ptr<const gpu::simt::Allocation> arena;
  for (int call = 0; call < 40; ++call) {
    for (const DeviceArray& array : RandomBatch(random, kMost).Place(ring, indices)) {
      const auto memory = gpu::simt::FindMemory(array.at, array.expected.size());
      ASSERT_NE(memory, nullptr);
      if (arena == nullptr) arena = memory;
      EXPECT_EQ(memory, arena);
    }
  }
  EXPECT_GE(arena->bytes, reserved);
}

TEST_P(GpuLaps, TheRingOfPageLockedMemoryIsNotWrittenWhileCopiesReadIt) {
  Device device;
  gpu::PinnedRing ring = *gpu::PinnedRing::Make(device.stream, kRingBytes);
  Random random(9);
  std::deque<std::pair<char*, std::string>> copies;
  size_t sent = 0;
  for (int call = 0; sent < kLaps * kRingBytes; ++call) {
    const auto bytes = static_cast<size_t>(random.NextInt(1, call % 7 == 6 ? 3 * kRingBytes : 700));
    std::string content(bytes, '\0');
    for (char& byte : content) byte = static_cast<char>(random.Next());
    char* memory = device.Memory(bytes);
    std::string given = content;
    ASSERT_EQ(ring.CopyIn(memory, given.data(), bytes), absl::OkStatus());
    std::ranges::fill(given, 'x');  // the caller's memory is its own again
    copies.emplace_back(memory, std::move(content));
    sent += bytes;
    if (call % 3 != 2) continue;
    const auto& [at, expected] = copies[random.Next() % copies.size()];
    std::string read(expected.size(), '\0');
    ASSERT_EQ(ring.CopyOut(read.data(), at, read.size()), absl::OkStatus());
    EXPECT_EQ(read, expected);
  }
  for (const auto& [at, expected] : copies) {
    std::string read(expected.size(), '\0');
    ASSERT_EQ(ring.CopyOut(read.data(), at, read.size()), absl::OkStatus());
    ASSERT_EQ(read, expected);
  }
}

// Two launches on their way at a time, small and large, with memory of their own that the next but one uses again.
TEST_P(GpuLaps, FencesAndStreamsOfLaunchesAreUsedAgainOnlyWhenTheyHavePassed) {
  Device device;
  gpu::LaunchStreams streams(/*device=*/0, device.stream);
  constexpr size_t kMost = size_t{512} << 10;  // above what stays on the operators' stream
  struct Lane {
    char *host_in, *host_out, *in, *out;
    size_t bytes = 0;
    char value = 0;
    gpu::LaunchFence* fence = nullptr;
  };
  std::array<Lane, 2> lanes;
  for (Lane& lane : lanes) {
    lane = {device.Pinned(kMost), device.Pinned(kMost), device.Memory(kMost), device.Memory(kMost)};
  }
  const auto end = [&](Lane& lane) {
    if (lane.fence == nullptr) return;
    ASSERT_EQ(streams.WaitFence(std::exchange(lane.fence, nullptr)), absl::OkStatus());
    EXPECT_EQ(static_cast<size_t>(std::count(lane.host_out, lane.host_out + lane.bytes, lane.value)), lane.bytes);
  };
  for (int launch = 0; launch < 40; ++launch) {
    Lane& lane = lanes[static_cast<size_t>(launch) % lanes.size()];
    end(lane);
    lane.bytes = launch % 3 == 0 ? kMost : 4096;
    lane.value = static_cast<char>(launch + 1);
    std::memset(lane.host_in, lane.value, lane.bytes);
    std::memset(lane.host_out, 0, lane.bytes);
    ASSERT_EQ(streams.In(lane.in, lane.host_in, lane.bytes), absl::OkStatus());
    ASSERT_EQ(gpu::CopyOnDevice(lane.out, lane.in, lane.bytes, device.stream), absl::OkStatus());
    // The first part is never the launch's last copy, and the second is a small one only in some launches.
    const size_t first = lane.bytes / 4;
    ASSERT_EQ(streams.Out(lane.host_out, lane.out, first), absl::OkStatus());
    ASSERT_EQ(streams.Out(lane.host_out + first, lane.out + first, lane.bytes - first), absl::OkStatus());
    lane.fence = *streams.MakeFence();
    EXPECT_EQ(lane.fence->blocks, lane.bytes == kMost ? 0 : 1);
  }
  for (Lane& lane : lanes) end(lane);
}

TEST_P(GpuLaps, StreamsOfTransfersAreUsedByOneAtATime) {
  gpu::GpuTransfers transfers(/*device=*/0);
  const auto work = [&](char value) {
    Device own;
    constexpr size_t kBytes = 4096;
    char *host = own.Pinned(kBytes), *back = own.Pinned(kBytes), *memory = own.Memory(kBytes);
    for (int i = 0; i < 30; ++i) {
      std::memset(host, value + i, kBytes);
      ASSERT_EQ(transfers.In(memory, host, kBytes), absl::OkStatus());
      ASSERT_EQ(transfers.Out(back, memory, kBytes), absl::OkStatus());
      ASSERT_EQ(std::memcmp(back, host, kBytes), 0);
      ASSERT_EQ(transfers.Zero(memory, kBytes), absl::OkStatus());
      ASSERT_EQ(transfers.Out(back, memory, kBytes), absl::OkStatus());
      ASSERT_EQ(std::count(back, back + kBytes, 0), static_cast<int64_t>(kBytes));
    }
  };
  std::vector<std::thread> threads;
  for (const char value : {1, 40, 80}) threads.emplace_back(work, value);
  for (std::thread& thread : threads) thread.join();
}

// Recordings that are on their way are pushed out by others, which take their places.
TEST_P(GpuLaps, RecordingsThatArePushedOutHaveTheirEffects) {
  constexpr size_t kBytes = 64;
  constexpr int kKeys = 600;  // more than are kept
  Device device;
  gpu::StepGraphs graphs(device.stream);
  char* memory = device.Memory(kKeys * kBytes);
  const std::string ones(kKeys * kBytes, '\1');
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(gpu::CopyToDevice(memory, ones.data(), ones.size(), device.stream), absl::OkStatus());
    for (int key = 0; key < kKeys; ++key) {
      for (int seen = 0; seen < 4; ++seen) {  // recorded when it comes for the third time
        char* at = memory + static_cast<size_t>(key) * kBytes;
        if (seen == 3) {
          ASSERT_EQ(gpu::CopyOnDevice(at, memory + ones.size() - kBytes, kBytes, device.stream), absl::OkStatus());
        }
        ASSERT_EQ(graphs.Run(std::to_string(key), [&] { return FillZeroGpu(at, kBytes, device.stream); }),
                  absl::OkStatus());
      }
    }
    std::string read(ones.size(), '\1');
    ASSERT_EQ(gpu::CopyToHost(read.data(), memory, read.size(), device.stream), absl::OkStatus());
    EXPECT_EQ(std::ranges::count(read, '\0'), static_cast<int64_t>(read.size()));
  }
  EXPECT_EQ(graphs.counts().recorded, 2 * kKeys);
}

}  // namespace
}  // namespace gdn::laps_test
