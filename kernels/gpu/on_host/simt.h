// device.h on the host: a SIMT executor that runs a kernel with one fiber per lane, real barriers and cross-lane calls.
//
// Runs blocks one at a time in a shuffled order, and within a block shuffles the waves again after each barrier (from a
// fixed seed, so a failure repeats). A launch fails, naming kernel, block and thread, if
//   - an LDS element is read before it is written, or lies outside its array;
//   - two lanes touch an LDS element, one of them writing, with no barrier between (WaveBarrier within a wave);
//   - lanes of a wave meet at different cross-lane calls or barriers, or one has returned;
//   - a cross-lane call reads a lane that is not present;
//   - Grid::early is set and a block ends without any lane having called WaitForPriorKernels.
// AddressSanitizer checks global memory; to it each device allocation is a heap allocation.
// Thread safety: launches from different threads are independent, also on asynchronous streams (host_streams.h). The
// functions below are for kernel code only.
#pragma once

#include <math.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "kernels/gpu/dot2.h"
#include "kernels/gpu/dpp.h"
#include "kernels/gpu/e4m3_bits.h"
#include "kernels/gpu/grid.h"
#include "kernels/gpu/on_host/fiber_block.h"
#include "kernels/gpu/on_host/host_streams.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/vec4.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define threadIdx (::gdn::gpu::simt::Here().thread)
#define blockIdx (::gdn::gpu::simt::Here().block)
#define blockDim (::gdn::gpu::simt::Here().block_dim)
#define gridDim (::gdn::gpu::simt::Here().grid_dim)

#define GDN_GPU_VENDOR "host"

