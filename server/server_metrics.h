// Collects the metrics of a running server, from counts that its parts keep anyway.
//
// Thread safety: a free function, from any thread while the parts live. Ownership: borrows.
//
//   const std::string text = ServerMetrics({.info = info, .start_time = start}, {});
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/net/socket_listener.h"
#include "kernels/backend.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "server/health/device_health.h"
#include "server/ring/rings.h"
#include "server/rpc/info_calls.h"
#include "state_store/tiers/disk/disk_scrubber.h"
#include "state_store/tiers/disk/disk_tier.h"

namespace gdn {

struct MetricSources {
  const InfoParts& info;
  std::function<GpuGraphCounts(Backend&)> graph_counts;  // null: nothing is ever replayed
  absl::Time start_time;
  const DiskTier* disk = nullptr;            // nullptr: there is no disk
  const DiskScrubber* scrubber = nullptr;    // nullptr: nothing is scrubbed
  const SocketListener* listener = nullptr;  // counts gRPC's connections; nullptr: the server does not listen yet
  const Rings* rings = nullptr;              // nullptr: none are offered
};

// Returns the usage of all devices together, as one tier "device", and then of the tiers below, the fastest first.
std::vector<TierUsage> TierUsages(StateService& states);
// Returns the longest time since a session was last made durable, over the sessions that have taken steps since. Zero
// if there are none.
absl::Duration OldestUndurable(const SessionManager& sessions, SteadyTime now);

// Returns the metrics in Prometheus' text form. `device_free_bytes`: free memory of each device, by its number; nullopt
// if the device does not report it. Empty: no device has been asked yet.
std::string ServerMetrics(const MetricSources& sources, const std::vector<std::optional<int64_t>>& device_free_bytes);

}  // namespace gdn
