// Every metric of the server: name, type, unit, labels, help. docs/reference/metrics.md is generated from this file.
//
// Names end in their unit, names of counters in _total. Labels have few values, which the server knows. A label is
// never a principal, a session, an address or anything else that a client chooses.
// Thread safety: constants. Ownership: literals.
//
//   page.Add(metric::kTierUsedBytes, {"host"}, used);
#pragma once

#include "server/observability/metric_info.h"

namespace gdn {

namespace metric {

// Group: Calls
inline constexpr MetricInfo kRpcDuration =
    Histogram("gdn_rpc_duration_seconds", "seconds", {"method", "code"},
              "Time from the start of a call to its end, or until its reply is handed to the transport. In streams of "
              "steps each message counts as a call; in other streams the whole call counts once. A method and code are "
              "absent until a call ends with them.");
inline constexpr MetricInfo kErrors = Counter("gdn_errors_total", "errors", {"reason"},
                                              "Calls, and rows of partial_ok decodes, that ended with an error, by its "
                                              "reason. Reasons that have not occurred are absent.");
inline constexpr MetricInfo kStageDuration =
    Histogram("gdn_call_stage_duration_seconds", "seconds", {"stage"},
              "Time of each stage of prefills and decodes. Only traced calls count (--trace-calls, TraceCalls).");

// Group: Steps and launches
inline constexpr MetricInfo kQueueDuration =
    Histogram("gdn_queue_duration_seconds", "seconds", {"kind"},
              "Time from the admission of a call to the launch that takes its step. For a prefill, it ends with the "
              "launch of the first segment.");
inline constexpr MetricInfo kQueuedSteps =
    Gauge("gdn_queued_steps", "steps", {}, "Calls whose step waits, including prefills with segments left.");
inline constexpr MetricInfo kBatchRows = Histogram(
    "gdn_batch_rows", "rows", {"kind"}, "Rows of each launch. A launch computes one layer for a batch of rows.");
inline constexpr MetricInfo kLaunchDuration =
    Histogram("gdn_launch_duration_seconds", "seconds", {"kind", "stage"},
              "Time of each part of a launch: copy_in (gathers and sends inputs), `issue` (issues operators; absent on "
              "a CPU), `compute` (computes on the device), copy_out (copies outputs to the calls).");
inline constexpr MetricInfo kSteps =
    Counter("gdn_steps_total", "steps", {"kind"},
            "Rows that were computed and committed. A row is one step of one layer of one session.");
inline constexpr MetricInfo kTokens =
    Counter("gdn_tokens_total", "tokens", {"kind"}, "Tokens of the rows that gdn_steps_total counts.");

// Group: Sessions and their states
inline constexpr MetricInfo kSessions = Gauge("gdn_sessions", "sessions", {},
                                              "Sessions that this server has, whichever tier holds their states. Those "
                                              "in a tier that has not answered yet do not count.");
inline constexpr MetricInfo kExpiredSessions = Counter(
    "gdn_sessions_expired_total", "sessions", {}, "Sessions that were deleted because their time to live had passed.");
inline constexpr MetricInfo kRecoveredSessions =
    Counter("gdn_sessions_recovered_total", "sessions", {},
            "Sessions of an earlier server process that this one has taken over.");
inline constexpr MetricInfo kPrefixStarts =
    Counter("gdn_prefix_starts_total", "sessions", {"result"},
            "Sessions created with a prompt's prefix. A hit started from a stored part of the prefix; a miss found no "
            "stored part. The prefix metrics are absent if the server stores no prefixes.");
inline constexpr MetricInfo kPrefixTokens = Counter(
    "gdn_prefix_skipped_tokens_total", "tokens", {},
    "Prompt tokens that sessions skipped because their prefix was stored. A token counts once, not once a layer.");
inline constexpr MetricInfo kPrefixEntries = Gauge("gdn_prefix_entries", "entries", {}, "Prefixes that are stored.");
inline constexpr MetricInfo kPrefixUsedBytes =
    Gauge("gdn_prefix_used_bytes", "bytes", {}, "Host memory that the states of stored prefixes use.");
inline constexpr MetricInfo kPrefixLimitBytes =
    Gauge("gdn_prefix_limit_bytes", "bytes", {},
          "Host memory that stored prefixes may use now: --prefix-cache-bytes. With --host-state-bytes, it is at most "
          "the part of that memory that sessions leave free.");
inline constexpr MetricInfo kPrefixesKept =
    Counter("gdn_prefixes_kept_total", "prefixes", {}, "Prefixes that KeepPrefix has stored.");
inline constexpr MetricInfo kPrefixesGone = Counter("gdn_prefixes_gone_total", "prefixes", {"why"},
                                                    "Prefixes that were deleted: evicted (to make room), expired (not "
                                                    "used for --prefix-ttl) or dropped (by DropPrefixes).");
inline constexpr MetricInfo kSnapshots =
    Gauge("gdn_snapshots", "snapshots", {}, "Snapshots that exist, whichever tier holds their states.");
inline constexpr MetricInfo kSnapshotHeldBytes =
    Gauge("gdn_snapshot_held_bytes", "bytes", {}, "Bytes of all snapshots, each counted as a whole state.");
inline constexpr MetricInfo kSnapshotLimitBytes =
    Gauge("gdn_snapshot_limit_bytes", "bytes", {}, "Bytes that snapshots may hold (--snapshot-bytes).");
inline constexpr MetricInfo kSnapshotsLost = Counter(
    "gdn_snapshots_lost_total", "snapshots", {"why"},
    "Snapshots that were lost: evicted (because --snapshot-bytes was full) or damaged (no tier has the state).");
inline constexpr MetricInfo kTierSessions =
    Gauge("gdn_tier_sessions", "sessions", {"tier"},
          "Sessions and snapshots with states in the tier: device, host, disk or redis. On durable tiers checkpoints "
          "count too.");
inline constexpr MetricInfo kTierUsedBytes =
    Gauge("gdn_tier_used_bytes", "bytes", {"tier"}, "Bytes that states use in the tier.");
inline constexpr MetricInfo kTierLimitBytes =
    Gauge("gdn_tier_limit_bytes", "bytes", {"tier"},
          "Bytes that states may use in the tier. Absent if the tier has no limit of its own.");
inline constexpr MetricInfo kTierStores =
    Counter("gdn_tier_stores_total", "stores", {"tier"}, "States written to a tier below the device.");
inline constexpr MetricInfo kTierLoads =
    Counter("gdn_tier_loads_total", "loads", {"tier"}, "States read from a tier below the device.");
inline constexpr MetricInfo kTierStoredBytes =
    Counter("gdn_tier_stored_bytes_total", "bytes", {"tier"}, "Bytes written to a tier below the device.");
inline constexpr MetricInfo kTierLoadedBytes =
    Counter("gdn_tier_loaded_bytes_total", "bytes", {"tier"}, "Bytes read from a tier below the device.");
inline constexpr MetricInfo kTierFailures = Counter("gdn_tier_failures_total", "failures", {"tier"},
                                                    "Writes and reads that failed on a tier below the device.");
inline constexpr MetricInfo kTierProblems =
    Gauge("gdn_tier_problems", "problems", {"tier"},
          "1 if no state in the tier can be used now (GetServerInfo gives the reason), else 0.");
inline constexpr MetricInfo kEvictions =
    Counter("gdn_evictions_total", "moves", {}, "Sessions evicted from the device to a tier below.");
inline constexpr MetricInfo kEvictedBytes =
    Counter("gdn_evicted_bytes_total", "bytes", {}, "Bytes of states evicted from the device.");
inline constexpr MetricInfo kReturns = Counter("gdn_returns_total", "moves", {}, "Sessions loaded back to the device.");
inline constexpr MetricInfo kReturnedBytes =
    Counter("gdn_returned_bytes_total", "bytes", {}, "Bytes of states loaded back to the device.");
inline constexpr MetricInfo kMoveFailures =
    Counter("gdn_move_failures_total", "failures", {}, "Evictions and loads that failed.");
inline constexpr MetricInfo kCheckpoints = Counter("gdn_checkpoints_total", "checkpoints", {},
                                                   "Checkpoints that were made: by policy, by calls or by a drain.");
inline constexpr MetricInfo kCheckpointFailures =
    Counter("gdn_checkpoint_failures_total", "failures", {}, "Checkpoints that failed.");
inline constexpr MetricInfo kCheckpointAge = Gauge(
    "gdn_checkpoint_age_seconds", "seconds", {},
    "Longest time since a session's last durable copy, over the sessions that have taken steps since that copy. A "
    "crash now would lose the work of that time. 0 if there is no such session. Absent without a durable tier.");

// Group: Shared sessions
inline constexpr MetricInfo kSessionsTakenOver =
    Counter("gdn_sessions_taken_over_total", "sessions", {"epoch"},
            "Sessions taken over from other servers (--share-sessions). Label epoch=same: the other server handed the "
            "session over, or the session was idle. Label epoch=new: the other server failed, so clients replay. All "
            "metrics of this group are absent without --share-sessions.");
inline constexpr MetricInfo kSessionsHandedOver =
    Counter("gdn_sessions_handed_over_total", "sessions", {}, "Sessions handed over to other servers.");
inline constexpr MetricInfo kSessionsLost =
    Counter("gdn_sessions_lost_total", "sessions", {},
            "Sessions that other servers had taken over before this server renewed its expired lease.");
inline constexpr MetricInfo kSessionsAwaited =
    Gauge("gdn_awaited_sessions", "sessions", {}, "Sessions that calls wait for until another server hands them over.");
inline constexpr MetricInfo kNodeLeaseValid = Gauge("gdn_valid_node_leases", "leases", {},
                                                    "1 while this server's lease on its sessions is valid. 0 while the "
                                                    "server refuses calls for its sessions (NODE_LEASE_LAPSED).");
inline constexpr MetricInfo kNodeLeaseLapses = Counter(
    "gdn_node_lease_lapses_total", "leases", {}, "Number of times that the lease had expired before it was renewed.");

// Group: The disk
inline constexpr MetricInfo kDiskUsedRatio =
    Gauge("gdn_disk_used_ratio", "ratio", {},
          "Used part of the file system of --disk-dir, 0 to 1, whoever uses it. Absent without watermarks.");
inline constexpr MetricInfo kDiskWatermarkProblems =
    Gauge("gdn_disk_watermark_problems", "problems", {},
          "1 while the server writes no new states to the disk (see --disk-high-watermark), else 0.");
inline constexpr MetricInfo kScrubVerifiedStates =
    Counter("gdn_scrub_verified_states_total", "states", {},
            "States on the disk that were read while the server was idle and found intact (--scrub-bytes-per-second).");
inline constexpr MetricInfo kScrubVerifiedBytes =
    Counter("gdn_scrub_verified_bytes_total", "bytes", {}, "Bytes read to verify states on the disk.");
inline constexpr MetricInfo kScrubDamagedStates =
    Counter("gdn_scrub_damaged_states_total", "states", {"outcome"},
            "States on the disk that were found damaged: copy_used (another copy replaced it), not_durable (a "
            "checkpoint of a live session, which will be made again), `lost` (no other copy).");
inline constexpr MetricInfo kScrubLastPass = Gauge("gdn_scrub_last_pass_time_seconds", "seconds", {},
                                                   "Time when the last pass over the whole disk ended, since the Unix "
                                                   "epoch. Absent before the end of the first pass.");
inline constexpr MetricInfo kSetAsideStates =
    Gauge("gdn_disk_set_aside_states", "states", {},
          "Damaged states that are kept for inspection (*.damaged in --disk-dir). Absent without a disk.");
inline constexpr MetricInfo kSetAsideBytes =
    Gauge("gdn_disk_set_aside_bytes", "bytes", {}, "Bytes of damaged states that are kept for inspection.");

// Group: Memory
inline constexpr MetricInfo kPoolHeldBytes =
    Gauge("gdn_pool_held_bytes", "bytes", {"pool"},
          "Bytes charged to callers: calls (messages and replies), copies (states in transfer), replies (stored for "
          "retries), states (of all sessions, in whichever tier).");
inline constexpr MetricInfo kPoolLimitBytes =
    Gauge("gdn_pool_limit_bytes", "bytes", {"pool"}, "Limit of the pool. Absent if the pool has no limit.");
inline constexpr MetricInfo kAccounts = Gauge(
    "gdn_accounts", "accounts", {},
    "Callers that share the pools: subjects of logins, listed principals, and the addresses of all other callers.");
inline constexpr MetricInfo kQuotaRefusals = Counter("gdn_quota_refusals_total", "calls", {"quota"},
                                                     "Calls refused because a quota of their caller, or of all callers "
                                                     "together, was used up. The label is the quota's name.");
inline constexpr MetricInfo kConnections =
    Gauge("gdn_connections", "connections", {}, "Open connections to the gRPC port and Unix sockets.");
inline constexpr MetricInfo kConnectionsRefused =
    Counter("gdn_connections_refused_total", "connections", {},
            "Connections closed at once: above --max-connections or --max-connections-per-peer, or because no "
            "descriptor was free.");
inline constexpr MetricInfo kSharedMemoryBytes =
    Gauge("gdn_shared_memory_bytes", "bytes", {}, "Memory shared with clients on this host.");
inline constexpr MetricInfo kRings = Gauge("gdn_rings", "rings", {}, "Rings that clients on this host have.");
inline constexpr MetricInfo kRingsBroken =
    Counter("gdn_rings_broken_total", "rings", {}, "Rings that ended because their clients broke the rules.");
inline constexpr MetricInfo kRingSubmissions =
    Counter("gdn_ring_submissions_total", "submissions", {},
            "Calls, fetches and cancellations through rings. The calls count as others by their methods too.");
inline constexpr MetricInfo kDeviceMemoryBytes =
    Gauge("gdn_device_memory_bytes", "bytes", {"device"}, "Memory of each device, by its number.");
inline constexpr MetricInfo kDeviceFreeBytes =
    Gauge("gdn_device_memory_free_bytes", "bytes", {"device"},
          "Free memory of each device, read every 10 seconds. Absent if the device does not report it.");
inline constexpr MetricInfo kResidentMemoryBytes =
    Gauge("gdn_process_resident_memory_bytes", "bytes", {}, "Memory of the process that is in RAM.");

// Group: The device and the process
inline constexpr MetricInfo kDeviceFailures =
    Counter("gdn_device_failures_total", "failures", {"device"},
            "1 once the device has failed. Steps of sessions on it are then refused until the server is restarted.");
inline constexpr MetricInfo kDeviceSessions =
    Gauge("gdn_device_sessions", "sessions", {"device"}, "Sessions whose states are on the device.");
inline constexpr MetricInfo kDeviceUsedBytes =
    Gauge("gdn_device_used_bytes", "bytes", {"device"}, "Bytes that states use on the device.");
inline constexpr MetricInfo kGraphSteps =
    Counter("gdn_graph_steps_total", "steps", {"how"},
            "Decode steps of a GPU that could be replayed from a recording: `replayed`, or `plain` (operators launched "
            "one by one). Absent if replaying is off.");
inline constexpr MetricInfo kGraphRecordings = Counter("gdn_graph_recordings_total", "recordings", {"result"},
                                                       "Attempts to record a decode step for replay: `recorded`, or "
                                                       "`refused` (its operators are then launched one by one).");
inline constexpr MetricInfo kBuildInfo = Gauge("gdn_build_info", "info", {"version", "backend", "numerics_id"},
                                               "Always 1. The labels describe the running server.");
inline constexpr MetricInfo kStartTime =
    Gauge("gdn_start_time_seconds", "seconds", {}, "Time when the server started, since the Unix epoch.");

// clang-format off
inline constexpr std::array kAll = {  // one entry a line would be too long
    &kRpcDuration, &kErrors, &kStageDuration, &kQueueDuration, &kQueuedSteps, &kBatchRows, &kLaunchDuration, &kSteps,
    &kTokens, &kSessions, &kExpiredSessions, &kRecoveredSessions, &kPrefixStarts, &kPrefixTokens, &kPrefixEntries,
    &kPrefixUsedBytes, &kPrefixLimitBytes, &kPrefixesKept, &kPrefixesGone, &kSnapshots, &kSnapshotHeldBytes,
    &kSnapshotLimitBytes, &kSnapshotsLost, &kTierSessions, &kTierUsedBytes,
    &kTierLimitBytes, &kTierStores, &kTierLoads, &kTierStoredBytes, &kTierLoadedBytes, &kTierFailures, &kTierProblems,
    &kEvictions, &kEvictedBytes, &kReturns, &kReturnedBytes, &kMoveFailures, &kCheckpoints, &kCheckpointFailures,
    &kCheckpointAge, &kSessionsTakenOver, &kSessionsHandedOver, &kSessionsLost, &kSessionsAwaited, &kNodeLeaseValid,
    &kNodeLeaseLapses, &kDiskUsedRatio, &kDiskWatermarkProblems, &kScrubVerifiedStates, &kScrubVerifiedBytes,
    &kScrubDamagedStates, &kScrubLastPass, &kSetAsideStates, &kSetAsideBytes, &kPoolHeldBytes, &kPoolLimitBytes,
    &kAccounts, &kQuotaRefusals, &kConnections, &kConnectionsRefused, &kSharedMemoryBytes, &kRings, &kRingsBroken,
    &kRingSubmissions, &kDeviceMemoryBytes,
    &kDeviceFreeBytes, &kResidentMemoryBytes, &kDeviceFailures, &kDeviceSessions, &kDeviceUsedBytes, &kGraphSteps,
    &kGraphRecordings, &kBuildInfo, &kStartTime};
// clang-format on

}  // namespace metric
}  // namespace gdn
