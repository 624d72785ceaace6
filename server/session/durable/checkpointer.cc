#include "server/session/durable/checkpointer.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/count_limits.h"
#include "base/status_macros.h"
#include "base/task/resume_on.h"
#include "base/task/status_macros.h"
#include "base/task/task_queue_executor.h"
#include "base/threads/steady_wait.h"
#include "server/session/room/session_holders.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

constexpr int kMostCopies = 4;
constexpr int kThreads = 2;
constexpr absl::Duration kRetryAfter = absl::Seconds(5);  // a full disk stays full for a while

}  // namespace

Checkpointer::Checkpointer(const StateParts& parts, const CheckpointPolicy& policy)
    : parts_(parts),
      policy_(policy),
      copies_({.name = "gdn-ckpt-copy", .threads = kThreads, .niceness = 5}),
      writes_({.name = "gdn-ckpt-write", .threads = kThreads, .niceness = 10}),
      group_(parts.executor) {}

Checkpointer::~Checkpointer() {
  open_.WaitForNone();
  group_.Wait();
  copies_.Drain();
  writes_.Drain();
}

// ---- Copies

Task<absl::StatusOr<SessionLease>> Checkpointer::LockWanted(std::shared_ptr<Session> session, Deadline deadline,
                                                            std::optional<int64_t> epoch) {
  GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await session->Lock(deadline));
  GDN_CO_RETURN_IF_ERROR(deadline.Check(SteadyNow()));
  GDN_CO_RETURN_IF_ERROR(session->CheckAlive());
  GDN_CO_RETURN_IF_ERROR(CheckEpoch(*session, epoch));
  co_return lease;
}

Task<absl::StatusOr<CapturedState>> Checkpointer::Capture(std::shared_ptr<Session> session, KnownBases known,
                                                          Deadline deadline, std::optional<int64_t> epoch) {
  const OpenCount::Hold open = open_.Begin();
  TaskQueueExecutor transfers(parts_.transfers, session->account()->turn(), parts_.executor);
  Executor& here = co_await ThisExecutor();
  GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await LockWanted(session, deadline, epoch));
  co_await ResumeOn(transfers);
  absl::StatusOr<CapturedState> captured = CopyOut(std::move(lease), known, StateCopier::Threads::kAll);
  co_await ReturnTo(here);
  co_return captured;
}

absl::StatusOr<CapturedState> Checkpointer::CopyOut(SessionLease lease, const KnownBases& known,
                                                    StateCopier::Threads threads) {
  const std::shared_ptr<Session> session = lease.session();
  GDN_RETURN_IF_ERROR(session->CheckAlive());
  CapturedState captured;
  // Parked states are good even if a device has failed. States on a failed device are not trusted; CopyOut refuses
  // them.
  if (lease.resident()) {
    GDN_ASSIGN_OR_RETURN(captured.image, parts_.copier.CopyOut(lease, known ? known() : BaseVersions(), threads));
  } else {
    GDN_ASSIGN_OR_RETURN(captured.image, parts_.tiers.Fetch(session->key()));
    // A session that was recovered at startup may be in a later epoch than its file. The image was just read, so nobody
    // else uses it and it may be changed.
    if (captured.image->header.epoch != session->epoch()) {
      SessionHeader& header = std::const_pointer_cast<SessionImage>(captured.image)->header;
      header.epoch = session->epoch();
      header.changes = static_cast<int64_t>(lease.changes());
    }
  }
  captured.changes = lease.changes();
  captured.layers = session->Layers();
  captured.when = session->Now();
  lease.Hold();
  captured.held = std::move(lease);
  return captured;
}

// ---- Checkpoints

