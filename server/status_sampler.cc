#include "server/status_sampler.h"

#include <utility>

#include "base/threads/this_thread.h"

namespace gdn {
namespace {

constexpr int kSamplesPerAsking = 10;  // seconds; a driver may answer slowly

}  // namespace

StatusSampler::~StatusSampler() {
  stop_.Give();
  if (thread_.joinable()) thread_.join();
}

void StatusSampler::Start() {
  {
    absl::MutexLock sampling(&sampling_);
    before_ = Count();
    until_ask_ = kSamplesPerAsking;
    // The devices are asked now, so that the first scrape has their metrics.
    std::vector<std::optional<int64_t>> free_bytes = AskDevices();
    absl::MutexLock lock(&mu_);
    device_free_bytes_ = std::move(free_bytes);
  }
  thread_ = std::thread([this] {
    NameThisThread("gdn-status");
    while (!stop_.GivenWithin(absl::Seconds(1))) Sample();
  });
}

StatusSampler::Counts StatusSampler::Count() const {
  Counts counts;
  for (int32_t device = 0; device < sources_.info.engines.size(); ++device) {
    const BatchStats& stats = sources_.info.engines.at(device).stats();
    for (const BatchKind kind : {BatchKind::kDecode, BatchKind::kDraft}) {
      const BatchStats::OfKind& decodes = stats.of(kind);
      counts.decode_tokens += decodes.tokens.load(std::memory_order_relaxed);
      const HistogramCounts rows = decodes.rows.counts();
      counts.launches += rows.count();
      counts.rows += rows.sum;
    }
    counts.prefill_tokens += stats.of(BatchKind::kPrefill).tokens.load(std::memory_order_relaxed);
  }
  const RpcStats& calls = sources_.info.common.stats;
  for (int reason = 0; reason < v1::ErrorReason_ARRAYSIZE; ++reason) counts.errors += calls.errors(reason);
  counts.decode_latency = calls.latency(RpcMethod::kDecode, /*code=*/0).counts();
  counts.decode_latency.Add(calls.latency(RpcMethod::kStreamDecode, /*code=*/0).counts());
  return counts;
}

void StatusSampler::Sample() {
  absl::MutexLock sampling(&sampling_);
  const Counts now = Count();
  const HistogramCounts latency = now.decode_latency.Since(before_.decode_latency);
  const int64_t launches = now.launches - before_.launches;
  StatusSecond second{.decode_tokens = static_cast<double>(now.decode_tokens - before_.decode_tokens),
                      .prefill_tokens = static_cast<double>(now.prefill_tokens - before_.prefill_tokens),
                      .errors = static_cast<double>(now.errors - before_.errors),
                      .waiting_steps = static_cast<double>(sources_.info.engines.queued_steps())};
  if (launches > 0)
    second.rows_per_launch = static_cast<double>(now.rows - before_.rows) / static_cast<double>(launches);
  if (latency.count() > 0) {
    second.decode_p50_ms = latency.Quantile(0.5) / 1e6;
    second.decode_p99_ms = latency.Quantile(0.99) / 1e6;
  }
  before_ = now;

  const bool asks = until_ask_ == 0;
  until_ask_ = asks ? kSamplesPerAsking - 1 : until_ask_ - 1;
  std::vector<std::optional<int64_t>> free_bytes;
  if (asks) free_bytes = AskDevices();
  absl::MutexLock lock(&mu_);
  if (asks) device_free_bytes_ = std::move(free_bytes);
  if (seconds_.size() == kSeconds) seconds_.pop_front();
  seconds_.push_back(second);
}

std::vector<StatusSecond> StatusSampler::seconds() const {
  absl::MutexLock lock(&mu_);
  return {seconds_.begin(), seconds_.end()};
}

std::vector<std::optional<int64_t>> StatusSampler::AskDevices() const {
  std::vector<std::optional<int64_t>> free_bytes;
  for (const StateDevice& device : sources_.info.devices) {
    std::optional<int64_t>& bytes = free_bytes.emplace_back();
    if (!device.health.status().ok() || !device.backend.UseThread().ok()) continue;
    bytes = device.backend.FreeMemoryBytes();
    // On a CPU the free memory is not known, and the backend reports all memory as free.
    if (*bytes >= device.backend.info().memory_bytes) bytes = std::nullopt;
  }
  return free_bytes;
}

std::vector<std::optional<int64_t>> StatusSampler::device_free_bytes() const {
  absl::MutexLock lock(&mu_);
  return device_free_bytes_;
}

}  // namespace gdn
