// What a scrape sees of a running server: counts that its parts keep anyway, read when somebody asks.
//
// Thread safety: a free function, from any thread while the parts live. Ownership: borrows.
//
//   const std::string text = ServerMetrics({.context = context, .health = health, .backend = backend, ...});
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/backend.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "server/health/device_health.h"
#include "server/rpc/service_context.h"

namespace gdn {

struct MetricSources {
  const ServiceContext& context;
  const DeviceHealth& health;
  Backend& backend;
  std::function<GpuGraphCounts(Backend&)> graph_counts;  // null where nothing is ever replayed
  absl::Time start_time;
};

// The device's tier and those below it, in this order.
std::vector<TierUsage> TierUsages(const ServiceContext& context);
// Of the sessions that have moved since they were last made durable, the longest time since then; zero where none has.
absl::Duration OldestUndurable(const SessionManager& sessions, SteadyTime now);

// In Prometheus' text form. `device_free_bytes`: where the device says.
std::string ServerMetrics(const MetricSources& sources, std::optional<int64_t> device_free_bytes);

}  // namespace gdn