Task<absl::StatusOr<CheckpointResult>> Checkpointer::Checkpoint(std::shared_ptr<Session> session,
                                                                std::string checkpoint_id, Deadline deadline,
                                                                std::optional<int64_t> epoch) {
  if (parts_.tiers.durable() == nullptr) co_return NoDurableTier();
  const OpenCount::Hold open = open_.Begin();
  const int64_t bytes = parts_.room.BytesOf(*session);
  GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await LockWanted(session, deadline, epoch));
  absl::StatusOr<ByteCharge> charge = parts_.ledger.TryCharge(BytePool::kCopies, session->account(), bytes);
  if (!charge.ok()) {
    lease.Release();  // let steps run until there is memory, and hold no memory while waiting for the lock
    charge = co_await parts_.ledger.WaitForCharge(BytePool::kCopies, session->account(), bytes, deadline);
    GDN_CO_RETURN_IF_ERROR(charge.status());
    GDN_CO_ASSIGN_OR_RETURN(lease, co_await LockWanted(session, deadline, epoch));
  }
  Task<absl::StatusOr<CheckpointResult>> made =
      CheckpointLocked(std::move(lease), *std::move(charge), std::move(checkpoint_id));
  co_return co_await std::move(made);
}

Task<absl::StatusOr<CheckpointResult>> Checkpointer::CheckpointLocked(SessionLease lease, ByteCharge charge,
                                                                      std::string checkpoint_id) {
  const std::shared_ptr<Session> session = lease.session();
  StateKey key = session->key();
  key.checkpoint = checkpoint_id;
  TaskQueueExecutor copies(copies_, session->account()->turn(), parts_.executor);
  TaskQueueExecutor writes(writes_, session->account()->turn(), parts_.executor);
  Executor& here = co_await ThisExecutor();
  absl::StatusOr<CapturedState> captured;
  absl::StatusOr<StoreResult> stored;
  for (bool whole = !checkpoint_id.empty();; whole = true) {  // a named checkpoint must be complete
    GDN_CO_ASSIGN_OR_RETURN(CheckpointRoom room, TakeRoom(*session, key));
    KnownBases known;
    if (!whole && room.tier == parts_.tiers.durable()) known = [this, &key] { return parts_.tiers.KnownBases(key); };
    co_await ResumeOn(copies);
    captured = CopyOut(std::move(lease), known, StateCopier::Threads::kCallerOnly);
    if (captured.ok()) {
      co_await ResumeOn(writes);
      stored = parts_.tiers.Checkpoint(key, captured->image, {.first = room.tier, .within_quota = !last_ones_});
    }
    co_await ReturnTo(here);
    GDN_CO_RETURN_IF_ERROR(captured.status());
    if (stored.ok() || captured->image->has_all_bases()) break;
    // A copy without its bases was refused: another tier was asked, or the tier has lost the file with the bases. Try
    // again with a whole copy.
    captured = CapturedState();
    GDN_CO_ASSIGN_OR_RETURN(lease, co_await session->Lock());
  }
  (stored.ok() ? made_ : failed_).fetch_add(1, std::memory_order_relaxed);
  GDN_CO_RETURN_IF_ERROR(stored.status());
  if (checkpoint_id.empty()) {
    std::vector<int64_t> counts;
    for (const LayerInfo& layer : captured->layers) counts.push_back(layer.progress.token_count);
    session->NoteDurable(captured->changes, counts, captured->when);
  }
  CheckpointResult result{.stored = *stored,
                          .epoch = captured->image->header.epoch,
                          .layers = std::move(captured->layers),
                          .when = captured->when.shown};
  for (LayerInfo& layer : result.layers) layer.durable_token_count = layer.progress.token_count;
  co_return result;
}

absl::StatusOr<CheckpointRoom> Checkpointer::TakeRoom(const Session& session, const StateKey& key) {
  GDN_RETURN_IF_ERROR(parts_.tiers.CheckNamedCheckpoints(key));
  absl::Status refused;
  for (const StateTier* tier : parts_.tiers.DurableTiers()) {
    absl::StatusOr<CheckpointRoom> room = TakeRoomIn(*tier, session, key);
    if (room.ok()) return room;
    refused.Update(room.status());
  }
  failed_.fetch_add(1, std::memory_order_relaxed);
  return refused;
}

