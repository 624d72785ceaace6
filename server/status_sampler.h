// What a server did in each of the last seconds, for the status page: differences of counts that its parts keep.
//
// Thread safety: Start and destruction on one thread; the rest from any. Ownership: borrows its sources; has a thread
// of its own once it is started.
//
//   StatusSampler sampler(sources);
//   sampler.Start();
//   for (const StatusSecond& second : sampler.seconds()) Plot(second.decode_tokens);
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/histogram.h"
#include "base/stop_signal.h"
#include "server/observability/status_page.h"
#include "server/server_metrics.h"

namespace gdn {

class StatusSampler {
 public:
  static constexpr size_t kSeconds = 300;

  explicit StatusSampler(const MetricSources& sources) : sources_(sources) {}
  ~StatusSampler();

  void Start();
  // What has happened since the last call, as a second's sample: the thread's, and a test's.
  void Sample();

  // The oldest first.
  std::vector<StatusSecond> seconds() const;
  // Of each device's memory, when it was last asked; nothing where it does not say.
  std::vector<std::optional<int64_t>> device_free_bytes() const;

 private:
  // All counts at a moment.
  struct Counts {
    int64_t decode_tokens = 0, prefill_tokens = 0, errors = 0, launches = 0, rows = 0;
    HistogramCounts decode_latency;
  };
  Counts Count() const;
  std::vector<std::optional<int64_t>> AskDevices() const;

  const MetricSources sources_;
  absl::Mutex sampling_;
  Counts before_ ABSL_GUARDED_BY(sampling_);
  int until_ask_ ABSL_GUARDED_BY(sampling_) = 0;  // samples until the devices are asked for their memory

  mutable absl::Mutex mu_;
  std::deque<StatusSecond> seconds_ ABSL_GUARDED_BY(mu_);
  std::vector<std::optional<int64_t>> device_free_bytes_ ABSL_GUARDED_BY(mu_);

  StopSignal stop_;
  std::thread thread_;
};

}  // namespace gdn
