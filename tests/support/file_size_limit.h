// Limits the size of files that this process may write, to simulate a full file system: writes beyond it fail.
//
// Thread safety: applies to the whole process, so one at a time. Ownership: the destructor restores the earlier limit.
//
//   const FileSizeLimit limit(4096);
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <cstdint>

#include "gtest/gtest.h"

namespace gdn {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(int64_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(bytes);
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, signal_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*signal_)(int);
};

}  // namespace gdn
