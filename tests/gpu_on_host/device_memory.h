// The memory that the host executor's runtime gave out: what lies where, and what was freed.
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
  const void* device = nullptr;    // whose it is, of kDevice; nullptr where streams run at once
  std::atomic<bool> freed{false};  // ForgetMemory was called
};

// 256-byte aligned. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where there is not enough.
absl::StatusOr<void*> AllocateMemory(MemoryKind kind, size_t bytes, const void* device = nullptr);
// What holds all of the range; null where nothing does, or it was freed.
std::shared_ptr<const Allocation> FindMemory(const void* data, size_t bytes);
// Takes it out of the registry, and marks it freed. Ends the program where `data` is no allocation's begin.
std::shared_ptr<Allocation> ForgetMemory(void* data);
void ReleaseMemory(Allocation& memory);

// Each byte 0xff: floats that nobody wrote since are NaN.
void PoisonMemory(void* data, size_t bytes);
bool PoisonIsWhole(const Allocation& memory);

}  // namespace gdn::gpu::simt
