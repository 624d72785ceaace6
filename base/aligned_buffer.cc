#include "base/aligned_buffer.h"

#include <cstdlib>
#include <cstring>
#include <limits>

namespace gdn {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

void* AlignedAllocate(size_t bytes) {
  if (bytes == 0 || bytes > std::numeric_limits<size_t>::max() - kAlignment) return nullptr;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;  // aligned_alloc asks for a multiple
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data != nullptr) std::memset(data, 0, rounded);
  return data;
}

void AlignedFree(void* data) { std::free(data); }

}  // namespace gdn