absl::StatusOr<CheckpointRoom> Checkpointer::TakeRoomIn(const StateTier& tier, const Session& session,
                                                        const StateKey& key) {
  CheckpointRoom room{.tier = &tier};
  if (parts_.tiers.HasCopy(tier, key) || last_ones_) return room;
  const int64_t bytes = parts_.room.BytesOf(session);
  GDN_ASSIGN_OR_RETURN(room.there, parts_.ledger.TryCharge(PoolOfTier(tier.name()), session.account(), bytes));
  if (key.checkpoint.empty() || parts_.tiers.HasDurableCopy(key)) return room;
  GDN_ASSIGN_OR_RETURN(room.count, parts_.ledger.TryCharge(BytePool::kCheckpoints, session.account(), 1));
  GDN_ASSIGN_OR_RETURN(room.state, parts_.ledger.TryCharge(BytePool::kStates, session.account(), bytes));
  return room;
}

// ---- What there is

Task<absl::StatusOr<std::vector<StoredSession>>> Checkpointer::List(std::shared_ptr<Session> session) {
  if (parts_.tiers.durable() == nullptr) co_return NoDurableTier();
  const OpenCount::Hold open = open_.Begin();
  TaskQueueExecutor transfers(parts_.transfers, session->account()->turn(), parts_.executor);
  Executor& here = co_await ThisExecutor();
  co_await ResumeOn(transfers);
  absl::StatusOr<std::vector<StoredSession>> found;
  const absl::Status alive = session->CheckRestorable();
  if (alive.ok()) {
    found = parts_.tiers.ListCheckpoints(session->key());
  } else {
    found = alive;
  }
  co_await ReturnTo(here);
  co_return found;
}

Task<absl::Status> Checkpointer::Delete(std::shared_ptr<Session> session, std::string checkpoint_id) {
  if (parts_.tiers.durable() == nullptr) co_return NoDurableTier();
  const OpenCount::Hold open = open_.Begin();
  TaskQueueExecutor transfers(parts_.transfers, session->account()->turn(), parts_.executor);
  StateKey key = session->key();
  key.checkpoint = std::move(checkpoint_id);
  Executor& here = co_await ThisExecutor();
  co_await ResumeOn(transfers);
  absl::Status erased = session->CheckAlive();
  if (erased.ok()) erased = parts_.tiers.EraseCheckpoint(key);
  co_await ReturnTo(here);
  co_return erased;
}

Task<absl::Status> Checkpointer::Restore(std::shared_ptr<Session> session, std::string checkpoint_id, Deadline deadline,
                                         std::optional<int64_t> epoch) {
  if (parts_.tiers.durable() == nullptr) {
    GDN_CO_RETURN_IF_ERROR(session->CheckNotLost());
    co_return NoDurableTier();
  }
  const OpenCount::Hold open = open_.Begin();
  TaskQueueExecutor transfers(parts_.transfers, session->account()->turn(), parts_.executor);
  Executor& here = co_await ThisExecutor();
  GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await session->Lock(deadline));
  GDN_CO_RETURN_IF_ERROR(session->CheckRestorable());
  GDN_CO_RETURN_IF_ERROR(CheckEpoch(*session, epoch));
  co_await ResumeOn(transfers);
  absl::Status restored = deadline.Check(SteadyNow());
  if (restored.ok()) restored = RestoreLocked(lease, checkpoint_id);
  co_await ReturnTo(here);
  co_return restored;
}

absl::Status Checkpointer::RestoreLocked(SessionLease& lease, const std::string& checkpoint_id) {
  const std::shared_ptr<Session> session = lease.session();
  TierStack& tiers = parts_.tiers;
  StateKey key = session->key();
  if (session->epoch() >= kMaxEpoch) return EpochLimit(session->id(), session->epoch());
  key.checkpoint = checkpoint_id;
  const ByteCharge copy = parts_.room.ChargeCopy(*session);
  absl::StatusOr<SessionImagePtr> image = tiers.FetchCheckpoint(key);
  key.checkpoint.clear();
  if (absl::IsNotFound(image.status())) return CheckpointNotFound(session->id(), checkpoint_id);
  GDN_RETURN_IF_ERROR(image.status());
  std::vector<int32_t> layers;
  for (const LayerImage& layer : (*image)->layers) layers.push_back(layer.layer);
  GDN_RETURN_IF_ERROR(CheckStateFits((*image)->header, layers, session->spec()));
  // The image was just loaded, so nobody else uses it and it may be changed.
  SessionHeader& header = std::const_pointer_cast<SessionImage>(*image)->header;
  header.epoch = session->epoch() + 1;
  header.changes = static_cast<int64_t>(lease.changes());
  header.create_time = session->create_time();
  // Make the restored state durable first, so that a crash cannot bring back the steps that were rolled back.
  GDN_RETURN_IF_ERROR(tiers.Checkpoint(key, *image).status());
  if (lease.resident()) {
    lease.Unload();
    parts_.room.Forget(*session);
  }
  tiers.Release(key);
  tiers.RestAtCheckpoint(key, (*image)->bytes());
  lease.InstallParked(**image);
  lease.Restored((*image)->header.epoch);
  session->NoteDurable(lease.changes(), lease.counts(), session->Now());
  return absl::OkStatus();
}

