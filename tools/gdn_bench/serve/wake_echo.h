// Two processes that wake each other by eventfds and do nothing else: what it costs a ring at the least that both of
// its sides sleep.
//
// Thread safety: RunWakeEcho needs a process of its own; a caller as in serve_calls.h. Ownership: WakeEcho owns its
// descriptors, its process, and a thread that waits for the process's end.
//
//   GDN_ASSIGN_OR_RETURN(const auto echo, WakeEcho::Start(self, log_file));
//   auto caller = MakeWakeCaller(*echo);
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/owned_fd.h"
#include "tools/common/child_process.h"
#include "tools/gdn_bench/serve/serve_calls.h"

namespace gdn::bench {

class WakeEcho {
 public:
  // Starts `self`, the path of this program, as the other process. UNAVAILABLE if the system has no descriptors; errors
  // of ChildProcess.
  static absl::StatusOr<std::unique_ptr<WakeEcho>> Start(const std::string& self, const std::string& log_file);
  WakeEcho(const WakeEcho&) = delete;
  ~WakeEcho();

  int request_fd() const { return request_.get(); }
  int reply_fd() const { return reply_.get(); }

 private:
  WakeEcho(OwnedFd request, OwnedFd reply, ChildProcess child);

  OwnedFd request_, reply_;
  ChildProcess child_;
  std::thread watch_;  // wakes whoever waits for a reply if the child has ended
};

// Reads one eventfd and then writes the other, until its process is ended. Both are inherited. Returns only an error,
// if a descriptor is not an eventfd.
absl::Status RunWakeEcho(int request_fd, int reply_fd);

// Makes a client whose call wakes the other process and sleeps until that wakes it. UNAVAILABLE if the process has
// ended. `echo` must outlive it.
std::unique_ptr<Caller> MakeWakeCaller(const WakeEcho& echo);

}  // namespace gdn::bench
