#include "base/task/frame_pool.h"

#include <array>
#include <cstdint>
#include <mutex>
#include <new>
#include <type_traits>

#include "base/task/executor.h"

namespace gdn {
namespace {

constexpr size_t kStep = 64;  // bytes between two sizes
constexpr size_t kSizes = 64;
constexpr uint32_t kMostOfThread = 32;  // blocks of a size
constexpr uint32_t kHandedOver = kMostOfThread / 2;
constexpr size_t kMostShared = size_t{256} << 10;  // bytes of a size

struct Block {
  Block* next;
};

struct FreeList {
  Block* first = nullptr;
  uint32_t count = 0;

  void Push(Block* block) {
    block->next = first;
    first = block;
    ++count;
  }
  Block* Pop() {
    Block* block = first;
    if (block == nullptr) return nullptr;
    first = block->next;
    --count;
    return block;
  }
};

struct SharedList {
  std::mutex mu;
  FreeList blocks;  // guarded by mu
};

constexpr size_t SizeOf(size_t index) { return (index + 1) * kStep; }
constexpr size_t IndexOf(size_t bytes) { return bytes == 0 ? 0 : (bytes - 1) / kStep; }

// Without a destructor, because frames may be freed while the process ends.
constinit std::array<SharedList, kSizes> g_shared;
static_assert(std::is_trivially_destructible_v<decltype(g_shared)>);

// The calling thread's blocks. It has no destructor, so that it can be used until the thread is gone.
struct ThreadLists {
  enum class State : uint8_t { kNew, kOpen, kClosed } state = State::kNew;
  std::array<FreeList, kSizes> lists;
};
thread_local ThreadLists t_lists;

void* FromHeap(size_t bytes) {
  void* block = ::operator new(bytes, std::nothrow);
  if (block == nullptr) EndProcess("no memory is left for a coroutine's frame");
  return block;
}

void HandOver(size_t index, uint32_t count) {
  FreeList surplus;
  {
    SharedList& shared = g_shared[index];
    const std::lock_guard lock(shared.mu);
    for (; count > 0; --count) {
      const bool full = (shared.blocks.count + 1) * SizeOf(index) > kMostShared;
      (full ? surplus : shared.blocks).Push(t_lists.lists[index].Pop());
    }
  }
  while (Block* block = surplus.Pop()) ::operator delete(block);
}

// Closes the thread's lists at its end.
struct Closer {
  Closer() { t_lists.state = ThreadLists::State::kOpen; }
  ~Closer() {
    t_lists.state = ThreadLists::State::kClosed;
    for (size_t i = 0; i < kSizes; ++i) HandOver(i, t_lists.lists[i].count);
  }
};

// False while the thread ends.
bool Open() {
  if (t_lists.state == ThreadLists::State::kNew) static thread_local const Closer closer;
  return t_lists.state == ThreadLists::State::kOpen;
}

}  // namespace

void* AllocateFromPool(size_t bytes) {
  const size_t index = IndexOf(bytes);
  if (index >= kSizes) return FromHeap(bytes);
  if (!Open()) return FromHeap(SizeOf(index));
  FreeList& own = t_lists.lists[index];
  if (own.count == 0) {
    SharedList& shared = g_shared[index];
    const std::lock_guard lock(shared.mu);
    while (own.count < kHandedOver && shared.blocks.count > 0) own.Push(shared.blocks.Pop());
  }
  Block* block = own.Pop();
  return block != nullptr ? block : FromHeap(SizeOf(index));
}

void FreeToPool(void* block, size_t bytes) noexcept {
  const size_t index = IndexOf(bytes);
  if (index >= kSizes || !Open()) return ::operator delete(block);
  FreeList& own = t_lists.lists[index];
  if (own.count == kMostOfThread) HandOver(index, kHandedOver);
  own.Push(new (block) Block);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
void* AllocateFrame(size_t bytes) { return FromHeap(bytes); }
void FreeFrame(void* block, size_t /*bytes*/) noexcept { ::operator delete(block); }
#else
void* AllocateFrame(size_t bytes) { return AllocateFromPool(bytes); }
void FreeFrame(void* block, size_t bytes) noexcept { FreeToPool(block, bytes); }
#endif

}  // namespace gdn