// ---- By the policy

bool Checkpointer::Schedule(const std::shared_ptr<Session>& session) {
  if (parts_.tiers.durable() == nullptr) return false;
  {
    absl::MutexLock lock(&mu_);
    const auto [it, first] = scheduled_.try_emplace(session.get());
    if (!first && it->second.again > parts_.clock.Now()) return false;
    it->second = {.again = SteadyTime::InfiniteFuture(), .ended = std::make_shared<Signal>()};
    waiting_.Push(session->account()->turn(), session);
  }
  Pump();
  return true;
}

void Checkpointer::Pump() {
  for (;;) {
    std::shared_ptr<Session> session;
    {
      absl::MutexLock lock(&mu_);
      if (waiting_.empty() || active_ == kMostCopies) return;
      session = waiting_.Pop()->item;
    }
    group_.Spawn(RunScheduled(std::move(session)));
  }
}

Task<void> Checkpointer::RunScheduled(std::shared_ptr<Session> session) {
  absl::StatusOr<SessionLease> lease = co_await session->Lock();  // without a deadline, so it comes
  const Turn turn = session->account()->turn();
  const int64_t bytes = parts_.room.BytesOf(*session);
  bool begins = true;
  {
    absl::MutexLock lock(&mu_);
    begins = active_ < kMostCopies;
    if (begins) {
      waiting_.Charge(turn, static_cast<double>(bytes));
      ++active_;
    } else {  // other checkpoints were faster: release the lock until one has ended
      waiting_.PutBack({.turn = turn, .item = session});
    }
  }
  if (!begins) co_return;
  ByteCharge charge = parts_.ledger.Charge(BytePool::kCopies, session->account(), bytes);
  Task<absl::StatusOr<CheckpointResult>> made = CheckpointLocked(*std::move(lease), std::move(charge), std::string());
  const absl::StatusOr<CheckpointResult> result = co_await std::move(made);
  EndScheduled(session, result.status());
}

void Checkpointer::EndScheduled(const std::shared_ptr<Session>& session, const absl::Status& status) {
  const bool failed = !status.ok() && session->CheckAlive().ok();  // no failure if the session has ended or is lost
  std::shared_ptr<Signal> ended;
  {
    absl::MutexLock lock(&mu_);
    --active_;
    Scheduled& scheduled = scheduled_.at(session.get());
    ended = std::move(scheduled.ended);
    if (failed) {
      scheduled.again = parts_.clock.Now() + kRetryAfter;
    } else {
      scheduled_.erase(session.get());
    }
  }
  if (failed) {
    spdlog::warn("checkpoint of session id={} failed, its last one is whole: {}", session->id(),
                 std::string(status.message()));
  }
  if (status.ok()) NoteProgress(session);  // schedules the next one if steps went far meanwhile
  ended->Raise();
  Pump();
}

bool Checkpointer::HasRoom(const Session& session, std::optional<int32_t> layer, int64_t tokens) const {
  const auto fits = [&](const LayerInfo& info) {
    const int64_t undurable = info.progress.token_count - info.durable_token_count;
    // A call that is larger than the interval is allowed right after a durable copy.
    return undurable <= 0 || undurable + tokens <= policy_.every_tokens;
  };
  if (layer.has_value()) {
    const absl::StatusOr<LayerInfo> info = session.LayerAt(*layer);
    return !info.ok() || fits(*info);
  }
  const std::vector<LayerInfo> layers = session.Layers();
  return std::all_of(layers.begin(), layers.end(),
                     [&](const LayerInfo& info) { return info.progress.draft_length == 0 || fits(info); });
}

