#include "server/server_metrics.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <utility>

#include "server/fleet/fleet.h"
#include "server/observability/metric_page.h"

namespace gdn {
namespace {

void AddCalls(const CommonParts& common, MetricPage& page) {
  for (size_t method = 0; method < kRpcMethodNames.size(); ++method) {
    for (size_t code = 0; code < kStatusCodes; ++code) {
      const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
      page.AddSeconds(metric::kRpcDuration, {kRpcMethodNames[method], name},
                      common.stats.latency(static_cast<RpcMethod>(method), code).counts());
    }
  }
  for (int reason = 0; reason < v1::ErrorReason_ARRAYSIZE; ++reason) {
    if (common.stats.errors(reason) == 0) continue;
    constexpr std::string_view kPrefix = "ERROR_REASON_";
    const std::string& name = v1::ErrorReason_Name(static_cast<v1::ErrorReason>(reason));
    page.Add(metric::kErrors, {std::string_view(name).substr(kPrefix.size())}, common.stats.errors(reason));
  }
  for (size_t stage = 0; stage < kTraceStageNames.size(); ++stage) {
    page.AddSeconds(metric::kStageDuration, {kTraceStageNames[stage]},
                    common.tracer.stage_times(static_cast<TraceStage>(stage)));
  }
}

void AddEngines(const Engines& engines, MetricPage& page) {
  page.Add(metric::kQueuedSteps, {}, static_cast<int64_t>(engines.queued_steps()));
  for (size_t kind = 0; kind < kBatchKindNames.size(); ++kind) {
    const char* const name = kBatchKindNames[kind];
    const auto sum = [&](auto BatchStats::OfKind::*histogram) {
      HistogramCounts counts = (engines.at(0).stats().kinds[kind].*histogram).counts();
      for (int32_t device = 1; device < engines.size(); ++device) {
        counts.Add((engines.at(device).stats().kinds[kind].*histogram).counts());
      }
      return counts;
    };
    using OfKind = BatchStats::OfKind;
    page.AddSeconds(metric::kQueueDuration, {name}, sum(&OfKind::queue));
    page.Add(metric::kBatchRows, {name}, sum(&OfKind::rows));
    page.AddSeconds(metric::kLaunchDuration, {name, "copy_in"}, sum(&OfKind::copy_in));
    page.AddSeconds(metric::kLaunchDuration, {name, "issue"}, sum(&OfKind::issue));
    page.AddSeconds(metric::kLaunchDuration, {name, "compute"}, sum(&OfKind::compute));
    page.AddSeconds(metric::kLaunchDuration, {name, "copy_out"}, sum(&OfKind::copy_out));
    int64_t steps = 0, tokens = 0;
    for (int32_t device = 0; device < engines.size(); ++device) {
      const OfKind& stats = engines.at(device).stats().kinds[kind];
      steps += stats.steps.load(std::memory_order_relaxed);
      tokens += stats.tokens.load(std::memory_order_relaxed);
    }
    page.Add(metric::kSteps, {name}, steps);
    page.Add(metric::kTokens, {name}, tokens);
  }
}

void AddTiers(StateService& states, MetricPage& page) {
  for (const TierUsage& tier : TierUsages(states)) {
    page.Add(metric::kTierSessions, {tier.name}, tier.sessions);
    page.Add(metric::kTierUsedBytes, {tier.name}, tier.used_bytes);
    if (tier.limit_bytes > 0) page.Add(metric::kTierLimitBytes, {tier.name}, tier.limit_bytes);
    if (tier.name == "device") continue;  // the device's moves have other metrics
    page.Add(metric::kTierStores, {tier.name}, tier.stores);
    page.Add(metric::kTierLoads, {tier.name}, tier.loads);
    page.Add(metric::kTierStoredBytes, {tier.name}, tier.stored_bytes);
    page.Add(metric::kTierLoadedBytes, {tier.name}, tier.loaded_bytes);
    page.Add(metric::kTierFailures, {tier.name}, tier.failures);
    page.Add(metric::kTierProblems, {tier.name}, static_cast<int64_t>(!tier.problem.empty()));
  }
}

void AddDisk(const MetricSources& sources, MetricPage& page) {
  if (sources.disk == nullptr) return;
  if (const DiskWatermarks& watermarks = sources.disk->watermarks(); watermarks.on()) {
    page.Add(metric::kDiskUsedRatio, {}, watermarks.used_share());
    page.Add(metric::kDiskWatermarkProblems, {}, static_cast<int64_t>(!watermarks.problem().empty()));
  }
  const DiskTier::SetAsideFiles aside = sources.disk->set_aside();
  page.Add(metric::kSetAsideStates, {}, aside.states);
  page.Add(metric::kSetAsideBytes, {}, aside.bytes);
  if (sources.scrubber == nullptr) return;
  const ScrubCounts counts = sources.scrubber->counts();
  page.Add(metric::kScrubVerifiedStates, {}, counts.verified_states);
  page.Add(metric::kScrubVerifiedBytes, {}, counts.verified_bytes);
  page.Add(metric::kScrubDamagedStates, {"copy_used"}, counts.copy_used);
  page.Add(metric::kScrubDamagedStates, {"not_durable"}, counts.not_durable);
  page.Add(metric::kScrubDamagedStates, {"lost"}, counts.lost);
  if (counts.last_pass == absl::InfinitePast()) return;
  page.Add(metric::kScrubLastPass, {}, absl::ToDoubleSeconds(counts.last_pass - absl::UnixEpoch()));
}

void AddPrefixes(const PrefixIndex& prefixes, MetricPage& page) {
  if (!prefixes.on()) return;
  const PrefixCounts counts = prefixes.counts();
  page.Add(metric::kPrefixStarts, {"hit"}, counts.hits);
  page.Add(metric::kPrefixStarts, {"miss"}, counts.misses);
  page.Add(metric::kPrefixTokens, {}, counts.tokens_skipped);
  page.Add(metric::kPrefixEntries, {}, counts.entries);
  page.Add(metric::kPrefixUsedBytes, {}, counts.used_bytes);
  page.Add(metric::kPrefixLimitBytes, {}, counts.limit_bytes);
  page.Add(metric::kPrefixesKept, {}, counts.kept);
  page.Add(metric::kPrefixesGone, {"evicted"}, counts.evictions);
  page.Add(metric::kPrefixesGone, {"expired"}, counts.expired);
  page.Add(metric::kPrefixesGone, {"dropped"}, counts.dropped);
}

void AddSnapshots(const InfoParts& info, MetricPage& page) {
  const SnapshotBook& book = info.states.environment().snapshots();
  const ByteLedger& ledger = info.common.access.ledger;
  page.Add(metric::kSnapshots, {}, book.size());
  page.Add(metric::kSnapshotHeldBytes, {}, ledger.held(BytePool::kSnapshots));
  page.Add(metric::kSnapshotLimitBytes, {}, ledger.limit(BytePool::kSnapshots));
  page.Add(metric::kSnapshotsLost, {"evicted"}, book.evicted());
  page.Add(metric::kSnapshotsLost, {"damaged"}, book.damaged());
}

void AddSessions(const InfoParts& info, MetricPage& page) {
  page.Add(metric::kSessions, {}, info.states.sessions().sessions());
  page.Add(metric::kExpiredSessions, {}, info.states.sessions().expired());
  page.Add(metric::kRecoveredSessions, {}, info.recovered_sessions);
  AddPrefixes(info.states.prefixes(), page);
  AddSnapshots(info, page);
  AddTiers(info.states, page);
  const ResidencyCounters moves = info.states.residency().counters();
  page.Add(metric::kEvictions, {}, moves.evictions);
  page.Add(metric::kEvictedBytes, {}, moves.evicted_bytes);
  page.Add(metric::kReturns, {}, moves.returns);
  page.Add(metric::kReturnedBytes, {}, moves.returned_bytes);
  page.Add(metric::kMoveFailures, {}, moves.failures);
  page.Add(metric::kCheckpoints, {}, info.states.checkpointer().made());
  page.Add(metric::kCheckpointFailures, {}, info.states.checkpointer().failed());
  if (info.states.tiers().durable() == nullptr) return;
  page.Add(metric::kCheckpointAge, {}, absl::ToDoubleSeconds(OldestUndurable(info.states.sessions(), SteadyNow())));
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void AddDevices(const InfoParts& info, const std::vector<std::optional<int64_t>>& free_bytes, MetricPage& page) {
  for (size_t i = 0; i < info.devices.size(); ++i) {
    const std::string number = std::to_string(i);
    const auto device = static_cast<int32_t>(i);
    page.Add(metric::kDeviceMemoryBytes, {number}, info.devices[i].backend.info().memory_bytes);
    if (i < free_bytes.size() && free_bytes[i].has_value())
      page.Add(metric::kDeviceFreeBytes, {number}, *free_bytes[i]);
    page.Add(metric::kDeviceFailures, {number}, static_cast<int64_t>(!info.devices[i].health.status().ok()));
    page.Add(metric::kDeviceSessions, {number}, info.states.room().sessions(device));
    page.Add(metric::kDeviceUsedBytes, {number}, info.states.room().store(device).used_bytes());
  }
}

void AddFleet(const Fleet* fleet, MetricPage& page) {
  if (fleet == nullptr) return;
  const SessionArrivals& arrivals = fleet->arrivals();
  page.Add(metric::kSessionsTakenOver, {"same"}, arrivals.taken_over() - arrivals.replayed());
  page.Add(metric::kSessionsTakenOver, {"new"}, arrivals.replayed());
  page.Add(metric::kSessionsHandedOver, {}, fleet->departures().handed_over());
  page.Add(metric::kSessionsLost, {}, fleet->departures().lost());
  page.Add(metric::kSessionsAwaited, {}, arrivals.waiting());
  page.Add(metric::kNodeLeaseValid, {}, static_cast<int64_t>(fleet->lease().valid()));
  page.Add(metric::kNodeLeaseLapses, {}, fleet->lease().lapses());
}

void AddMemory(const MetricSources& sources, MetricPage& page) {
  const ByteLedger& ledger = sources.info.common.access.ledger;
  for (const auto& [name, pool] : {std::pair("calls", BytePool::kCalls), std::pair("copies", BytePool::kCopies),
                                   std::pair("replies", BytePool::kReplies), std::pair("states", BytePool::kStates)}) {
    page.Add(metric::kPoolHeldBytes, {name}, ledger.held(pool));
    if (ledger.limit(pool) != kNoByteLimit) page.Add(metric::kPoolLimitBytes, {name}, ledger.limit(pool));
  }
  for (size_t quota = 0; quota < kQuotas; ++quota) {
    page.Add(metric::kQuotaRefusals, {kQuotaNames[quota]}, ledger.refusals(static_cast<Quota>(quota)));
  }
  page.Add(metric::kAccounts, {}, static_cast<int64_t>(ledger.accounts()));
  if (sources.listener != nullptr) {
    page.Add(metric::kConnections, {}, sources.listener->connections());
    page.Add(metric::kConnectionsRefused, {}, sources.listener->refused());
  }
  page.Add(metric::kSharedMemoryBytes, {}, sources.info.shared_regions.used_bytes());
  if (sources.rings != nullptr) {
    const RingPoller::Counts rings = sources.rings->poller->counts();
    page.Add(metric::kRings, {}, rings.rings);
    page.Add(metric::kRingsBroken, {}, rings.broken);
    page.Add(metric::kRingSubmissions, {}, rings.submissions);
  }
  page.Add(metric::kResidentMemoryBytes, {}, ResidentBytes());
}

void AddProcess(const MetricSources& sources, MetricPage& page) {
  const InfoParts& info = sources.info;
  const BackendInfo& backend = info.devices.front().backend.info();
  if (backend.replays_steps && sources.graph_counts) {
    GpuGraphCounts counts;
    for (const StateDevice& device : info.devices) {
      const GpuGraphCounts of_device = sources.graph_counts(device.backend);
      counts.plain += of_device.plain;
      counts.recorded += of_device.recorded;
      counts.replayed += of_device.replayed;
      counts.refused += of_device.refused;
    }
    page.Add(metric::kGraphSteps, {"plain"}, counts.plain);
    page.Add(metric::kGraphSteps, {"replayed"}, counts.replayed);
    page.Add(metric::kGraphRecordings, {"recorded"}, counts.recorded);
    page.Add(metric::kGraphRecordings, {"refused"}, counts.refused);
  }
  page.Add(metric::kBuildInfo, {info.version, backend.name, info.numerics_id}, int64_t{1});
  page.Add(metric::kStartTime, {}, absl::ToDoubleSeconds(sources.start_time - absl::UnixEpoch()));
}

}  // namespace

std::vector<TierUsage> TierUsages(StateService& states) {
  std::vector<TierUsage> tiers = states.tiers().usage();
  tiers.insert(tiers.begin(), TierUsage{.name = "device",
                                        .limit_bytes = states.room().budget_bytes(),
                                        .used_bytes = states.room().used_bytes(),
                                        .sessions = states.room().sessions()});
  return tiers;
}

absl::Duration OldestUndurable(const SessionManager& sessions, SteadyTime now) {
  absl::Duration oldest = absl::ZeroDuration();
  for (const std::shared_ptr<Session>& session : sessions.All()) {
    const Session::Undurable undurable = session->undurable();
    if (undurable.any) oldest = std::max(oldest, now - undurable.since);
  }
  return oldest;
}

std::string ServerMetrics(const MetricSources& sources, const std::vector<std::optional<int64_t>>& device_free_bytes) {
  MetricPage page;
  AddCalls(sources.info.common, page);
  AddEngines(sources.info.engines, page);
  AddSessions(sources.info, page);
  AddFleet(sources.info.common.lookup.fleet, page);
  AddDisk(sources, page);
  AddMemory(sources, page);
  AddDevices(sources.info, device_free_bytes, page);
  AddProcess(sources, page);
  return page.Text();
}

}  // namespace gdn
