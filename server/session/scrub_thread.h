// Runs a DiskScrubber on a thread of the lowest priority.
//
// Thread safety: has a thread of its own. Ownership: the scrubber must outlive it.
//
//   ScrubThread thread(scrubber);
#pragma once

#include <thread>

#include "base/stop_signal.h"
#include "base/this_thread.h"
#include "state_store/tiers/disk_scrubber.h"

namespace gdn {

class ScrubThread {
 public:
  explicit ScrubThread(DiskScrubber& scrubber)
      : thread_([this, &scrubber] {
          NameThisThread("gdn-scrubber");
          LowerThisThread(19);
          const GivesWay gives_way;
          while (!stop_.GivenWithin(scrubber.Step())) {
          }
        }) {}
  ~ScrubThread() {
    stop_.Give();
    thread_.join();
  }
  ScrubThread(const ScrubThread&) = delete;
  ScrubThread& operator=(const ScrubThread&) = delete;

 private:
  StopSignal stop_;
  std::thread thread_;  // last, because it uses all of the above
};

}  // namespace gdn