Task<absl::Status> Checkpointer::WaitForRoom(std::shared_ptr<Session> session, std::optional<int32_t> layer,
                                             int64_t tokens, Deadline deadline) {
  // Do not wait if the session has ended or is lost: no checkpoint would be made, and the step is refused.
  while (bounds_steps() && !HasRoom(*session, layer, tokens) && session->CheckAlive().ok()) {
    Schedule(session);
    std::shared_ptr<Signal> ended;
    {
      absl::MutexLock lock(&mu_);
      const auto it = scheduled_.find(session.get());
      if (it != scheduled_.end() && it->second.ended == nullptr) break;  // it failed a moment ago
      if (it != scheduled_.end()) ended = it->second.ended;
    }
    if (ended != nullptr) GDN_CO_RETURN_IF_ERROR(co_await ended->Wait(deadline));
  }
  co_return absl::OkStatus();
}

void Checkpointer::NoteProgress(const std::shared_ptr<Session>& session) {
  if (policy_.every_tokens == 0) return;
  if (!session->CheckAlive().ok()) return;
  if (session->undurable().tokens >= std::max<int64_t>(policy_.every_tokens / 2, 1)) Schedule(session);
}

void Checkpointer::Sweep(const std::vector<std::shared_ptr<Session>>& sessions, SteadyTime now) {
  {
    absl::MutexLock lock(&mu_);
    std::erase_if(scheduled_, [now](const auto& entry) { return entry.second.again <= now; });
  }
  if (policy_.every == absl::InfiniteDuration()) return;
  for (const std::shared_ptr<Session>& session : sessions) {
    const Session::Undurable undurable = session->undurable();
    if (!session->CheckAlive().ok()) continue;
    if (undurable.any && now - undurable.since >= policy_.every) Schedule(session);
  }
}

// ---- A drain

struct Checkpointer::Final {
  absl::Mutex mu;
  int64_t all = 0;
  int64_t left = 0;
  int64_t failures = 0;
  CheckpointProgress progress;
  void Tell() const {
    if (progress) progress(all, all - left - failures, failures);
  }
};

int64_t Checkpointer::CheckpointAll(const std::vector<std::shared_ptr<Session>>& sessions, absl::Duration timeout,
                                    CheckpointProgress progress) {
  last_ones_ = true;
  std::vector<std::shared_ptr<Session>> moved;
  for (const auto& session : sessions) {
    // A session with a lost state is restored from its durable copy, in a new epoch. Otherwise its client would take
    // the copy for the lost state after a restart.
    if (session->state_is_lost() || (session->undurable().any && session->CheckAlive().ok())) moved.push_back(session);
  }
  const auto final = std::make_shared<Final>();  // shared, because sessions may become durable after this has returned
  final->all = final->left = static_cast<int64_t>(moved.size());
  final->progress = std::move(progress);
  final->Tell();
  // Sessions that calls still use come last.
  std::stable_partition(moved.begin(), moved.end(), [](const auto& session) { return session->gate().pins() == 0; });
  for (const auto& session : moved) group_.Spawn(MakeDurable(session, final));
  const auto all = [final] { return final->left == 0; };
  absl::MutexLock lock(&final->mu);
  if (!AwaitSteadily(final->mu, absl::Condition(&all), timeout)) {
    spdlog::error("{} of {} sessions were not durable when the time for it was over", final->left, moved.size());
  }
  return final->failures + final->left;
}

Task<void> Checkpointer::MakeDurable(std::shared_ptr<Session> session, std::shared_ptr<Final> final) {
  absl::Status status;
  if (session->state_is_lost()) {
    status = co_await Restore(session, std::string());
  } else {
    const absl::StatusOr<CheckpointResult> made = co_await Checkpoint(session, std::string());
    status = made.status();
  }
  const bool failed = !status.ok() && !absl::IsNotFound(status);
  if (failed) {
    spdlog::warn("session id={} could not be made durable: {}", session->id(), std::string(status.message()));
  }
  absl::MutexLock lock(&final->mu);
  final->failures += failed ? 1 : 0;
  --final->left;
  final->Tell();
}

}  // namespace gdn
