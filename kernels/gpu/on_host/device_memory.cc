#include "kernels/gpu/on_host/device_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/error.h"
#include "kernels/gpu/on_host/tsan_edges.h"

namespace gdn::gpu::simt {
namespace {

constexpr size_t kAlignment = 256;  // as a GPU's allocations
constexpr unsigned char kFreshByte = 0xff;

struct Registry {
  absl::Mutex mu;
  std::map<uintptr_t, std::shared_ptr<Allocation>> allocations ABSL_GUARDED_BY(mu);  // by their begin
};

Registry& TheRegistry() {
  static auto* const registry = new Registry();  // never destroyed: streams may outlive main
  return *registry;
}

}  // namespace

absl::StatusOr<void*> AllocateMemory(MemoryKind kind, size_t bytes, const void* device) {
  void* data = nullptr;
  // No rounding up of the size: AddressSanitizer is to see the end.
  if (posix_memalign(&data, kAlignment, bytes == 0 ? 1 : bytes) != 0) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     absl::StrCat("no host memory for ", bytes, " bytes of device memory"), {});
  }
  const UnseenByTsan unseen;
  auto memory = std::make_shared<Allocation>();
  memory->data = static_cast<char*>(data);
  memory->bytes = bytes;
  memory->kind = kind;
  memory->device = device;
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mu);
  registry.allocations[reinterpret_cast<uintptr_t>(data)] = std::move(memory);
  return data;
}

std::shared_ptr<const Allocation> FindMemory(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const UnseenByTsan unseen;
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mu);
  auto after = registry.allocations.upper_bound(begin);
  if (after == registry.allocations.begin()) return nullptr;
  const std::shared_ptr<Allocation>& memory = std::prev(after)->second;
  const size_t offset = begin - reinterpret_cast<uintptr_t>(memory->data);
  return offset <= memory->bytes && bytes <= memory->bytes - offset ? memory : nullptr;
}

std::shared_ptr<Allocation> ForgetMemory(void* data) {
  const UnseenByTsan unseen;
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mu);
  const auto found = registry.allocations.find(reinterpret_cast<uintptr_t>(data));
  if (found == registry.allocations.end()) {
    std::fprintf(stderr, "host executor: %p is freed, which the runtime did not allocate or has freed before\n", data);
    std::abort();
  }
  std::shared_ptr<Allocation> memory = std::move(found->second);
  registry.allocations.erase(found);
  memory->freed.store(true, std::memory_order_relaxed);
  return memory;
}

void ReleaseMemory(Allocation& memory) { std::free(std::exchange(memory.data, nullptr)); }

void PoisonMemory(void* data, size_t bytes) { std::memset(data, kFreshByte, bytes); }

bool PoisonIsWhole(const Allocation& memory) {
  if (memory.bytes == 0) return true;
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory.data);
  return bytes[0] == kFreshByte && std::memcmp(bytes, bytes + 1, memory.bytes - 1) == 0;
}

}  // namespace gdn::gpu::simt
