// The file of a shared-memory region. A client on this host and the server both write and read its bytes.
//
// The server makes the file and never maps it. It copies bytes by pread and pwrite, so a client that truncates,
// overwrites or unlinks the file harms only itself.
// Thread safety: const methods from any thread; Unlink once, while nobody destroys the region. Ownership: owns the
// file, which is removed with the object, and a lock on the file which says that its server lives.
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

// Names of regions, which are the names of their files, begin with this.
inline constexpr std::string_view kSharedRegionPrefix = "gdn-shm-";

class SharedRegion {
 public:
  // Makes a file of `bytes` (1 or more) bytes in `directory`, which only this user may open, and allocates all of its
  // space at once. RESOURCE_EXHAUSTED (SHARED_MEMORY_EXHAUSTED) if the system refuses.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Make(const std::string& directory, int64_t bytes);
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  // Closes the file, and removes it unless Unlink already has.
  ~SharedRegion();

  const std::string& name() const { return name_; }  // random, so that nobody can guess it
  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }

  // Returns OK if the `bytes` bytes from `offset` on are inside the region, also if they are none. Else
  // INVALID_ARGUMENT (INVALID_SHARED_RANGE: region, found, expected). Does not look at the file.
  absl::Status CheckRange(int64_t offset, int64_t bytes) const;
  // Returns OK if the file has at least `end` bytes now. Else INVALID_ARGUMENT (SHARED_MEMORY_TRUNCATED: region).
  absl::Status CheckSize(int64_t end) const;
  // Copies to.size() bytes that are at `offset` now. The range must be inside the region (CheckRange). INVALID_ARGUMENT
  // (SHARED_MEMORY_TRUNCATED: region) if the file ends before the range does; a part may then have been copied.
  absl::Status Read(int64_t offset, absl::Span<char> to) const;
  // Writes bytes at `offset`. The range must be inside the region (CheckRange). RESOURCE_EXHAUSTED
  // (SHARED_MEMORY_EXHAUSTED) if the system refuses; a part may then have been written.
  absl::Status Write(int64_t offset, std::string_view from) const;
  // Removes the file's name, so that nobody can open it any more. Processes that have the file open or mapped keep its
  // bytes. Does nothing the second time.
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
