// Records launches of recurring steps as graphs and replays them: one call to the runtime instead of one per kernel.
//
// A step's key determines all of its launches' arguments; the contents of its arrays may differ. The first two runs of
// a key are plain, so that operators have grown their memory. The third is recorded; from then on the key is replayed.
// A step that cannot be recorded always runs plainly. The 512 keys used last are kept.
//
// A recording holds addresses, so call DropAll() before you free any device memory.
// Thread safety: Run only from the thread that issues operators, the rest from any. Ownership: owns its graphs; the
// stream must outlive it.
//
//   GDN_RETURN_IF_ERROR(graphs.Run(key, [&] { return Issue(step); }));
#pragma once

#include <atomic>
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
#include "kernels/gpu_backend/gpu_backend.h"

namespace gdn::gpu {

class StepGraphs {
 public:
  explicit StepGraphs(const Stream& stream) : stream_(stream) {}
  StepGraphs(const StepGraphs&) = delete;
  ~StepGraphs() { DropAll(); }

  // Runs the step that `issue` launches: calls `issue`, records it, or replays what an equal key has recorded. `issue`
  // must not change the host: it may run twice, the first time only to be recorded. If recording fails, or memory for a
  // replay is short, it is called plainly. Returns the failure of that call or of the replay.
  absl::Status Run(const std::string& key, absl::FunctionRef<absl::Status()> issue);

  // True if the calling thread is recording a step now.
  bool recording() const { return recorder_.load() == std::this_thread::get_id(); }

  // Blocks until the stream's work and any recording are done, and destroys all recordings.
  void DropAll();
  // For memory that is to be freed: returns false if the calling thread is not recording; the caller frees it.
  // Otherwise returns true and frees `data` when the recording, which then counts as failed, has ended.
  bool FreesLater(void* data);

  GpuGraphCounts counts() const {
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

  // Returns the entry of `key`, new or old, and makes it the most recently used. A new one may evict the least recently
  // used.
  Entry& Find(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Graph> Record(absl::FunctionRef<absl::Status()> issue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Stream stream_;

  mutable absl::Mutex mu_;  // held while recording: nobody may wait for the stream then
  Entries entries_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Entries::iterator> by_key_ ABSL_GUARDED_BY(mu_);
  GpuGraphCounts counts_ ABSL_GUARDED_BY(mu_);

  std::atomic<std::thread::id> recorder_{};   // the thread that is recording, or none
  std::vector<void*> freed_while_recording_;  // used by that thread only
};

// Times of six short launches and a wait for them, plain and replayed, in microseconds, to decide if replays pay.
struct GraphGain {
  double plain_us = 0.0, replayed_us = 0.0;  // medians
  bool worthwhile() const { return replayed_us < 0.9 * plain_us; }
};
// Measures on `stream`, and blocks meanwhile. Returns an error if the runtime cannot record, or replays something else
// than was recorded.
absl::StatusOr<GraphGain> MeasureGraphGain(const Stream& stream);

}  // namespace gdn::gpu
