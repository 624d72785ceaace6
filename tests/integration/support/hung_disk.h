// Simulates a disk that hangs: while the object lives, this program's pread and fsync do not return. The linker
// redirects both (--wrap in tests/integration/CMakeLists.txt), so the tested code is not changed.
//
// Thread safety: one object at a time; calls from any thread. Ownership: plain.
//
//   HungDisk disk;
//   EXPECT_LE(disk.most_waiting(), 4);
//   disk.Release();  // the calls go on
#pragma once

#include <cstdint>

namespace gdn {

class HungDisk {
 public:
  HungDisk();
  ~HungDisk();
  HungDisk(const HungDisk&) = delete;
  HungDisk& operator=(const HungDisk&) = delete;

  void Release();
  // Returns the most calls that have waited at the same time.
  int64_t most_waiting() const;
};

}  // namespace gdn
