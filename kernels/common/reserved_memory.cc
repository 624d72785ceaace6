#include "kernels/common/reserved_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/files/fresh_mapping.h"

namespace gdn {
namespace {

// Allocations from here on ask for huge pages: weights are read end to end and slots are this large, so fewer TLB
// misses cost nothing.
constexpr size_t kHugePagesFrom = size_t{4} << 20;

// munmap takes whole pages, mmap no empty ranges.
size_t MappedBytes(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::max(page, (bytes + page - 1) / page * page);
}

// The number in `path`, or `otherwise` where there is no such file or it says "max".
int64_t ReadLimit(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  std::string word;
  int64_t value = 0;
  return file >> word && absl::SimpleAtoi(word, &value) && value > 0 ? value : otherwise;
}

int64_t ReadMemoryLimit() {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  // Inside a container its own group is mounted as the root: the first path is version 2's, the second version 1's.
  return std::min({machine, ReadLimit("/sys/fs/cgroup/memory.max", machine),
                   ReadLimit("/sys/fs/cgroup/memory/memory.limit_in_bytes", machine)});
}

absl::Status Exhausted(size_t bytes) {
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                   absl::StrCat("no ", bytes, " bytes of host memory; this process may use ", HostMemoryBytes(),
                                ". Ask for fewer sessions or raise the memory limit"),
                   {{"bytes", absl::StrCat(bytes)}});
}

}  // namespace

int64_t HostMemoryBytes() {
  static const int64_t bytes = ReadMemoryLimit();
  return bytes;
}

absl::StatusOr<void*> HostAllocate(size_t bytes) {
  if (bytes > static_cast<size_t>(HostMemoryBytes())) return Exhausted(bytes);
  void* data =
      mmap(nullptr, MappedBytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return Exhausted(bytes);
  ForgetOldMarks(data, MappedBytes(bytes));
  if (bytes >= kHugePagesFrom)
    madvise(data, MappedBytes(bytes), MADV_HUGEPAGE);  // a wish; a kernel without them refuses
  return data;
}

void HostFree(void* data, size_t bytes) {
  if (data != nullptr) munmap(data, MappedBytes(bytes));
}

}  // namespace gdn
