// A disk that stands still: while one lives, this program's pread and fsync do not return. The linker leads both here
// (--wrap in tests/integration/CMakeLists.txt), so code under test is as it is served.
//
// Thread safety: one lives at a time; calls from any thread. Ownership: plain.
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
  // The most calls that have waited at the same time.
  int64_t most_waiting() const;
};

}  // namespace gdn
