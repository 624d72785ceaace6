// The operator's settings: a struct for each part of the server, which is passed whole to that part.
//
// The struct of a part is in the part's folder. The structs of the assembly (server/) and of the program are here. A
// member's initialiser is the flag's default; option_table.cc gives the flags their names.
// Thread safety: plain values. Ownership: values; the clock must outlive the server.
//
//   GdnServerOptions options{.models = {{"qwen", "/models/qwen"}}, .states = {.disk = {.directory = "/var/lib/gdn"}}};
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/threads/steady_clock.h"
#include "kernels/backend.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "server/admission/quota_limits.h"
#include "server/batcher/batcher.h"
#include "server/fleet/fleet.h"
#include "server/model/loaded_model.h"
#include "server/observability/logging.h"
#include "server/rpc/callers/principals.h"
#include "server/rpc/transport/transport_limits.h"
#include "server/security/security.h"
#include "server/session/state_service.h"
#include "server/shared_memory/shared_regions.h"
#include "server/validation/step_input.h"

namespace gdn {

using NamedPaths = std::vector<std::pair<std::string, std::string>>;

// Limits in bytes of the memory that each part of the server uses. nullopt: the default of server/server_memory.h,
// which follows from the host's memory or other limits.
struct MemoryOptions {
  int64_t device_state_bytes = 0;  // memory for states on each device; 0: derived from the device's memory
  int32_t state_slots = 0;         // if not 0: that limit as a number of states of one layer of the largest model
  std::optional<int64_t> host_state_bytes = std::nullopt;
  std::optional<int64_t> prefix_cache_bytes = std::nullopt;  // 0: no prefixes are stored
  std::optional<int64_t> snapshot_bytes = std::nullopt;      // 0: no snapshots are kept
  int64_t stored_reply_bytes = int64_t{1} << 30;
  std::optional<int64_t> call_bytes = std::nullopt;
  std::optional<int64_t> copy_bytes = std::nullopt;
  std::optional<int64_t> session_bytes = std::nullopt;  // nullopt: derived from the tiers' sizes
};

struct GdnServerOptions {
  NamedPaths models = {};
  NamedPaths adapters = {};  // folders of LoRA adapters, by model name
  LoadOptions load = {};
  std::vector<std::string> listen = {"127.0.0.1:0"};  // addresses of gRPC: host:port (0: a free port) or unix:/path
  std::string version = "unknown";                    // returned by GetServerInfo
  MemoryOptions memory = {};
  StateServiceOptions states = {};  // `memory` sets its sizes of memory, `limits` its max_draft
  FleetOptions fleet = {};          // used if states.redis.share_sessions is set
  PrincipalOptions principals = {};
  absl::Duration session_idle_ttl = absl::InfiniteDuration();  // for sessions without an idle_ttl of their own
  QuotaSettings quotas = {};                                   // limits on what callers may use; SetQuotas changes them
  StepLimits limits = {};
  BatcherOptions engine = {};  // `limits` sets max_batch_rows
  SharedMemoryOptions shared_memory = {};
  TransportLimits transport = {};
  SecurityOptions security = {};
  int32_t trace_calls = 0;       // number of traces to keep, of the newest calls (TraceCalls)
  std::string http_listen = {};  // ADDRESS:PORT of /metrics, /readyz and so on; "": no port
  // Returns true if a caller with this "authorization" header ("" without one) may see /statusz. nullptr: admins may,
  // or without logins callers from this machine.
  std::function<bool(std::string_view authorization)> may_see_status = nullptr;
  // Returns how often the backend replayed steps, for the metrics. nullptr: no backend replays.
  std::function<GpuGraphCounts(Backend&)> graph_counts = nullptr;
  const SteadyClock* rate_clock = &SteadyClock::Real();  // clock for quotas of tokens per second
  // Called once, by any thread, when no device works any more. It must not destroy the server.
  std::function<void()> on_device_failure = nullptr;
  // Called once, by any thread, when an admin asks the server to shut down. Another thread should then call Drain soon.
  // nullptr: nobody may ask.
  std::function<void()> on_drain_request = nullptr;
};

struct DeviceOptions {
  std::string backend = "auto";  // "auto", "gpu", "cpu" or "null"
  int32_t gpu_device = 0;
  std::vector<int32_t> gpu_devices = {};  // numbers of the GPUs to use, each once; empty: gpu_device alone
  GpuGraphs gpu_graphs = GpuGraphs::kAuto;
  ProductMath math = ProductMath::kExact;
  bool matrix_units = true;
  int32_t threads = 0;
};

// Time limits of the process's shutdown (server/process_end.h).
struct EndLimits {
  absl::Duration steps = absl::Seconds(30);         // for accepted steps, exports and imports to end
  absl::Duration checkpoints = absl::Seconds(300);  // then for sessions to be made durable
  absl::Duration destruction = absl::Seconds(10);   // then for the backend to be destroyed
  bool tell_of_device = false;  // shut down when no device works any more, with exit code kDeviceFailed
};

// The program's options. The constructor sets the defaults that differ from those of a server in a test.
struct ServerOptions : GdnServerOptions {
  ServerOptions() {
    listen = {"127.0.0.1:50061"};
    states.scrub.bytes_per_second = int64_t{8} << 20;
    states.disk.watermarks.high_percent = 95;
    states.disk.watermarks.low_percent = 90;
  }
  std::string config = {};
  bool check_config = false;
  std::string port_file = {};
  DeviceOptions device = {};
  EndLimits end = {};
  LoggingOptions logging = {};
};

}  // namespace gdn