namespace gdn::gpu {
namespace simt {

// The host executor's Dot2. LLVM's text says that gfx906 flushes subnormal float32; its rounding is a guess. Tests set
// other variants, and functions that are no variant, before they make a backend.
inline constexpr Dot2Variant kHostDot2{Dot2Rounding::kLowFirst, /*flushes_floats=*/true};
inline float HostDot2(uint32_t a, uint32_t b, float c) { return Dot2As(kHostDot2, a, b, c); }
inline float (*host_dot2)(uint32_t a, uint32_t b, float c) = HostDot2;

}  // namespace simt

// Wave widths that kernels are compiled for.
using WaveWidths = std::integer_sequence<int, 64, 32>;

using std::max;
using std::min;

inline float BitsToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t FloatToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FromF16(uint16_t bits) { return F16ToFloat(bits); }
inline uint16_t ToF16(float value) { return FloatToF16(value); }

// The C library's fmaf, in place: kernels spend a third of their time in calls of it. Both round once, to equal bits.
inline float fmaf(float a, float b, float c) {
#if defined(__x86_64__)
  if (simt::has_fma) [[likely]] {
    asm("vfmadd213ss %2, %1, %0" : "+x"(a) : "x"(b), "x"(c));
    return a;
  }
#endif
  return ::fmaf(a, b, c);
}
// sum[0 .. 3] += a * b, each as fmaf adds it: tiles of products are most of what the executor computes.
inline void FmaEach(float a, const Vec4& b, float* sum) {
#if defined(__x86_64__)
  if (simt::has_fma) [[likely]] {
    using Floats = float __attribute__((vector_size(16)));
    Floats result = {a, a, a, a}, factors, addends;
    std::memcpy(&factors, &b, sizeof(factors));
    std::memcpy(&addends, sum, sizeof(addends));
    asm("vfmadd213ps %2, %1, %0" : "+x"(result) : "x"(factors), "x"(addends));
    std::memcpy(sum, &result, sizeof(result));
    return;
  }
#endif
  sum[0] = ::fmaf(a, b.x, sum[0]);
  sum[1] = ::fmaf(a, b.y, sum[1]);
  sum[2] = ::fmaf(a, b.z, sum[2]);
  sum[3] = ::fmaf(a, b.w, sum[3]);
}

// BiasedByte: kByteBias + byte number kByte (0 lowest) of a word, as float. WidenE4M3: the values of four E4M3 bytes,
// the lowest first, divided by kE4M3Unit. If any of them is NaN, at least one result is NaN, maybe another byte's.
inline constexpr float kByteBias = 32768.0f;
inline constexpr float kE4M3Unit = 256.0f;
template <int kByte>
float BiasedByte(uint32_t word) {
  return BitsToFloat(0x47000000u | ((word >> (8 * kByte)) & 0xffu) << 8);
}
// SelectBytes: the word whose byte i is byte number `selectors` byte i, 0 to 7, of the eight bytes of `low` and `high`,
// low's lowest byte first.
inline uint32_t SelectBytes(uint32_t low, uint32_t high, uint32_t selectors) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t selected = 0;
  for (int i = 0; i < 4; ++i) {
    selected |= static_cast<uint32_t>(bytes >> 8 * (selectors >> 8 * i & 7u) & 0xffu) << 8 * i;
  }
  return selected;
}
// Dot4: c plus the products of the words' four bytes, each as a signed number, with the byte of the same place.
inline int32_t Dot4(uint32_t a, uint32_t b, int32_t c) {
  for (int i = 0; i < 4; ++i) c += int32_t{static_cast<int8_t>(a >> 8 * i)} * static_cast<int8_t>(b >> 8 * i);
  return c;
}
// Dot2: c plus the products of the words' low and of their high fp16 numbers, as simt::host_dot2 does.
// HalvesOf: the fp16 numbers nearest to `low` and `high` times a power of two; `low` is in the word's low half.
inline float Dot2(uint32_t a, uint32_t b, float c) { return simt::host_dot2(a, b, c); }
inline uint32_t HalvesOf(float low, float high, float scale) {
  return ToF16(low * scale) | uint32_t{ToF16(high * scale)} << 16;
}
// SubtractHalves: the differences of the words' low and of their high fp16 numbers, rounded.
inline uint32_t SubtractHalves(uint32_t a, uint32_t b) {
  const auto of = [](uint32_t word, int half) { return FromF16(static_cast<uint16_t>(word >> (16 * half))); };
  return HalvesOf(of(a, 0) - of(b, 0), of(a, 1) - of(b, 1), 1.0f);
}
inline void WidenE4M3(uint32_t word, float (&values)[4]) {
  const uint32_t even = E4M3EvenHalves(word);
  const uint32_t odd = E4M3OddHalves(word);
  values[0] = HasE4M3NaN(word) ? BitsToFloat(0x7fc00000u) : FromF16(static_cast<uint16_t>(even));
  values[1] = FromF16(static_cast<uint16_t>(odd));
  values[2] = FromF16(static_cast<uint16_t>(even >> 16));
  values[3] = FromF16(static_cast<uint16_t>(odd >> 16));
}

// FenceLoads: keeps the compiler from moving loads over this place, to bound the registers that they take; no
// instruction. NotHoisted: returns the value; what is computed from it is computed anew at each call, and takes no
// register between calls in a loop. OfWave: returns a number that all lanes of the wave have; what is computed from it
// takes no vector instructions, if the device has others.
inline void FenceLoads() {}
inline uint32_t NotHoisted(uint32_t value) { return value; }
inline int32_t OfWave(int32_t value) { return value; }

// Load or store four floats. A misaligned address faults on a GPU, so here it ends the launch with an error.
inline Vec4 Load4(const float* p) {
  simt::RequireAligned(p, 16);
  return *reinterpret_cast<const Vec4*>(p);
}
inline void Store4(float* p, const Vec4& v) {
  simt::RequireAligned(p, 16);
  *reinterpret_cast<Vec4*>(p) = v;
}

