// A thread that does the same work again and again, with pauses.
//
// Thread safety: construction and destruction on one thread. Ownership: owns its thread. The destructor waits for the
// running round and ends the thread.
//
//   LoopThread thread("gdn-store-watch", interval, [this] { Look(); return interval_; });
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "base/threads/stop_signal.h"
#include "base/threads/this_thread.h"

namespace gdn {

class LoopThread {
 public:
  // Begins the first round after `pause`, and the next one after the pause that a round returns; 0: at once. An
  // infinite pause lasts until the destructor.
  LoopThread(std::string name, absl::Duration pause, std::function<absl::Duration()> round)
      : thread_([this, name = std::move(name), pause, round = std::move(round)]() mutable {
          NameThisThread(name);
          while (!stop_.GivenWithin(pause)) pause = round();
        }) {}
  ~LoopThread() {
    stop_.Give();
    thread_.join();
  }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

 private:
  StopSignal stop_;
  std::thread thread_;  // last, because it uses stop_
};

}  // namespace gdn
