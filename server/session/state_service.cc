#include "server/session/state_service.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/processors.h"

namespace gdn {
namespace {

// Bytes of free blocks that are kept for later copies, beside those that the host tier frees.
constexpr int64_t kCopyBytes = int64_t{256} << 20;
constexpr int kIoThreads = 2;  // threads of each kind
// How long a call of a tier may hang before its callers give up. A network answers within milliseconds; a disk under
// load may take seconds to sync a file.
constexpr absl::Duration kRedisStalls = absl::Seconds(2);
constexpr absl::Duration kDiskStalls = absl::Seconds(5);
// Every so many rounds of housekeeping the store watch checks whether the store is still this server's.
constexpr int kRoundsPerWatch = 5;

std::vector<Backend*> BackendsOf(const std::vector<StateDevice>& devices) {
  std::vector<Backend*> backends;
  for (const StateDevice& device : devices) backends.push_back(&device.backend);
  return backends;
}

// One core cannot use the whole memory bandwidth; more than a few leave none for the engine.
int CopyThreads() { return std::clamp(AvailableProcessors() / 2, 2, 4); }

}  // namespace

StateService::StateService(std::vector<StateDevice> devices, ByteLedger& ledger, const StateServiceOptions& options)
    : memory_(BackendsOf(devices), kCopyBytes + options.host_bytes / 4),
      copiers_(CopyThreads(), "gdn-copiers"),
      copier_({.devices = devices, .memory = memory_, .base_dtype = options.state_dtype, .threads = &copiers_}),
      environment_(ledger),
      io_({.name = "gdn-state-io", .threads = kIoThreads}),
      memory_io_({.name = "gdn-state-mem", .threads = kIoThreads}),
      transfer_threads_({.name = "gdn-transfer", .threads = kIoThreads}) {
  for (const StateDevice& device : devices) {
    stores_.emplace_back(device.backend, StateStoreOptions{.budget_bytes = options.device_bytes,
                                                           .max_draft = options.max_draft,
                                                           .base_dtype = options.state_dtype,
                                                           .device = static_cast<int32_t>(stores_.size())});
  }
}

absl::StatusOr<std::unique_ptr<StateService>> StateService::Make(std::vector<StateDevice> devices, ByteLedger& ledger,
                                                                 Executor& executor,
                                                                 const StateServiceOptions& options) {
  std::unique_ptr<StateService> service(new StateService(std::move(devices), ledger, options));
  GDN_RETURN_IF_ERROR(service->OpenTiers(options));
  StateService& self = *service;
  TierStack& tiers = *self.tiers_;
  self.MakePrefixes(ledger, options);
  std::vector<StateStore*> stores;
  for (StateStore& store : self.stores_) stores.push_back(&store);
  self.room_ = std::make_unique<DeviceRoom>(
      DeviceRoomOptions{.stores = std::move(stores), .tiers = tiers, .copier = self.copier_, .ledger = ledger});
  DeviceRoom& room = *self.room_;
  const StateParts parts{.tiers = tiers,
                         .copier = self.copier_,
                         .room = room,
                         .ledger = ledger,
                         .executor = executor,
                         .io = self.io_,
                         .memory_io = self.memory_io_,
                         .transfers = self.transfer_threads_};
  self.residency_ = std::make_unique<Residency>(parts);
  self.checkpointer_ = std::make_unique<Checkpointer>(parts, options.policy);
  self.environment_.on_progress = [&self](const std::shared_ptr<Session>& session) {
    self.checkpointer_->NoteProgress(session);
  };
  self.prefix_keeper_ = std::make_unique<PrefixKeeper>(parts, *self.prefixes_, *self.residency_);
  self.sessions_ = std::make_unique<SessionManager>(
      SessionPlaces{.room = room, .tiers = tiers, .io = self.transfer_threads_, .executor = executor},
      self.environment_);
  room.DropSnapshotsBy([&self](SessionLease& lease) { return self.sessions_->DropSnapshot(lease); },
                       [&self] { return self.environment_.snapshots().size() > 0; });
  self.housekeeper_ = std::make_unique<Housekeeper>(*self.sessions_, *self.checkpointer_, *self.residency_, tiers,
                                                    options.housekeeping, [&self] {
                                                      self.LookAtDisk();
                                                      self.prefixes_->DropExpired();
                                                    });
  self.watch_interval_ = kRoundsPerWatch * options.housekeeping;
  return service;
}

StateService::~StateService() {
  StopWatching();
  housekeeper_ = nullptr;
  checkpointer_ = nullptr;
  residency_ = nullptr;
  transfer_threads_.Drain();
  sessions_ = nullptr;  // releases the last slots
}

absl::Status StateService::OpenTiers(const StateServiceOptions& options) {
  std::vector<StateTier*> tiers;
  if (options.host_bytes > 0) {
    host_ = std::make_unique<HostTier>(options.host_bytes);
    tiers.push_back(host_.get());
  }
  if (!options.disk.directory.empty()) {
    DiskTierOptions disk = options.disk;
    disk.max_draft = options.max_draft;
    disk.base_dtype = options.state_dtype;
    disk.pool = &copiers_;
    GDN_ASSIGN_OR_RETURN(disk_, DiskTier::Open(disk, memory_));
    disk_guard_ = std::make_unique<TierGuard>(*disk_, TierGuardOptions{.stall_after = kDiskStalls});
    tiers.push_back(disk_guard_.get());
  }
  if (!options.redis.endpoint.empty()) {
    RedisTierOptions redis = options.redis;
    redis.max_draft = options.max_draft;
    redis.base_dtype = options.state_dtype;
    GDN_ASSIGN_OR_RETURN(redis_, RedisTier::Make(redis, memory_));
    const absl::Duration replicas = redis.wait.replicas > 0 ? redis.wait.timeout : absl::ZeroDuration();
    redis_guard_ = std::make_unique<TierGuard>(*redis_, TierGuardOptions{.stall_after = kRedisStalls + replicas});
    tiers.push_back(redis_guard_.get());
  }
  tiers_ = std::make_unique<TierStack>(std::move(tiers), TierLedgerOptions{.holders = &environment_.holders()});
  return absl::OkStatus();
}

void StateService::LookAtDisk() {
  if (disk_ == nullptr) return;
  const auto look = [disk = disk_.get()] {
    disk->watermarks().Look();
    return absl::OkStatus();
  };
  disk_guard_->Run(look).IgnoreError();
}

// Prefixes use the host tier's free memory, and sessions come first there. Without a host tier they have memory of
// their own.
void StateService::MakePrefixes(ByteLedger& ledger, const StateServiceOptions& options) {
  PrefixIndexOptions prefixes{.limit_bytes = options.prefix_bytes, .ttl = options.prefix_ttl};
  if (host_ != nullptr) prefixes.left_bytes = [host = host_.get()] { return host->left_bytes(); };
  prefixes_ = std::make_unique<PrefixIndex>(ledger, std::move(prefixes));
  if (host_ != nullptr) host_->SetOnStored([index = prefixes_.get()] { index->Trim(); });
  environment_.holders().SetGiveWay(
      [index = prefixes_.get()](const ByteAccount& account) { return index->DropOneOf(account); });
}

absl::StatusOr<Recovered> StateService::Recover(const SpecOfModelFn& spec_of) {
  GDN_RETURN_IF_ERROR(tiers_->LoadErasureNotes());
  std::vector<StateTier*> durable;
  int64_t incarnation = 0;
  bool redis_answers = redis_ != nullptr;
  for (StateTier* tier : {static_cast<StateTier*>(disk_.get()), static_cast<StateTier*>(redis_.get())}) {
    if (tier == nullptr) continue;
    const absl::StatusOr<int64_t> starts = tier->NextIncarnation();
    if (tier == redis_.get() && disk_ != nullptr && absl::IsUnavailable(starts.status())) {
      spdlog::error("degraded: {}. The sessions in it are UNAVAILABLE until it answers; the others are served",
                    std::string(starts.status().message()));
      redis_answers = false;
      sessions_->SetUnknownIn(redis_->name());
      tiers_->SetUnlisted(*redis_, true);
      continue;
    }
    GDN_RETURN_IF_ERROR(starts.status());
    incarnation = std::max(incarnation, *starts);
    durable.push_back(tier);
  }
  if (durable.empty()) return Recovered();
  const bool shared = redis_ != nullptr && redis_->share() != nullptr;
  // Redis has the owner of each session, even if it has no states of it.
  if (shared) tiers_->SetUnlisted(*redis_, true);
  // Without the note of an orderly shutdown, steps that clients got answers to may be lost. The same holds if the notes
  // on the disk and in Redis are of different shutdowns: one of the two was set back, or another server has used Redis
  // meanwhile.
  if (disk_ != nullptr) {
    GDN_ASSIGN_OR_RETURN(marker_, disk_->TakeCleanMarker());
  }
  const bool orderly = marker_.has_value() && (!redis_answers || marker_->AgreesWith(redis_->found()));
  absl::StatusOr<Recovered> recovered = Recovered();
  if (!shared) recovered = RecoverFrom(durable, incarnation, orderly ? &*marker_ : nullptr, spec_of);
  GDN_RETURN_IF_ERROR(recovered.status());
  if (redis_ != nullptr) {
    std::function<absl::Status()> take_in;
    if (!redis_answers) take_in = [this, spec_of] { return TakeRedisIn(spec_of); };
    store_watch_ = std::make_unique<StoreWatch>(
        StoreWatchParts{.store = *redis_,
                        .tiers = *tiers_,
                        .sessions = *sessions_,
                        .take_in = std::move(take_in),
                        .set_backs = [redis = redis_.get()] { return redis->set_backs(); }},
        watch_interval_);
  }
  return recovered;
}

absl::StatusOr<Recovered> StateService::RecoverFrom(const std::vector<StateTier*>& durable, int64_t starts,
                                                    const CleanMarker* marker, const SpecOfModelFn& spec_of) {
  GDN_ASSIGN_OR_RETURN(const int64_t first_epoch, FirstEpoch(starts));
  std::set<std::string> absent;
  if (redis_ == nullptr || redis_->found().empty()) absent.insert("redis");
  absl::StatusOr<Recovered> recovered =
      RecoverSessions({.tiers = *tiers_, .sessions = *sessions_, .spec_of = spec_of}, durable,
                      {.marker = marker, .first_epoch = first_epoch, .absent = std::move(absent)}, held_back_);
  std::map<StateKey, std::string> away;
  for (const auto& [key, copies] : held_back_) {
    if (key.checkpoint.empty()) away.emplace(key, marker->Find(key)->tier);
  }
  if (!away.empty()) {
    spdlog::error(
        "{} sessions are UNAVAILABLE: their newest states are in the {} tier, which does not answer this server",
        away.size(), away.begin()->second);
  }
  sessions_->SetAway(away);
  return recovered;
}

void StateService::StartScrubbing(const DiskScrubberOptions& options, std::function<ScrubActivity()> activity) {
  if (disk_ == nullptr || options.bytes_per_second == 0) return;
  scrubber_ = std::make_unique<DiskScrubber>(
      DiskScrubberParts{.disk = *disk_,
                        .tiers = *tiers_,
                        .activity = std::move(activity),
                        .on_not_durable = [this](const StateKey& key) { CountNotDurable(key); }},
      options);
  scrub_thread_ = std::make_unique<LoopThread>("gdn-scrubber", absl::ZeroDuration(), [scrubber = scrubber_.get()] {
    LowerThisThread(19);  // the lowest priority
    const GivesWay gives_way;
    return scrubber->Step();
  });
}

void StateService::CountNotDurable(const StateKey& key) {
  for (const std::shared_ptr<Session>& session : sessions_->All()) {
    if (session->key() != key || tiers_->PlaceOf(key) == disk_->name()) continue;
    session->NoteNotDurable();
  }
}

absl::StatusOr<std::string> StateService::KeepSecret() {
  const std::string proposed = StrCat(RandomId(), RandomId());
  if (disk_ != nullptr) return disk_->KeepSecret(proposed);
  if (redis_ != nullptr) return redis_->KeepSecret(proposed);
  return proposed;
}

absl::Status StateService::TakeRedisIn(const SpecOfModelFn& spec_of) {
  GDN_ASSIGN_OR_RETURN(const int64_t incarnation, redis_->NextIncarnation());
  // The note on the disk vouches for states in Redis only if no server has had Redis since.
  const bool orderly = marker_.has_value() && marker_->AgreesWith(redis_->found());
  GDN_ASSIGN_OR_RETURN(const Recovered recovered,
                       RecoverFrom({redis_.get()}, incarnation, orderly ? &*marker_ : nullptr, spec_of));
  sessions_->SetUnknownIn("");
  tiers_->SetUnlisted(*redis_, false);
  spdlog::info("redis answers, no longer degraded: sessions recovered={} passed_over={}", recovered.sessions,
               recovered.passed_over);
  return absl::OkStatus();
}

void StateService::MakeDurable(absl::Duration timeout, Checkpointer::CheckpointProgress progress) {
  static_cast<void>(CheckpointAll(timeout, std::move(progress)));
}

int64_t StateService::CheckpointAll(absl::Duration timeout, Checkpointer::CheckpointProgress progress) {
  housekeeper_ = nullptr;  // nothing new
  scrub_thread_ = nullptr;
  if (tiers_->durable() == nullptr) return 0;
  if (disk_ != nullptr) disk_->watermarks().Lift();
  return checkpointer_->CheckpointAll(sessions_->All(), timeout, std::move(progress));
}

bool StateService::Drain(absl::Duration timeout) {
  const int64_t failures = CheckpointAll(timeout, nullptr);
  if (tiers_->durable() == nullptr) return true;
  StopWatching();  // from here on the sessions of Redis are not recovered any more
  if (disk_ != nullptr) WriteMarker(MakeMarker());
  return failures == 0;
}

void StateService::GiveUpStart() {
  housekeeper_ = nullptr;
  StopWatching();
  if (!marker_.has_value()) return;
  CleanMarker marker = *marker_;
  if (redis_ != nullptr && !redis_->found().empty()) {
    if (!marker.AgreesWith(redis_->found())) return;
    marker.redis = redis_->NoteStop().value_or(std::string(kPrefixUnknown));
  }
  WriteMarker(marker);
}

void StateService::WriteMarker(const CleanMarker& marker) {
  const auto write = [disk = disk_.get(), marker] { return disk->WriteCleanMarker(marker); };
  const absl::Status written = disk_guard_->Run(write);
  if (written.ok()) return;
  spdlog::error(
      "cannot write the note of this clean shutdown to --disk-dir, so the next server will start a new epoch for every "
      "session: {}",
      std::string(written.message()));
}

CleanMarker StateService::MakeMarker() {
  CleanMarker marker;
  for (const std::shared_ptr<Session>& session : sessions_->All()) {
    std::optional<CleanMarker::Copy> copy = tiers_->NewestCopy(session->key());
    // A state that is stored after this has another version, which the marker does not cover.
    if (!copy.has_value() || copy->version != session->version() || session->undurable().any) continue;
    if (session->CheckAlive().ok()) marker.sessions.emplace(session->key(), *std::move(copy));
  }
  for (const auto& [key, copies] : held_back_) {
    if (key.checkpoint.empty()) marker.sessions.emplace(key, *marker_->Find(key));
  }
  if (redis_ != nullptr && !redis_->found().empty()) {
    marker.redis = redis_->NoteStop().value_or(std::string(kPrefixUnknown));
  } else if (marker_.has_value()) {
    marker.redis = marker_->redis;  // this server has not used Redis
  }
  return marker;
}

}  // namespace gdn