// An LDS element: converts to its value and can be assigned; both are checked.
template <typename T>
class LdsElement {
 public:
  LdsElement(T& value, simt::LdsShadow* shadow) : value_(value), shadow_(shadow) {}
  LdsElement(const LdsElement&) = default;
  operator T() const {  // NOLINT(google-explicit-constructor): stands in for a T
    simt::CheckLdsReads<1>(shadow_);
    return value_;
  }
  const LdsElement& operator=(T value) const {
    simt::CheckLdsWrite(*shadow_);
    value_ = value;
    return *this;
  }
  const LdsElement& operator=(const LdsElement& other) const { return *this = static_cast<T>(other); }
  const LdsElement& operator+=(T value) const { return *this = static_cast<T>(*this) + value; }
  const LdsElement& operator-=(T value) const { return *this = static_cast<T>(*this) - value; }
  const LdsElement& operator*=(T value) const { return *this = static_cast<T>(*this) * value; }

 private:
  T& value_;
  simt::LdsShadow* shadow_;
};

template <typename T, int kCount>
class LdsArray {
 public:
  LdsElement<T> operator[](int i) {
    simt::RequireLdsIndex(i, 1, kCount);
    return {data_[i], &shadow_[i]};
  }
  Vec2 Load2(int i) {
    simt::RequireLdsIndex(i, 2, kCount);
    simt::RequireAligned(&data_[i], 2 * sizeof(T));
    simt::CheckLdsReads<2>(&shadow_[i]);
    return {data_[i], data_[i + 1]};
  }
  Vec4 Load4(int i) {
    static_assert(sizeof(T) == 4);
    simt::RequireLdsIndex(i, 4, kCount);
    simt::CheckLdsReads<4>(&shadow_[i]);
    return {data_[i], data_[i + 1], data_[i + 2], data_[i + 3]};
  }
  void Store4(int i, const Vec4& v) {
    simt::RequireLdsIndex(i, 4, kCount);
    (*this)[i] = v.x;
    (*this)[i + 1] = v.y;
    (*this)[i + 2] = v.z;
    (*this)[i + 3] = v.w;
  }
  // CopyAsync16's part.
  void QueueCopy(int i, const Vec4& v) {
    static_assert(std::is_same_v<T, float>);
    simt::RequireLdsIndex(i, 4, kCount);
    const float values[4] = {v.x, v.y, v.z, v.w};
    for (int c = 0; c < 4; ++c) simt::QueueCopy(data_[i + c], shadow_[i + c], values[c]);
  }

 private:
  alignas(16) T data_[kCount];
  simt::LdsShadow shadow_[kCount];
};

// Returns the block's LDS, one T that all its lanes share: poisoned and marked unwritten for each block.
template <typename T>
T& SharedMemory() {
  return *static_cast<T*>(simt::BlockSharedMemory(sizeof(T), alignof(T), [](void* memory) { new (memory) T; }));
}

// The LDS of Grid::lds_bytes.
template <typename T>
T& LaunchedSharedMemory() {
  return SharedMemory<T>();
}

// Copies of 16 bytes from device memory to LDS that do not wait. CopyAsync16 copies `from`, 4 floats, to elements `at`
// to at + 3 of `to`, both 16-byte aligned; zeros if not `valid`, and then `from` is not read. CommitCopies ends a group
// of a lane's copies. WaitForCopies waits for the lane's groups, all but the kNewest latest; barriers do the rest.
// Here a copy arrives when it is waited for, and until then its elements count as never written.
template <typename Array>
void CopyAsync16(Array& to, int at, const float* from, bool valid = true) {
  to.QueueCopy(at, valid ? Load4(from) : Vec4{0.0f, 0.0f, 0.0f, 0.0f});
}
inline void CommitCopies() { simt::CommitCopies(); }
template <int kNewest>
void WaitForCopies() {
  simt::WaitForCopies(kNewest);
}

inline void SyncThreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  simt::BlockBarrier({file, line});
}
inline void WaveBarrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  simt::WaveFence({file, line});
}

