// Simulates a full file system: while the object lives, this program's calls that need space, inodes or descriptors
// below a folder fail, either one of them or all from that one on. The linker redirects the calls (--wrap in
// tests/integration/CMakeLists.txt), so the tested code is not changed.
//
// Thread safety: one object at a time; calls from any thread. Ownership: plain.
//
//   FullDisk full({.lacks = FullDisk::Lacks::kSpace, .folder = folder.path(), .after = 3});  // three more succeed
//   ...
//   full.Free();  // there is room again
//   EXPECT_GT(full.calls(), 3);  // one has failed
#pragma once

#include <cstdint>
#include <string>

namespace gdn {

class FullDisk {
 public:
  enum class Lacks {
    kSpace,        // ENOSPC of writes, reservations and syncs
    kInodes,       // ENOSPC of new files and folders
    kDescriptors,  // EMFILE of every open
  };
  struct Options {
    Lacks lacks = Lacks::kSpace;
    std::string folder;
    int64_t after = 0;  // calls that succeed before the first that fails
    bool once = false;  // only that one fails
  };

  explicit FullDisk(const Options& options);
  ~FullDisk() { Free(); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

  void Free();
  // Returns the number of such calls until Free.
  int64_t calls() const;
};

}  // namespace gdn
