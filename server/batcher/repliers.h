// Threads that answer calls whose steps have ended: making a large reply into messages takes as long as a step, and
// whoever ends launches must go on to the next.
//
// Thread safety: safe from any thread. Ownership: owns its threads; destruction runs what was given first.
//
//   Repliers repliers(/*threads=*/4);
//   repliers.Run([job] { job->done(); });
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace gdn {

class Repliers {
 public:
  explicit Repliers(int threads);
  Repliers(const Repliers&) = delete;
  Repliers& operator=(const Repliers&) = delete;
  ~Repliers();

  void Run(std::function<void()> reply);

 private:
  void Loop();

  absl::Mutex mu_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace gdn
