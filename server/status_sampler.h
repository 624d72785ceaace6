// Samples what a server did in each of the last seconds, for the status page, as differences of counts that its parts
// keep.
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
#include "base/threads/stop_signal.h"
#include "server/observability/status_page.h"
#include "server/server_metrics.h"

namespace gdn {

class StatusSampler {
 public:
  static constexpr size_t kSeconds = 300;

  explicit StatusSampler(const MetricSources& sources) : sources_(sources) {}
  ~StatusSampler();

  void Start();
  // Adds a sample of what has happened since the last one, and drops the oldest if there are kSeconds already. The
  // thread calls it each second. Tests call it too.
  void Sample();

  // Returns the samples of the last seconds, at most kSeconds, the oldest first.
  std::vector<StatusSecond> seconds() const;
  // Returns the free bytes of each device, by its number, as they were when the devices were last asked (every ten
  // seconds). nullopt if the device has failed or does not report it. Empty before Start.
  std::vector<std::optional<int64_t>> device_free_bytes() const;

 private:
  // All counts at one moment.
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
