// Every metric that the server shows: name, type, unit, labels, help. docs/reference/metrics.md is made from this file.
//
// Names end in their unit, counters in _total. Labels have few values, which the server knows: never a principal, a
// session, an address or anything else that a client chooses.
// Thread safety: constants. Ownership: literals.
//
//   page.Add(metric::kTierUsedBytes, {"host"}, used);
#pragma once

#include <array>
#include <string_view>

namespace gdn {

enum class MetricType { kCounter, kGauge, kHistogram };

struct MetricInfo {
  std::string_view name;
  MetricType type;
  std::string_view unit;
  std::array<std::string_view, 3> labels;
  std::string_view help;
};

namespace metric {

// Group: Calls
inline constexpr MetricInfo kRpcDuration = {
    "gdn_rpc_duration_seconds",
    MetricType::kHistogram,
    "seconds",
    {"method", "code"},
    "From a call's begin to its end or reply being handed to the transport. Each message of a stream of steps counts; "
    "of other streams the whole call does. Methods and codes that never occurred are absent."};
inline constexpr MetricInfo kErrors = {
    "gdn_errors_total",
    MetricType::kCounter,
    "errors",
    {"reason"},
    "Calls, and rows of partial_ok decodes, that ended with an error, by its reason. Reasons that never occurred are "
    "absent."};
inline constexpr MetricInfo kStageDuration = {
    "gdn_call_stage_duration_seconds",
    MetricType::kHistogram,
    "seconds",
    {"stage"},
    "Stages of prefills and decodes, of those calls that were traced (--trace-calls, TraceCalls)."};

// Group: The engine
inline constexpr MetricInfo kQueueDuration = {
    "gdn_queue_duration_seconds",
    MetricType::kHistogram,
    "seconds",
    {"kind"},
    "From a call's admission to the launch that takes its step; of a prefill, its first segment."};
inline constexpr MetricInfo kQueuedSteps = {"gdn_queued_steps",
                                            MetricType::kGauge,
                                            "steps",
                                            {},
                                            "Calls whose step waits, prefills with segments left included."};
inline constexpr MetricInfo kBatchRows = {
    "gdn_batch_rows", MetricType::kHistogram, "rows", {"kind"}, "Sequences of each launch."};
inline constexpr MetricInfo kLaunchDuration = {
    "gdn_launch_duration_seconds",
    MetricType::kHistogram,
    "seconds",
    {"kind", "stage"},
    "Parts of each launch: copy_in (inputs gathered and sent), issue (operators issued; absent on a CPU), compute (the "
    "device's time), copy_out (outputs to the calls)."};
inline constexpr MetricInfo kSteps = {"gdn_steps_total",
                                      MetricType::kCounter,
                                      "steps",
                                      {"kind"},
                                      "Rows that were computed and committed: one session's step of one layer each."};
inline constexpr MetricInfo kTokens = {
    "gdn_tokens_total", MetricType::kCounter, "tokens", {"kind"}, "Tokens of those rows."};

// Group: Sessions and their states
inline constexpr MetricInfo kSessions = {
    "gdn_sessions", MetricType::kGauge, "sessions", {}, "Sessions there are, wherever their states are."};
inline constexpr MetricInfo kExpiredSessions = {
    "gdn_sessions_expired_total", MetricType::kCounter, "sessions", {}, "Sessions that ended with their time to live."};
inline constexpr MetricInfo kRecoveredSessions = {"gdn_sessions_recovered_total",
                                                  MetricType::kCounter,
                                                  "sessions",
                                                  {},
                                                  "Sessions that an earlier process left and this one has taken over."};
inline constexpr MetricInfo kPrefixStarts = {
    "gdn_prefix_starts_total",
    MetricType::kCounter,
    "sessions",
    {"result"},
    "Sessions made with a prompt's prefix: hit (some of it was known, and they "
    "began behind it) or miss. Absent, as are the others of prefixes, where "
    "none are kept."};
inline constexpr MetricInfo kPrefixTokens = {"gdn_prefix_skipped_tokens_total",
                                             MetricType::kCounter,
                                             "tokens",
                                             {},
                                             "Tokens that those sessions began behind, each counted once and not for "
                                             "every layer."};
inline constexpr MetricInfo kPrefixEntries = {
    "gdn_prefix_entries", MetricType::kGauge, "entries", {}, "Prefixes that are kept."};
inline constexpr MetricInfo kPrefixUsedBytes = {
    "gdn_prefix_used_bytes", MetricType::kGauge, "bytes", {}, "Host memory of their states."};
inline constexpr MetricInfo kPrefixLimitBytes = {
    "gdn_prefix_limit_bytes",
    MetricType::kGauge,
    "bytes",
    {},
    "What they may have of it now: --prefix-cache-bytes, or what sessions leave of --host-state-bytes where that is "
    "less."};
inline constexpr MetricInfo kPrefixesKept = {
    "gdn_prefixes_kept_total", MetricType::kCounter, "prefixes", {}, "Prefixes that were kept, by KeepPrefix."};
inline constexpr MetricInfo kPrefixesGone = {
    "gdn_prefixes_gone_total",
    MetricType::kCounter,
    "prefixes",
    {"why"},
    "Prefixes that are kept no more: evicted (for room), expired (--prefix-ttl), dropped (DropPrefixes)."};
inline constexpr MetricInfo kTierSessions = {
    "gdn_tier_sessions",
    MetricType::kGauge,
    "sessions",
    {"tier"},
    "Sessions with states in the tier: device, host, disk, redis. On durable tiers checkpoints count."};
inline constexpr MetricInfo kTierUsedBytes = {
    "gdn_tier_used_bytes", MetricType::kGauge, "bytes", {"tier"}, "What these states take there."};
inline constexpr MetricInfo kTierLimitBytes = {
    "gdn_tier_limit_bytes",
    MetricType::kGauge,
    "bytes",
    {"tier"},
    "What they may take; absent where nothing but the place itself limits them."};
inline constexpr MetricInfo kTierStores = {
    "gdn_tier_stores_total", MetricType::kCounter, "stores", {"tier"}, "States written to a tier below the device."};
inline constexpr MetricInfo kTierLoads = {
    "gdn_tier_loads_total", MetricType::kCounter, "loads", {"tier"}, "States read from it."};
inline constexpr MetricInfo kTierStoredBytes = {
    "gdn_tier_stored_bytes_total", MetricType::kCounter, "bytes", {"tier"}, "Bytes written to it."};
inline constexpr MetricInfo kTierLoadedBytes = {
    "gdn_tier_loaded_bytes_total", MetricType::kCounter, "bytes", {"tier"}, "Bytes read from it."};
inline constexpr MetricInfo kTierFailures = {
    "gdn_tier_failures_total", MetricType::kCounter, "failures", {"tier"}, "Writes and reads of it that failed."};
inline constexpr MetricInfo kTierProblems = {
    "gdn_tier_problems",
    MetricType::kGauge,
    "problems",
    {"tier"},
    "1 where none of its states can be had for now (GetServerInfo says why), else 0."};
inline constexpr MetricInfo kEvictions = {
    "gdn_evictions_total", MetricType::kCounter, "moves", {}, "Sessions moved from the device to a tier below."};
inline constexpr MetricInfo kEvictedBytes = {
    "gdn_evicted_bytes_total", MetricType::kCounter, "bytes", {}, "Bytes of their states."};
inline constexpr MetricInfo kReturns = {
    "gdn_returns_total", MetricType::kCounter, "moves", {}, "Sessions brought back to the device."};
inline constexpr MetricInfo kReturnedBytes = {
    "gdn_returned_bytes_total", MetricType::kCounter, "bytes", {}, "Bytes of their states."};
inline constexpr MetricInfo kMoveFailures = {
    "gdn_move_failures_total", MetricType::kCounter, "failures", {}, "Moves of either kind that failed."};
inline constexpr MetricInfo kCheckpoints = {"gdn_checkpoints_total",
                                            MetricType::kCounter,
                                            "checkpoints",
                                            {},
                                            "Checkpoints made, by policy, by calls or by a drain."};
inline constexpr MetricInfo kCheckpointFailures = {
    "gdn_checkpoint_failures_total", MetricType::kCounter, "failures", {}, "Checkpoints that failed."};
inline constexpr MetricInfo kCheckpointAge = {
    "gdn_checkpoint_age_seconds",
    MetricType::kGauge,
    "seconds",
    {},
    "Of the sessions that have moved since they were last made durable, the longest time since then: what a crash now "
    "would lose. 0 where none has; absent without a durable tier."};

// Group: Shared sessions
inline constexpr MetricInfo kSessionsTakenOver = {
    "gdn_sessions_taken_over_total",
    MetricType::kCounter,
    "sessions",
    {"epoch"},
    "Sessions that came from other servers (--share-sessions): in the same epoch where they were given up in order, or "
    "had rested; in a new one where their server had gone, so that clients replay. Absent without it, as all of the "
    "group."};
inline constexpr MetricInfo kSessionsHandedOver = {"gdn_sessions_handed_over_total",
                                                   MetricType::kCounter,
                                                   "sessions",
                                                   {},
                                                   "Sessions that went to other servers, in order."};
inline constexpr MetricInfo kSessionsLost = {"gdn_sessions_lost_total",
                                             MetricType::kCounter,
                                             "sessions",
                                             {},
                                             "Sessions that others had taken when this server's lease was good again."};
inline constexpr MetricInfo kSessionsAwaited = {"gdn_awaited_sessions",
                                                MetricType::kGauge,
                                                "sessions",
                                                {},
                                                "Sessions that calls wait for until another server hands them over."};
inline constexpr MetricInfo kNodeLeaseValid = {
    "gdn_valid_node_leases",
    MetricType::kGauge,
    "leases",
    {},
    "1 while this server may rely on its sessions being its own; 0 while it refuses them (NODE_LEASE_LAPSED)."};
inline constexpr MetricInfo kNodeLeaseLapses = {"gdn_node_lease_lapses_total",
                                                MetricType::kCounter,
                                                "leases",
                                                {},
                                                "How often the lease had run out when it was renewed."};

// Group: The disk
inline constexpr MetricInfo kDiskUsedRatio = {
    "gdn_disk_used_ratio",
    MetricType::kGauge,
    "ratio",
    {},
    "How much of the file system of --disk-dir is in use, by whomever, 0 to 1; absent without watermarks."};
inline constexpr MetricInfo kDiskWatermarkProblems = {
    "gdn_disk_watermark_problems",
    MetricType::kGauge,
    "problems",
    {},
    "1 while no new states are put on the disk: it was fuller than --disk-high-watermark, and has not fallen to "
    "--disk-low-watermark yet; else 0."};
inline constexpr MetricInfo kScrubVerifiedStates = {
    "gdn_scrub_verified_states_total",
    MetricType::kCounter,
    "states",
    {},
    "States on the disk that were read while there was no work, and found whole (--scrub-bytes-per-second)."};
inline constexpr MetricInfo kScrubVerifiedBytes = {
    "gdn_scrub_verified_bytes_total", MetricType::kCounter, "bytes", {}, "Bytes read for it."};
inline constexpr MetricInfo kScrubDamagedStates = {"gdn_scrub_damaged_states_total",
                                                   MetricType::kCounter,
                                                   "states",
                                                   {"outcome"},
                                                   "States found damaged so: copy_used (another copy took its place), "
                                                   "not_durable (a checkpoint of a session that goes "
                                                   "on, to be made anew), lost (there was no other copy)."};
inline constexpr MetricInfo kScrubLastPass = {
    "gdn_scrub_last_pass_time_seconds",
    MetricType::kGauge,
    "seconds",
    {},
    "When the last pass over the whole disk ended, since the Unix epoch; absent before the first has."};
inline constexpr MetricInfo kSetAsideStates = {
    "gdn_disk_set_aside_states",
    MetricType::kGauge,
    "states",
    {},
    "Damaged states that are kept to be looked at (*.damaged in --disk-dir); absent without a disk."};
inline constexpr MetricInfo kSetAsideBytes = {
    "gdn_disk_set_aside_bytes", MetricType::kGauge, "bytes", {}, "What they take."};

// Group: Memory
inline constexpr MetricInfo kPoolHeldBytes = {
    "gdn_pool_held_bytes",
    MetricType::kGauge,
    "bytes",
    {"pool"},
    "What is charged to callers: calls (messages and replies), copies (states on their way), replies (kept for "
    "retries), states (of all sessions, wherever they are)."};
inline constexpr MetricInfo kPoolLimitBytes = {
    "gdn_pool_limit_bytes", MetricType::kGauge, "bytes", {"pool"}, "The pool's limit; absent where it has none."};
inline constexpr MetricInfo kAccounts = {
    "gdn_accounts", MetricType::kGauge, "accounts", {}, "Callers that share these pools: listed ones, and addresses."};
inline constexpr MetricInfo kQuotaRefusals = {
    "gdn_quota_refusals_total",
    MetricType::kCounter,
    "calls",
    {"quota"},
    "Calls that were refused for a quota of their caller, or of all callers together, by its name."};
inline constexpr MetricInfo kConnections = {"gdn_connections",
                                            MetricType::kGauge,
                                            "connections",
                                            {},
                                            "Connections to gRPC's port and Unix sockets that are open."};
inline constexpr MetricInfo kConnectionsRefused = {"gdn_connections_refused_total",
                                                   MetricType::kCounter,
                                                   "connections",
                                                   {},
                                                   "Connections that were closed at once, over --max-connections, "
                                                   "--max-connections-per-peer, or for want of a descriptor."};
inline constexpr MetricInfo kSharedMemoryBytes = {
    "gdn_shared_memory_bytes", MetricType::kGauge, "bytes", {}, "Memory shared with clients on this host."};
inline constexpr MetricInfo kDeviceMemoryBytes = {
    "gdn_device_memory_bytes", MetricType::kGauge, "bytes", {"device"}, "Memory of each device, by its number."};
inline constexpr MetricInfo kDeviceFreeBytes = {
    "gdn_device_memory_free_bytes",
    MetricType::kGauge,
    "bytes",
    {"device"},
    "What of it was free when last asked for, every 10 seconds; absent where the device does not say."};
inline constexpr MetricInfo kResidentMemoryBytes = {
    "gdn_process_resident_memory_bytes", MetricType::kGauge, "bytes", {}, "Memory of the process that is in RAM."};

// Group: The device and the process
inline constexpr MetricInfo kDeviceFailures = {
    "gdn_device_failures_total",
    MetricType::kCounter,
    "failures",
    {"device"},
    "1 once the device has failed: steps of sessions on it are refused until the server is restarted."};
inline constexpr MetricInfo kDeviceSessions = {
    "gdn_device_sessions", MetricType::kGauge, "sessions", {"device"}, "Sessions whose states are on the device."};
inline constexpr MetricInfo kDeviceUsedBytes = {
    "gdn_device_used_bytes", MetricType::kGauge, "bytes", {"device"}, "What states take on it."};
inline constexpr MetricInfo kGraphSteps = {"gdn_graph_steps_total",
                                           MetricType::kCounter,
                                           "steps",
                                           {"how"},
                                           "Decode steps of a GPU that could be replayed: replayed, or plain (launched "
                                           "one by one). Absent without replaying."};
inline constexpr MetricInfo kGraphRecordings = {
    "gdn_graph_recordings_total",
    MetricType::kCounter,
    "recordings",
    {"result"},
    "Steps recorded to be replayed: recorded, or refused (launched plain for good)."};
inline constexpr MetricInfo kBuildInfo = {
    "gdn_build_info", MetricType::kGauge, "info", {"version", "backend", "numerics_id"}, "1, with what runs."};
inline constexpr MetricInfo kStartTime = {
    "gdn_start_time_seconds", MetricType::kGauge, "seconds", {}, "When the server started, since the Unix epoch."};

inline constexpr std::array kAll = {&kRpcDuration,
                                    &kErrors,
                                    &kStageDuration,
                                    &kQueueDuration,
                                    &kQueuedSteps,
                                    &kBatchRows,
                                    &kLaunchDuration,
                                    &kSteps,
                                    &kTokens,
                                    &kSessions,
                                    &kExpiredSessions,
                                    &kRecoveredSessions,
                                    &kPrefixStarts,
                                    &kPrefixTokens,
                                    &kPrefixEntries,
                                    &kPrefixUsedBytes,
                                    &kPrefixLimitBytes,
                                    &kPrefixesKept,
                                    &kPrefixesGone,
                                    &kTierSessions,
                                    &kTierUsedBytes,
                                    &kTierLimitBytes,
                                    &kTierStores,
                                    &kTierLoads,
                                    &kTierStoredBytes,
                                    &kTierLoadedBytes,
                                    &kTierFailures,
                                    &kTierProblems,
                                    &kEvictions,
                                    &kEvictedBytes,
                                    &kReturns,
                                    &kReturnedBytes,
                                    &kMoveFailures,
                                    &kCheckpoints,
                                    &kCheckpointFailures,
                                    &kCheckpointAge,
                                    &kSessionsTakenOver,
                                    &kSessionsHandedOver,
                                    &kSessionsLost,
                                    &kSessionsAwaited,
                                    &kNodeLeaseValid,
                                    &kNodeLeaseLapses,
                                    &kDiskUsedRatio,
                                    &kDiskWatermarkProblems,
                                    &kScrubVerifiedStates,
                                    &kScrubVerifiedBytes,
                                    &kScrubDamagedStates,
                                    &kScrubLastPass,
                                    &kSetAsideStates,
                                    &kSetAsideBytes,
                                    &kPoolHeldBytes,
                                    &kPoolLimitBytes,
                                    &kAccounts,
                                    &kQuotaRefusals,
                                    &kConnections,
                                    &kConnectionsRefused,
                                    &kSharedMemoryBytes,
                                    &kDeviceMemoryBytes,
                                    &kDeviceFreeBytes,
                                    &kResidentMemoryBytes,
                                    &kDeviceFailures,
                                    &kDeviceSessions,
                                    &kDeviceUsedBytes,
                                    &kGraphSteps,
                                    &kGraphRecordings,
                                    &kBuildInfo,
                                    &kStartTime};

}  // namespace metric
}  // namespace gdn
