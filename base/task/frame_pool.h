// Memory for coroutine frames and for the small objects beside them, reused so that a steady flow allocates nothing.
//
// Each thread keeps free blocks by size, in steps of 64 bytes up to 4 KiB. A thread that frees more than it allocates
// hands blocks over, 16 at a time, to a pool that all threads share. Both are bounded: 32 blocks of a size for a
// thread, 256 KiB of a size for the pool. Larger blocks, and all blocks in builds with AddressSanitizer or
// ThreadSanitizer, come from the heap, so that these tools see each use after free.
// If no memory is left, the process ends with a message: a coroutine has no way to report it.
// Thread safety: from any thread; a block may be freed on another thread than the one that allocated it.
//
//   void* block = AllocateFrame(200);
//   FreeFrame(block, 200);
#pragma once

#include <cstddef>

namespace gdn {

// Returns a block of at least `bytes` bytes, aligned to 16 bytes. Never null: if memory is exhausted, the process ends.
void* AllocateFrame(size_t bytes);
// Frees a block of AllocateFrame. `bytes` is the number that AllocateFrame was called with.
void FreeFrame(void* block, size_t bytes) noexcept;

// Like AllocateFrame and FreeFrame, but with the pool in builds with sanitizers too, so that tests can test it in any
// build.
void* AllocateFromPool(size_t bytes);
void FreeToPool(void* block, size_t bytes) noexcept;

// Allocator on AllocateFrame, for std::allocate_shared.
template <typename T>
struct FrameAllocator {
  using value_type = T;
  FrameAllocator() = default;
  template <typename U>
  FrameAllocator(const FrameAllocator<U>&) {}  // NOLINT(google-explicit-constructor)
  T* allocate(size_t count) { return static_cast<T*>(AllocateFrame(count * sizeof(T))); }
  void deallocate(T* block, size_t count) { FreeFrame(block, count * sizeof(T)); }
  friend bool operator==(const FrameAllocator&, const FrameAllocator&) { return true; }
};

}  // namespace gdn
