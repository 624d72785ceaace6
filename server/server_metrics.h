// What a scrape sees of a running server: counts that its parts keep anyway, read when somebody asks.
//
// Thread safety: a free function, from any thread while the parts live. Ownership: borrows.
//
//   const std::string text = ServerMetrics({.context = context, .start_time = start}, {});
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/socket_listener.h"
#include "kernels/backend.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "server/health/device_health.h"
#include "server/rpc/service_context.h"
#include "state_store/tiers/disk_scrubber.h"
#include "state_store/tiers/disk_tier.h"

namespace gdn {

struct MetricSources {
  const ServiceContext& context;
  std::function<GpuGraphCounts(Backend&)> graph_counts;  // null where nothing is ever replayed
  absl::Time start_time;
  const DiskTier* disk = nullptr;            // where there is one
  const DiskScrubber* scrubber = nullptr;    // where it scrubs
  const SocketListener* listener = nullptr;  // of gRPC's connections
};

// The devices' tier, all of them together, and those below it, in this order.
std::vector<TierUsage> TierUsages(const ServiceContext& context);
// Of the sessions that have moved since they were last made durable, the longest time since then; zero where none has.
absl::Duration OldestUndurable(const SessionManager& sessions, SteadyTime now);

// In Prometheus' text form. `device_free_bytes`: by device, where it says; none: where nobody has asked yet.
std::string ServerMetrics(const MetricSources& sources, const std::vector<std::optional<int64_t>>& device_free_bytes);

}  // namespace gdn
