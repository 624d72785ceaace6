// The executor itself: cross-lane operations by the ISA's definition, and the faults it must see.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/gpu/launch.h"
#include "kernels/gpu/wave.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace gdn::gpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Stream HostStream(int wave_width) { return {.handle = nullptr, .wave_width = wave_width, .processors = 2}; }

// Returns the value that each lane gets if `Move` moves lane numbers.
template <int kWave, typename Move>
std::vector<float> Moved(Move move) {
  std::vector<float> out(kWave, -1.0f);
  const auto status = simt::RunGrid("move", {}, kWave, kWave, [&] {
    const int lane = LaneId<kWave>();
    out[lane] = move(static_cast<float>(lane));
  });
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

TEST(Dpp, QuadPermReadsTheNamedLaneOfEachQuad) {
  const auto got = Moved<64>([](float x) { return UpdateDpp<64, DppQuadPerm(2, 3, 0, 1)>(-2.0f, x); });
  for (int i = 0; i < 64; ++i) EXPECT_EQ(got[i], (i & ~3) + ((i & 3) ^ 2)) << i;
}

TEST(Dpp, MirrorsReverseRowAndHalfRow) {
  const auto row = Moved<32>([](float x) { return UpdateDpp<32, kDppRowMirror>(-2.0f, x); });
  const auto half = Moved<32>([](float x) { return UpdateDpp<32, kDppRowHalfMirror>(-2.0f, x); });
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(row[i], (i & 16) + 15 - i % 16) << i;
    EXPECT_EQ(half[i], (i & 24) + 7 - i % 8) << i;
  }
}

TEST(DsSwizzle, MasksLanesWithinGroupsOf32) {
  const auto got = Moved<64>([](float x) { return DsSwizzle<64, SwizzlePattern(0x1c, 0x01, 0x10)>(x); });
  for (int i = 0; i < 64; ++i) EXPECT_EQ(got[i], (i & 32) + ((((i & 31) & 0x1c) | 0x01) ^ 0x10)) << i;
}

TEST(Bpermute, ReadsAnyLaneOfTheWave) {
  const auto got = Moved<64>([](float x) { return Bpermute<64>(static_cast<int>(x) * 7 + 5, x); });
  for (int i = 0; i < 64; ++i) EXPECT_EQ(got[i], (i * 7 + 5) % 64) << i;
}

template <int kWave>
void ExpectGroupSums() {
  const auto of_16 = Moved<kWave>([](float x) { return GroupSum<16, kWave>(x); });
  const auto of_all = Moved<kWave>([](float x) { return GroupSum<kWave, kWave>(x); });
  for (int i = 0; i < kWave; ++i) {
    EXPECT_EQ(of_16[i], 16 * (i & ~15) + 120) << i;
    EXPECT_EQ(of_all[i], kWave * (kWave - 1) / 2) << i;
  }
}

TEST(Wave, SumsHoldAtBothWidths) {
  ExpectGroupSums<64>();
  ExpectGroupSums<32>();
}

// out[i] = in[reversed within a block of 128], by way of LDS; kBarrier and kTail plant a fault each.
template <bool kBarrier, int kTail>
void ReverseKernel(const float* in, float* out, int count) {
  struct Shared {
    LdsArray<float, 128> tile;
  };
  Shared& s = SharedMemory<Shared>();
  const int i = static_cast<int>(blockIdx.x * 128 + threadIdx.x);
  if (i < count) s.tile[static_cast<int>(threadIdx.x)] = in[i];
  if (kBarrier) SyncThreads();
  const int length = min(128, count - static_cast<int>(blockIdx.x) * 128);
  if (i < count) out[i] = s.tile[length - 1 - static_cast<int>(threadIdx.x) + kTail];
}

template <bool kBarrier, int kTail>
absl::Status Reverse(int count, int wave_width) {
  std::vector<float> in(count);
  std::vector<float> out(count, -1.0f);
  for (int i = 0; i < count; ++i) in[i] = static_cast<float>(i);
  const absl::Status status = Launch("reverse", ReverseKernel<kBarrier, kTail>, {CeilDivide(count, 128)}, 128,
                                     HostStream(wave_width), in.data(), out.data(), count);
  if (status.ok()) {
    for (int i = 0; i < count; ++i) {
      const int first = i / 128 * 128;
      const int last = std::min(count, first + 128) - 1;
      EXPECT_EQ(out[i], first + last - i) << i;
    }
  }
  return status;
}

