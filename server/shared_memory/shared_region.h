// The file of a shared-memory region: bytes that a client of this host and the server both write and read.
//
// The server makes the file and never maps it: bytes are copied by pread and pwrite, so that a client that truncates,
// overwrites or unlinks the file can harm nobody but itself.
// Thread safety: const methods from any thread; Unlink once, while nobody destroys it. Ownership: owns the file, which
// goes with it, and a lock on it that says that its server lives.
//
//   GDN_ASSIGN_OR_RETURN(auto region, SharedRegion::Make("/dev/shm", 1 << 20));
//   GDN_RETURN_IF_ERROR(region->CheckRange(offset, size));
//   GDN_RETURN_IF_ERROR(region->Read(offset, {buffer, size}));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gdn {

// Regions' names, which are those of their files, begin with it.
inline constexpr std::string_view kSharedRegionPrefix = "gdn-shm-";

class SharedRegion {
 public:
  // A new file of `bytes` bytes in `directory`, for which all room is taken at once. RESOURCE_EXHAUSTED
  // (SHARED_MEMORY_EXHAUSTED) where the system refuses.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Make(const std::string& directory, int64_t bytes);
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  // Closes the file, and removes it where Unlink has not.
  ~SharedRegion();

  const std::string& name() const { return name_; }  // unguessable
  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }

  // INVALID_ARGUMENT (INVALID_SHARED_RANGE: region, found, expected) where the range is not inside the region.
  absl::Status CheckRange(int64_t offset, int64_t bytes) const;
  // INVALID_ARGUMENT (SHARED_MEMORY_TRUNCATED: region) where the file does not reach to `end` any more.
  absl::Status CheckSize(int64_t end) const;
  // Copies out what is at `offset` now. The range must be inside the region. INVALID_ARGUMENT (SHARED_MEMORY_TRUNCATED:
  // region) where the file has no such bytes any more.
  absl::Status Read(int64_t offset, absl::Span<char> to) const;
  // Copies in. The range must be inside the region. RESOURCE_EXHAUSTED (SHARED_MEMORY_EXHAUSTED) where the system
  // refuses: a part may have been written.
  absl::Status Write(int64_t offset, std::string_view from) const;
  // Takes the file's name away; its bytes stay with who has it open or mapped.
  void Unlink();

 private:
  SharedRegion(std::string name, std::string path, int64_t bytes, int fd);
  absl::Status Truncated(int64_t end) const;

  const std::string name_;
  const std::string path_;
  const int64_t bytes_;
  const int fd_;
  bool linked_ = true;
};

using SharedRegionPtr = std::shared_ptr<const SharedRegion>;

}  // namespace gdn
