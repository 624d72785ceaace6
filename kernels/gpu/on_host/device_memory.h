// Registry of the memory that the host executor's runtime gave out, live or freed.
//
// Thread safety: any thread. Ownership: the registry's entries are shared with copies in flight; the bytes are freed by
// ReleaseMemory.
//
//   GDN_ASSIGN_OR_RETURN(void* data, AllocateMemory(MemoryKind::kPinned, bytes));
//   ReleaseMemory(*ForgetMemory(data));
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace gdn::gpu::simt {

enum class MemoryKind : uint8_t { kDevice, kPinned };

struct Allocation {
  char* data = nullptr;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  const void* device = nullptr;    // HostDevice of kDevice memory, only compared; nullptr if streams run synchronously
  std::atomic<bool> freed{false};  // true after ForgetMemory
};

// Returns 256-byte aligned, uninitialised memory and registers it; the caller ends it with ForgetMemory and
// ReleaseMemory. 0 bytes are valid. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if there is not enough.
absl::StatusOr<void*> AllocateMemory(MemoryKind kind, size_t bytes, const void* device = nullptr);
// Returns the live allocation that contains all of [data, data + bytes); null if there is none.
std::shared_ptr<const Allocation> FindMemory(const void* data, size_t bytes);
// Removes the allocation from the registry, marks it freed and returns it; its bytes stay until ReleaseMemory. Aborts
// the process if no live allocation begins at `data`.
std::shared_ptr<Allocation> ForgetMemory(void* data);
void ReleaseMemory(Allocation& memory);

// Sets each byte to 0xff, so that floats nobody has written since are NaN. PoisonIsWhole: true if all bytes still are
// so.
void PoisonMemory(void* data, size_t bytes);
bool PoisonIsWhole(const Allocation& memory);

}  // namespace gdn::gpu::simt