// ShowToHost: the host sees this lane's earlier stores before those of StoreForHost that follow it, also of other lanes
// if a barrier is between. StoreForHost: stores to page-locked memory that the host reads with acquire order.
inline void ShowToHost() {}
inline void StoreForHost(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

// As vendor_hip.h and vendor_shared.h say.
inline uint32_t TakeNumber(uint32_t* counter) { return __atomic_fetch_add(counter, 1u, __ATOMIC_RELAXED); }
inline uint32_t ArriveAt(uint32_t* counter) { return __atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL); }
inline void ShowToBlocks() {}
inline void StoreForBlocks(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline uint32_t PeekAt(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline void AwaitBlocks(const uint32_t* word, uint32_t value, uint32_t seen) {
  while (seen != value) seen = PeekAt(word);
}
inline float LoadFromBlocks(const float* p) { return *p; }

// Kernels run one after another, so there is nothing to wait for; the executor only checks that kernels with
// Grid::early call WaitForPriorKernels.
inline void WaitForPriorKernels() { simt::NoteWait(); }
inline void LetNextKernelBegin() {}

template <int kWave, int kCtrl>
float UpdateDpp(float /*old*/, float source, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const simt::WaveValues values = simt::Exchange<kWave>(FloatToBits(source), {file, line});
  return BitsToFloat(values.At(DppSource(kCtrl, values.lane)));
}
template <int kWave, int kPattern>
float DsSwizzle(float value, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const simt::WaveValues values = simt::Exchange<kWave>(FloatToBits(value), {file, line});
  return BitsToFloat(values.At(SwizzleSource(kPattern, values.lane)));
}
template <int kWave>
float Bpermute(int lane, float value, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return BitsToFloat(simt::Exchange<kWave>(FloatToBits(value), {file, line}).At(lane & (kWave - 1)));
}

// Matrix units, where Stream::matrix_units is set: D += A B, D with 16 x 8 elements. All 32 lanes call, each with its
// part of the matrices; lane l has g = l / 4 and q = l % 4.
//   d[0], d[1]: D[g][2 q], D[g][2 q + 1]; d[2], d[3]: the same of row g + 8.
//   MmaBf16, A 16 x 16, B 16 x 8, two bfloat16 a word, the lower column of A (row of B) in the lower half:
//     a[0], a[1]: A[g], A[g + 8] at columns 2 q and 2 q + 1; a[2], a[3]: at columns 2 q + 8 and 2 q + 9.
//     b[0], b[1]: B at rows 2 q and 2 q + 1, 2 q + 8 and 2 q + 9, of column g.
//   MmaTf32, A 16 x 8, B 8 x 8, a number of ToTf32 a word:
//     a[0], a[1]: A[g], A[g + 8] at column q; a[2], a[3]: at column q + 4.  b[0], b[1]: B at rows q, q + 4 of column g.
// Products are exact; their sum with D's element is truncated, not rounded, at a place that the device chooses.
// ToTf32 rounds to TF32's 11 significant bits (nearest, ties away from zero); the bits are those of a float.
// Here the sum is exact, and then truncated to a float.
namespace simt {
// Operands of an Mma, by lane.
struct MmaWords {
  uint32_t a[32][4];
  uint32_t b[32][2];
};
template <int kWave>
MmaWords ExchangeMma(const uint32_t (&a)[4], const uint32_t (&b)[2], CallSite site) {
  static_assert(kWave == 32);
  MmaWords all;
  for (int i = 0; i < 4; ++i) {
    const WaveValues values = Exchange<kWave>(a[i], site);
    for (int lane = 0; lane < kWave; ++lane) all.a[lane][i] = values.At(lane);
  }
  for (int i = 0; i < 2; ++i) {
    const WaveValues values = Exchange<kWave>(b[i], site);
    for (int lane = 0; lane < kWave; ++lane) all.b[lane][i] = values.At(lane);
  }
  return all;
}
inline float Truncated(double sum) {
  const auto nearest = static_cast<float>(sum);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(sum) ? std::nextafter(nearest, 0.0f) : nearest;
}
inline float Bf16Half(uint32_t word, int half) { return BitsToFloat(half == 0 ? word << 16 : word & 0xffff0000u); }
}  // namespace simt
template <int kWave>
void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const char* file = __builtin_FILE(),
             int line = __builtin_LINE()) {
  const int lane = static_cast<int>(threadIdx.x) % kWave;
  const simt::MmaWords all = simt::ExchangeMma<kWave>(a, b, {file, line});
  for (int i = 0; i < 4; ++i) {
    double sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const int part = k / 8 * 2 + i / 2;  // of a
      const float of_a = simt::Bf16Half(all.a[lane / 4 * 4 + k % 8 / 2][part], k % 2);
      const float of_b = simt::Bf16Half(all.b[(lane % 4 * 2 + i % 2) * 4 + k % 8 / 2][k / 8], k % 2);
      sum += static_cast<double>(of_a) * of_b;
    }
    d[i] = simt::Truncated(sum);
  }
}
template <int kWave>
void MmaTf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const char* file = __builtin_FILE(),
             int line = __builtin_LINE()) {
  const int lane = static_cast<int>(threadIdx.x) % kWave;
  const simt::MmaWords all = simt::ExchangeMma<kWave>(a, b, {file, line});
  for (int i = 0; i < 4; ++i) {
    double sum = d[i];
    for (int k = 0; k < 8; ++k) {
      const uint32_t of_a = all.a[lane / 4 * 4 + k % 4][k / 4 * 2 + i / 2] & 0xffffe000u;
      const uint32_t of_b = all.b[(lane % 4 * 2 + i % 2) * 4 + k % 4][k / 4] & 0xffffe000u;
      sum += static_cast<double>(BitsToFloat(of_a)) * BitsToFloat(of_b);
    }
    d[i] = simt::Truncated(sum);
  }
}
inline uint32_t ToTf32(float value) {
  const uint32_t bits = FloatToBits(value);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return finite ? (bits + 0x1000u) & 0xffffe000u : bits;
}

