// An operator's choices: a struct for each part of the server, which is passed to that part whole.
//
// The struct of a part lies in the part's folder; those of the assembly (server/) and of the program lie here. A
// member's initialiser is the flag's default; flags get their names in option_table.cc.
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
#include "base/steady_clock.h"
#include "kernels/backend.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "server/admission/quota_limits.h"
#include "server/batcher/batcher.h"
#include "server/fleet/fleet.h"
#include "server/model/loaded_model.h"
#include "server/observability/logging.h"
#include "server/rpc/principals.h"
#include "server/rpc/transport_limits.h"
#include "server/security/security.h"
#include "server/session/state_service.h"
#include "server/shared_memory/shared_regions.h"
#include "server/validation/step_input.h"

namespace gdn {

using NamedPaths = std::vector<std::pair<std::string, std::string>>;

// How much memory the parts may have (server/server_memory.h). Nothing: by the host's memory.
struct MemoryOptions {
  int64_t device_state_bytes = 0;  // of each device; 0: by its memory
  int32_t state_slots = 0;         // the same in slots of the largest model, if not 0
  std::optional<int64_t> host_state_bytes = std::nullopt;
  std::optional<int64_t> prefix_cache_bytes = std::nullopt;  // 0: no prefix is kept
  int64_t stored_reply_bytes = int64_t{1} << 30;
  std::optional<int64_t> call_bytes = std::nullopt;
  std::optional<int64_t> copy_bytes = std::nullopt;
  std::optional<int64_t> session_bytes = std::nullopt;  // nothing: by where states may be
};

struct GdnServerOptions {
  NamedPaths models = {};
  NamedPaths adapters = {};  // folders of LoRA adapters, by models' names
  LoadOptions load = {};
  std::vector<std::string> listen = {"127.0.0.1:0"};  // host:port (0: a free one) or unix:/path
  std::string version = "unknown";                    // what GetServerInfo tells
  MemoryOptions memory = {};
  StateServiceOptions states = {};  // its sizes of memory follow from `memory`, max_draft from `limits`
  FleetOptions fleet = {};          // if states.redis.share_sessions
  PrincipalOptions principals = {};
  absl::Duration session_idle_ttl = absl::InfiniteDuration();  // of sessions that do not say
  QuotaSettings quotas = {};                                   // what callers may use; SetQuotas changes it
  StepLimits limits = {};
  BatcherOptions engine = {};  // max_batch_rows follows from `limits`
  SharedMemoryOptions shared_memory = {};
  TransportLimits transport = {};
  SecurityOptions security = {};
  int32_t trace_calls = 0;       // number of the newest calls whose times are kept (TraceCalls)
  std::string http_listen = {};  // ADDRESS:PORT of /metrics, /readyz and the like; "": none
  std::function<bool(std::string_view authorization)> may_see_status = nullptr;  // as HttpEndpointOptions has it
  std::function<GpuGraphCounts(Backend&)> graph_counts = nullptr;                // as MetricSources has it
  const SteadyClock* rate_clock = &SteadyClock::Real();                          // of quotas of tokens a second
  // Called once, by any thread, when the last device has failed; it must not destroy the server.
  std::function<void()> on_device_failure = nullptr;
  // Called once, by any thread, when an admin wants the server to end: Drain is to be called soon, by another thread.
  // nullptr: nobody may.
  std::function<void()> on_drain_request = nullptr;
};

struct DeviceOptions {
  std::string backend = "auto";  // "auto", "gpu", "cpu" or "null"
  int32_t gpu_device = 0;
  std::vector<int32_t> gpu_devices = {};  // each once; empty: gpu_device alone
  GpuGraphs gpu_graphs = GpuGraphs::kAuto;
  int32_t threads = 0;
};

// Limits of the process's end (server/process_end.h).
struct EndLimits {
  absl::Duration steps = absl::Seconds(30);         // for accepted steps, and exports and imports under way
  absl::Duration checkpoints = absl::Seconds(300);  // for sessions to be made durable, then
  absl::Duration destruction = absl::Seconds(10);   // for the backend to be given up, then
  bool tell_of_device = false;  // end when the last device has failed, with kDeviceFailed instead of other codes
};

// The program's options. Its constructor has the defaults that differ from those of a server in a test.
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