// Memory that is mapped where a thread's lanes had their stacks has none of their red zones.
TEST(LaneStacks, LeaveNoRedZonesBehind) {
#if !defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "there are no red zones";
#else
  std::thread([] { EXPECT_TRUE((Reverse<true, 0>(256, 64).ok())); }).join();  // a thread has stacks of its own
  constexpr size_t kBytes = size_t{516} << 10;
  std::vector<void*> mapped;
  for (int i = 0; i < 300; ++i) {
    mapped.push_back(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    ASSERT_NE(mapped.back(), MAP_FAILED);
    EXPECT_EQ(__asan_region_is_poisoned(mapped.back(), kBytes), nullptr) << i;
  }
  for (void* const memory : mapped) munmap(memory, kBytes);
#endif
}

TEST(Fmaf, RoundsOnceAsTheCLibrarysDoes) {
  std::mt19937 random(5);
  const auto bits = [](float value) { return std::isnan(value) ? 0x7fc00000u : FloatToBits(value); };
  for (int i = 0; i < 100'000; ++i) {
    float values[3];
    for (float& value : values) value = BitsToFloat(static_cast<uint32_t>(random()));
    if (i % 2 == 1) values[2] = -values[0] * values[1];  // the sum is the product's rounding error
    const auto [a, b, c] = values;
    ASSERT_EQ(bits(gpu::fmaf(a, b, c)), bits(std::fmaf(a, b, c))) << a << " * " << b << " + " << c;
  }
}

// A product of 16 x 8 by `Mma`, of matrices in the layout that the seam states.
template <typename Mma>
void ExpectProduct(int depth, Mma mma) {
  std::vector<float> a(16 * depth);
  std::vector<float> b(depth * 8);
  for (int i = 0; i < 16 * depth; ++i) a[i] = static_cast<float>(i * 7 % 31 - 15);
  for (int i = 0; i < depth * 8; ++i) b[i] = static_cast<float>(i * 5 % 29 - 14);
  std::vector<float> out(16 * 8);
  const auto status = simt::RunGrid("mma", {}, 32, 32, [&] {
    const int g = LaneId<32>() / 4;
    const int q = LaneId<32>() % 4;
    float d[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    mma(a, b, g, q, d);
    for (int i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = d[i];
  });
  ASSERT_TRUE(status.ok()) << status;
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      auto expected = static_cast<float>(1 + column % 2 + row / 8 * 2);
      for (int k = 0; k < depth; ++k) expected += a[row * depth + k] * b[k * 8 + column];
      EXPECT_EQ(out[row * 8 + column], expected) << row << ", " << column;
    }
  }
}

TEST(MmaBf16, MultipliesMatricesInTheStatedLayout) {
  const auto pair = [](float low, float high) { return uint32_t{ToBf16(low)} | uint32_t{ToBf16(high)} << 16; };
  ExpectProduct(16, [&](const auto& a, const auto& b, int g, int q, float(&d)[4]) {
    uint32_t of_a[4];
    uint32_t of_b[2];
    for (int i = 0; i < 4; ++i) {
      const int at = (g + i % 2 * 8) * 16 + 2 * q + i / 2 * 8;
      of_a[i] = pair(a[at], a[at + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      const int at = (2 * q + i * 8) * 8 + g;
      of_b[i] = pair(b[at], b[at + 8]);
    }
    MmaBf16<32>(d, of_a, of_b);
  });
}

TEST(MmaTf32, MultipliesMatricesInTheStatedLayout) {
  ExpectProduct(8, [&](const auto& a, const auto& b, int g, int q, float(&d)[4]) {
    uint32_t of_a[4];
    uint32_t of_b[2];
    for (int i = 0; i < 4; ++i) of_a[i] = ToTf32(a[(g + i % 2 * 8) * 8 + q + i / 2 * 4]);
    for (int i = 0; i < 2; ++i) of_b[i] = ToTf32(b[(q + i * 4) * 8 + g]);
    MmaTf32<32>(d, of_a, of_b);
  });
}

TEST(MmaBf16, TruncatesSums) {
  const auto with = [](float start, float of_a) {  // start + of_a^2
    float sum = 0.0f;
    const auto status = simt::RunGrid("mma", {}, 32, 32, [&] {
      const uint32_t word = LaneId<32>() % 4 == 0 ? ToBf16(of_a) : 0u;
      float d[4] = {start, start, start, start};
      MmaBf16<32>(d, {word, word, 0u, 0u}, {word, 0u});
      sum = d[0];
    });
    EXPECT_TRUE(status.ok()) << status;
    return sum;
  };
  EXPECT_EQ(with(1.0f, 0x1p-11f), 1.0f + 0x1p-22f);
  EXPECT_EQ(with(1.0f, 0x1.4p-12f), 1.0f);             // a rounded sum would be 1 + 2^-23
  EXPECT_EQ(with(-1.0f, 0x1p-13f), -1.0f + 0x1p-24f);  // a rounded sum would be -1
}

struct FourRows {
  LdsArray<float, 4 * 32> words;
};

TEST(LoadMatrices, GivesLanesThePairsThatMmaBf16Takes) {
  std::vector<uint32_t> got(32 * 4);
  const auto status = simt::RunGrid("load", {}, 32, 32, [&] {
    auto& s = LaunchedSharedMemory<FourRows>();
    const int lane = LaneId<32>();
    for (int i = 0; i < 4; ++i) s.words[lane * 4 + i] = BitsToFloat(static_cast<uint32_t>(lane * 4 + i));
    WaveBarrier();
    uint32_t words[4];
    LoadMatrices<32>(s.words, (31 - lane) * 4, words);  // rows in reverse
    for (int i = 0; i < 4; ++i) got[lane * 4 + i] = words[i];
  });
  ASSERT_TRUE(status.ok()) << status;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got[lane * 4 + i], (31 - i * 8 - lane / 4) * 4 + lane % 4) << lane;
  }
}

TEST(ToTf32, RoundsToElevenBitsTiesAwayFromZero) {
  EXPECT_EQ(ToTf32(1.0f + 0x1p-11f), FloatToBits(1.0f + 0x1p-10f));
  EXPECT_EQ(ToTf32(-1.0f - 0x1p-11f), FloatToBits(-1.0f - 0x1p-10f));
  EXPECT_EQ(ToTf32(1.0f + 0x1p-12f), FloatToBits(1.0f));
  EXPECT_EQ(ToTf32(INFINITY), FloatToBits(INFINITY));
}

// A block of two lanes: each copies four floats of `from` to LDS, and, after what `wait` does, reads what the other one
// has copied.
template <typename Wait>
absl::Status CopyAndRead(const float* from, bool valid, std::vector<float>& read, Wait wait) {
  struct Shared {
    LdsArray<float, 8> values;
  };
  return simt::RunGrid("copy", {}, 2, 32, [&, from] {
    Shared& s = LaunchedSharedMemory<Shared>();
    const int lane = static_cast<int>(threadIdx.x);
    CopyAsync16(s.values, lane * 4, from + lane * 4, valid);
    CommitCopies();
    wait();
    const Vec2 pair = s.values.Load2((1 - lane) * 4 + 2);
    read[lane * 2] = pair.x;
    read[lane * 2 + 1] = pair.y;
    WaitForCopies<0>();
  });
}

TEST(CopyAsync16, ArrivesWhenItIsWaitedFor) {
  alignas(16) const float from[8] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, 8.0f};
  std::vector<float> read(4);
  const auto wait = [] {
    WaitForCopies<0>();
    SyncThreads();
  };
  const absl::Status status = CopyAndRead(from, /*valid=*/true, read, wait);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(read, testing::ElementsAre(7.0f, 8.0f, 3.0f, 4.0f));
  EXPECT_TRUE(CopyAndRead(nullptr, /*valid=*/false, read, wait).ok());
  EXPECT_THAT(read, testing::Each(0.0f));
}

