// Whether addresses allow 16-byte accesses: a launcher's choice between a kernel's vector and scalar paths.
//
// Thread safety: pure functions. A null pointer counts as aligned.
//
//   const bool vector = dim % 4 == 0 && Aligned16(x, y);
#pragma once

#include <cstdint>

namespace gdn::gpu {

template <typename... Pointers>
bool Aligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace gdn::gpu