// LoadMatrices: loads four 8 x 8 matrices of 16-bit elements from LDS. Lane l's `at` is the index of the 16 bytes that
// hold row l % 8 of matrix l / 8. It gets, as words[i], elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix i.
// All lanes call.
template <int kWave, typename Lds>
void LoadMatrices(Lds& lds, int at, uint32_t (&words)[4], const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  static_assert(kWave == 32);
  const simt::WaveValues rows = simt::Exchange<kWave>(static_cast<uint32_t>(at), {file, line});
  for (int i = 0; i < 4; ++i) {
    words[i] = FloatToBits(lds[static_cast<int>(rows.At(i * 8 + rows.lane / 4)) + rows.lane % 4]);
  }
}

// No unit reads LDS itself: mma_tile.h.
inline constexpr bool kHasTileUnits = false;
template <int kBs>
void IssueTile(float (&d)[kBs][4], const void* a, const void* b, bool add);
template <int kBs>
void WaitForIssuedTile(float (&d)[kBs][4]);
inline void ShowCopiesToTileUnits() {}

template <typename... Params, typename... Args>
absl::Status LaunchKernel(const char* name, void (*kernel)(Params...), const Grid& blocks, int threads,
                          const Stream& stream, const Args&... args) {
  const simt::Dim3 grid{static_cast<unsigned>(blocks.x), static_cast<unsigned>(blocks.y),
                        static_cast<unsigned>(blocks.z)};
  // Arguments are copied as the kernel's parameters now, as in a device's launch.
  return simt::EnqueueLaunch(
      stream, name,
      [=, width = stream.wave_width, early = blocks.early, params = std::tuple<std::decay_t<Params>...>(args...)] {
        return simt::RunGrid(
            name, grid, threads, width, [&] { std::apply(kernel, params); }, early);
      });
}

}  // namespace gdn::gpu