TEST(PlantedFault, AReadOfACopyThatNobodyHasWaitedForIsSeen) {
  alignas(16) const float from[8] = {};
  std::vector<float> read(4);
  const auto newest_left = [] {
    CommitCopies();  // of none
    WaitForCopies<2>();
    SyncThreads();
  };
  EXPECT_THAT(std::string(CopyAndRead(from, /*valid=*/true, read, newest_left).message()),
              HasSubstr("nothing has written"));
  const auto no_barrier = [] { WaitForCopies<0>(); };
  EXPECT_THAT(std::string(CopyAndRead(from, /*valid=*/true, read, no_barrier).message()), HasSubstr("LDS"));
}

TEST(PlantedFault, ABlockThatEndsBeforeItsCopiesIsSeen) {
  struct Shared {
    LdsArray<float, 4> values;
  };
  alignas(16) const float from[4] = {};
  const auto status = simt::RunGrid("copy", {}, 1, 32, [&] {
    CopyAsync16(LaunchedSharedMemory<Shared>().values, 0, from);
    CommitCopies();
  });
  EXPECT_THAT(std::string(status.message()), HasSubstr("copies to LDS on their way"));
}

TEST(SelectBytes, TakesEachByteByItsNumberAmongEight) {
  EXPECT_EQ(SelectBytes(0x44332211u, 0x88776655u, 0x07000304u), 0x88114455u);
}

