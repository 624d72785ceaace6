// Lets this process write files only up to a size, as where a file system is full: writes beyond it are refused.
//
// Thread safety: of the whole process, so one at a time. Ownership: the destructor takes the limit back.
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
