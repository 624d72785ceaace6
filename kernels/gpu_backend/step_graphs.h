// Steps that are launched again and again, recorded and replayed: one call to the runtime in place of one a kernel.
//
// A step is known by a key that says everything its launches' arguments hold; what their arrays hold may differ. A key
// is run plainly until it has been seen a few times, so that the memory which its operators grow is there; then it is
// recorded once, and replayed from then on. What cannot be recorded is run plainly for good. A few hundred recordings
// are kept, those used last.
//
// A recording holds addresses. So all of them go before any device memory does: DropAll() comes before each free.
// Thread safety: Run by the one thread that issues operators, the rest from any. Ownership: owns its graphs; the stream
// must outlive it.
//
//   GDN_RETURN_IF_ERROR(graphs.Run(key, [&] { return Issue(step); }));
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {

class StepGraphs {
 public:
  struct Counts {
    int64_t plain = 0, recorded = 0, replayed = 0, refused = 0;  // refused: could not be recorded
  };

  explicit StepGraphs(const Stream& stream) : stream_(stream) {}
  StepGraphs(const StepGraphs&) = delete;
  ~StepGraphs() { DropAll(); }

  // `issue` launches the step and changes nothing on the host; it may be called twice, the first time in vain.
  absl::Status Run(const std::string& key, absl::FunctionRef<absl::Status()> issue);

  // Whether the calling thread is issuing what is being recorded.
  bool recording() const { return recorder_.load() == std::this_thread::get_id(); }

  // Waits for the stream, and gives all recordings up.
  void DropAll();
  // For a free by the thread that is recording: true where it is, and `data` is freed when it has done.
  bool FreesLater(void* data);

  Counts counts() const {
    absl::MutexLock lock(&mu_);
    return counts_;
  }

 private:
  struct Entry {
    std::string key;
    int seen = 0;
    bool refused = false;
    Graph graph = nullptr;
  };
  using Entries = std::list<Entry>;

  // The key's, in front of all others.
  Entry& Find(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Graph> Record(absl::FunctionRef<absl::Status()> issue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Stream stream_;

  mutable absl::Mutex mu_;  // held while recording: nobody may wait for the stream meanwhile
  Entries entries_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Entries::iterator> by_key_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);

  std::atomic<std::thread::id> recorder_{};   // the thread that is recording, if one is
  std::vector<void*> freed_while_recording_;  // of that thread
};

// Whether a handful of short launches are done clearly sooner when they are replayed, and by how much: for people.
struct GraphGain {
  double plain_us = 0.0, replayed_us = 0.0;  // medians
  bool worthwhile() const { return replayed_us < 0.9 * plain_us; }
};
// An error where the runtime records nothing, or replays something else.
absl::StatusOr<GraphGain> MeasureGraphGain(const Stream& stream);

}  // namespace gdn::gpu