TEST(Dot4, AddsProductsOfSignedBytes) {
  EXPECT_EQ(Dot4(0x01020304u, 0x05060708u, 100), 100 + 1 * 5 + 2 * 6 + 3 * 7 + 4 * 8);
  EXPECT_EQ(Dot4(0x80808080u, 0x7f7f7f7fu, 0), 4 * -128 * 127);
  EXPECT_EQ(Dot4(0x80ff7f01u, 0x80ff7f01u, -7), -7 + 128 * 128 + 1 + 127 * 127 + 1);
}

TEST(PlantedFault, NoneRunsCleanWithATail) {
  for (int width : {64, 32}) {
    for (int count : {1, 127, 128, 129, 300}) EXPECT_TRUE((Reverse<true, 0>(count, width)).ok()) << count;
  }
}

TEST(PlantedFault, AMissingBarrierIsSeen) {
  for (int width : {64, 32}) {
    const absl::Status status = Reverse<false, 0>(300, width);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("reverse"), HasSubstr("LDS"), HasSubstr("thread")));
  }
}

TEST(PlantedFault, AnOffByOneTailIsSeen) {
  // In a whole block it runs off the array, in the last one onto an element that nobody wrote.
  EXPECT_THAT(std::string((Reverse<true, 1>(128, 64)).message()), HasSubstr("out of bounds"));
  EXPECT_THAT(std::string((Reverse<true, 1>(100, 64)).message()), HasSubstr("nothing has written"));
}

TEST(PlantedFault, LanesOfOneWaveNeedAWaveBarrier) {
  struct Shared {
    LdsArray<float, 64> values;
  };
  const auto run = [](bool fence) {
    return simt::RunGrid("neighbours", {}, 64, 64, [&] {
      Shared& s = SharedMemory<Shared>();
      const int lane = LaneId<64>();
      s.values[lane] = 1.0f;
      if (fence) WaveBarrier();
      const float neighbour = s.values[(lane + 1) % 64];
      EXPECT_EQ(neighbour, 1.0f);
    });
  };
  EXPECT_TRUE(run(true).ok());
  EXPECT_THAT(std::string(run(false).message()), HasSubstr("LDS"));
}

TEST(PlantedFault, AWriteOverWhatOthersStillReadIsSeen) {
  struct Shared {
    LdsArray<float, 1> value;
  };
  const auto run = [](bool barrier) {
    return simt::RunGrid("reuse", {}, 128, 64, [&] {
      Shared& s = SharedMemory<Shared>();
      for (int round = 0; round < 2; ++round) {
        if (threadIdx.x == 0) s.value[0] = static_cast<float>(round);
        SyncThreads();
        EXPECT_EQ(static_cast<float>(s.value[0]), round);
        if (barrier) SyncThreads();
      }
    });
  };
  EXPECT_TRUE(run(true).ok());
  EXPECT_THAT(std::string(run(false).message()), HasSubstr("with no barrier since it was"));
}

