// Launches kernels: checks the grid, chooses the wave width, and returns a Status.
//
// Thread safety: as gpu/stream.h. Arguments are copied at the launch; they must not contain pointers to host memory
// that is not page-locked.
//
//   return WithWaveWidth(stream, "gating", [&](auto wave) {
//     return Launch("gating", GatingKernel<wave()>, {blocks}, kThreads, stream, params);
//   });
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/grid.h"
#include "kernels/gpu/stream.h"

namespace gdn::gpu {

constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// True if all addresses are multiples of 16 bytes, to choose between a kernel's vector and scalar paths. A null pointer
// counts as aligned.
template <typename... Pointers>
bool Aligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// Returns the number of blocks for `elements` elements, `per_block` each, but at most 16 for each processor, which
// fills the device several times over; kernels stride over the rest. 0 if there are no elements.
inline int64_t StridedBlocks(int64_t elements, int64_t per_block, const Stream& stream) {
  const int64_t needed = CeilDivide(elements, per_block);
  const int64_t enough = int64_t{stream.processors} * 16;
  return needed < enough ? needed : enough;
}

// Launches `kernel` on `stream` with `threads` threads a block, and may return before it has run; a grid without blocks
// launches nothing. `name` is for errors and must be a literal. INVALID_ARGUMENT if the grid is too large for a device.
// UNAVAILABLE (DEVICE_FAILED) if the device refuses the launch, RESOURCE_EXHAUSTED if memory for it is short. A later
// synchronisation reports errors inside the kernel.
template <typename... Params, typename... Args>
absl::Status Launch(const char* name, void (*kernel)(Params...), const Grid& grid, int threads, const Stream& stream,
                    const Args&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return absl::OkStatus();
  constexpr int64_t kMaxX = 0x7fffffff;
  constexpr int64_t kMaxYZ = 65535;
  if (grid.x > kMaxX || grid.y > kMaxYZ || grid.z > kMaxYZ) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
        absl::StrCat(name, ": a grid of ", grid.x, " x ", grid.y, " x ", grid.z, " blocks; a device takes at most ",
                     kMaxX, " x ", kMaxYZ, " x ", kMaxYZ, ": give it fewer rows a call"),
        {{"field", name}});
  }
  return LaunchKernel(name, kernel, grid, threads, stream, args...);
}

namespace internal {
template <typename Function, int... kWidths>
absl::Status WithWaveWidth(const Stream& stream, const char* name, Function&& function,
                           std::integer_sequence<int, kWidths...>) {
  absl::Status status;
  const bool has_kernels =
      ((stream.wave_width == kWidths && (status = function(std::integral_constant<int, kWidths>()), true)) || ...);
  if (has_kernels) return status;
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDeviceUnsupported,
                   absl::StrCat(name, ": this build has no kernels for waves of ", stream.wave_width,
                                " lanes; build for the device at hand"),
                   {{"field", name}});
}
}  // namespace internal

// Calls function(std::integral_constant<int, width>) with the stream's wave width, and returns its status.
// FAILED_PRECONDITION (DEVICE_UNSUPPORTED), naming `name`, if this build has no kernels for that width.
template <typename Function>
absl::Status WithWaveWidth(const Stream& stream, const char* name, Function&& function) {
  return internal::WithWaveWidth(stream, name, std::forward<Function>(function), WaveWidths());
}

}  // namespace gdn::gpu