TEST(PlantedFault, AWriteOverWhatLanesOfTheSameWaveReadIsSeen) {
  struct Shared {
    LdsArray<float, 1> value;
  };
  const auto run = [](bool fence) {
    return simt::RunGrid("reuse", {}, 64, 64, [&] {
      Shared& s = SharedMemory<Shared>();
      if (threadIdx.x == 0) s.value[0] = 1.0f;
      SyncThreads();
      for (int reads = 0; reads < 3; ++reads) EXPECT_EQ(static_cast<float>(s.value[0]), 1.0f);
      if (fence) WaveBarrier();
      if (threadIdx.x == 63) s.value[0] = 2.0f;
    });
  };
  EXPECT_TRUE(run(true).ok());
  EXPECT_THAT(std::string(run(false).message()), HasSubstr("with no barrier since it was read"));
}

TEST(PlantedFault, DivergingLanesAreNamed) {
  const auto barrier = simt::RunGrid("half", {}, 128, 64, [] {
    if (threadIdx.x < 64) SyncThreads();
  });
  EXPECT_THAT(std::string(barrier.message()),
              AllOf(HasSubstr("diverge"), HasSubstr("SyncThreads"), HasSubstr("its end")));
  const auto shuffle = simt::RunGrid("odd", {}, 64, 64, [] {
    if (threadIdx.x % 2 == 1) static_cast<void>(GroupSum<2, 64>(1.0f));
  });
  EXPECT_THAT(std::string(shuffle.message()), HasSubstr("diverge"));
}

TEST(PlantedFault, ALaneThatMeetsForEverIsSeen) {
  const auto fences = simt::RunGrid("fences", {}, /*threads=*/1, /*wave_width=*/32, [] {
    for (;;) WaveBarrier();
  });
  EXPECT_EQ(fences.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(fences.message()), HasSubstr("barriers"));
}

TEST(PlantedFault, AMisalignedVectorAccessIsSeen) {
  alignas(16) float data[8] = {};
  const auto status = simt::RunGrid("load", {}, 1, 64, [&] { static_cast<void>(Load4(data + 1)); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("misaligned"));
}

TEST(PlantedFault, AnEarlyKernelThatDoesNotWaitIsSeen) {
  const auto run = [](bool early, int waiting_lane) {
    return simt::RunGrid(
        "early", {.x = 2}, 64, 64,
        [&] {
          if (static_cast<int>(threadIdx.x) == waiting_lane) WaitForPriorKernels();
        },
        early);
  };
  EXPECT_TRUE(run(/*early=*/false, /*waiting_lane=*/-1).ok());
  EXPECT_TRUE(run(/*early=*/true, /*waiting_lane=*/5).ok());
  const auto status = run(/*early=*/true, /*waiting_lane=*/-1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("early"), HasSubstr("WaitForPriorKernels")));
}

TEST(Schedule, FollowsTheSeedAndRepeats) {
  const auto order = [](uint64_t seed) {
    simt::SetScheduleSeed(seed);
    std::vector<unsigned> waves;
    EXPECT_TRUE(simt::RunGrid("order", {.x = 4}, 256, 64, [&] {
                  if (threadIdx.x % 64 == 0) waves.push_back(blockIdx.x * 4 + threadIdx.x / 64);
                  SyncThreads();
                  if (threadIdx.x % 64 == 0) waves.push_back(blockIdx.x * 4 + threadIdx.x / 64);
                }).ok());
    simt::SetScheduleSeed(1);
    return waves;
  };
  EXPECT_EQ(order(7), order(7));
  EXPECT_NE(order(7), order(8));
}

TEST(Launch, RefusesAWaveWidthItHasNoKernelsFor) {
  const absl::Status status = WithWaveWidth(HostStream(48), "any", [](auto) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Launch, RefusesAGridThatNoDeviceTakes) {
  const absl::Status status =
      Launch("tall", ReverseKernel<true, 0>, {1, 70000}, 64, HostStream(64), nullptr, nullptr, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gdn::gpu
