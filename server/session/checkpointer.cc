#include "server/session/checkpointer.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/steady_wait.h"
#include "base/string_cat.h"
#include "server/session/session_errors.h"
#include "server/session/session_holders.h"

namespace gdn {
namespace {

constexpr int kMostCopies = 4;
constexpr int kThreads = 2;
constexpr absl::Duration kRetryAfter = absl::Seconds(5);  // a full disk does not empty itself at once

// Whether a call that now has the session locked still wants this state.
absl::Status CheckWanted(const SessionLease& lease, const WaitLimit& limit, const std::optional<int64_t>& epoch) {
  GDN_RETURN_IF_ERROR(limit.Check());
  GDN_RETURN_IF_ERROR(lease.session()->CheckAlive());
  return CheckEpoch(*lease.session(), epoch);
}

}  // namespace

Checkpointer::Checkpointer(const CheckpointerParts& parts, const CheckpointPolicy& policy)
    : parts_(parts),
      policy_(policy),
      copies_({.name = "gdn-ckpt-copy", .threads = kThreads, .niceness = 5}),
      writes_({.name = "gdn-ckpt-write", .threads = kThreads, .niceness = 10}) {}

Checkpointer::~Checkpointer() {
  {
    absl::MutexLock lock(&mu_);
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return open_ == 0 && active_ == 0 && locking_ == 0 && waiting_.empty();
    };
    mu_.Await(absl::Condition(&idle));
  }
  copies_.Drain();
  writes_.Drain();
}

std::shared_ptr<void> Checkpointer::Open() {
  absl::MutexLock lock(&mu_);
  ++open_;
  return {nullptr, [this](void*) {
            absl::MutexLock closing(&mu_);
            --open_;
          }};
}

void Checkpointer::Capture(const std::shared_ptr<Session>& session, std::function<BaseVersions()> known,
                           CapturedDone done, const WaitLimit& limit, const std::optional<int64_t>& epoch) {
  session->Lock([this, open = Open(), known = std::move(known), done = std::move(done), limit,
                 epoch](SessionLease lease) mutable {
    if (absl::Status no = CheckWanted(lease, limit, epoch); !no.ok()) return Refuse(std::move(lease), no, done);
    CaptureLocked(parts_.transfers, StateCopier::Threads::kAll, std::move(lease), std::move(known), std::move(done));
  });
}

template <typename Done>
void Checkpointer::Refuse(SessionLease lease, const absl::Status& status, const Done& done) {
  lease.Release();
  done(status);
}

void Checkpointer::CaptureLocked(TaskQueue& queue, StateCopier::Threads threads, SessionLease lease,
                                 std::function<BaseVersions()> known, CapturedDone done) {
  if (absl::Status alive = lease.session()->CheckAlive(); !alive.ok()) return done(std::move(alive));
  auto shared = std::make_shared<SessionLease>(std::move(lease));
  const Turn turn = shared->session()->account()->turn();
  const auto capture = [this, threads, open = Open(), known = std::move(known), done = std::move(done), shared] {
    const std::shared_ptr<Session> locked = shared->session();
    // What is parked is as it was before a device failed; what is on the device nobody vouches for.
    absl::StatusOr<SessionImagePtr> image;
    if (shared->resident()) {
      image = parts_.copier.CopyOut(*shared, known ? known() : BaseVersions(), threads);
    } else {
      image = parts_.tiers.Fetch(locked->key());
      // A session that was found at the start is in a later epoch than its file; it was just read, so nobody else has
      // it.
      if (image.ok() && (*image)->header.epoch != locked->epoch()) {
        SessionHeader& header = std::const_pointer_cast<SessionImage>(*image)->header;
        header.epoch = locked->epoch();
        header.changes = static_cast<int64_t>(shared->changes());
      }
    }
    if (!image.ok()) return done(image.status());
    CapturedState captured;
    captured.image = *std::move(image);
    captured.changes = shared->changes();
    captured.layers = locked->Layers();
    captured.when = locked->Now();
    shared->Hold();
    captured.held = std::move(*shared);
    done(std::move(captured));
  };
  queue.Post(capture, turn);
}

void Checkpointer::Write(CapturedState captured, const std::string& checkpoint_id, const CheckpointDone& done) {
  const std::shared_ptr<Session> session = captured.held.session();
  StateKey key = session->key();
  key.checkpoint = checkpoint_id;
  absl::StatusOr<StoreResult> stored = parts_.tiers.Checkpoint(
      key, captured.image, {.first = captured.room.tier, .within_quota = !last_ones_.load(std::memory_order_relaxed)});
  captured.room = {};
  if (!stored.ok() && !captured.image->has_all_bases()) {
    // No other tier takes a copy without its bases, nor does the disk if it has lost the file that had them.
    captured.image = nullptr;
    captured.held.Release();
    session->Lock([this, open = Open(), checkpoint_id, done,
                   charge = std::make_shared<ByteCharge>(std::move(captured.charge))](SessionLease lease) {
      CheckpointLocked(std::move(lease), std::move(*charge), checkpoint_id, done, /*whole=*/true);
    });
    return;
  }
  (stored.ok() ? made_ : failed_).fetch_add(1, std::memory_order_relaxed);
  if (!stored.ok()) {
    captured.held.Release();
    return done(stored.status());
  }
  if (checkpoint_id.empty()) {
    std::vector<int64_t> counts;
    for (const LayerInfo& layer : captured.layers) counts.push_back(layer.progress.token_count);
    session->NoteDurable(captured.changes, counts, captured.when);
  }
  CheckpointResult result{.stored = *stored,
                          .epoch = captured.image->header.epoch,
                          .layers = std::move(captured.layers),
                          .when = captured.when.shown};
  for (LayerInfo& layer : result.layers) layer.durable_token_count = layer.progress.token_count;
  captured.image = nullptr;
  captured.held.Release();
  captured.charge.Release();
  done(std::move(result));
}

void Checkpointer::Checkpoint(const std::shared_ptr<Session>& session, const std::string& checkpoint_id,
                              CheckpointDone done, const WaitLimit& limit, const std::optional<int64_t>& epoch) {
  if (parts_.tiers.durable() == nullptr) return done(NoDurableTier());
  session->Lock([this, open = Open(), checkpoint_id, done = std::move(done), limit, epoch](SessionLease lease) mutable {
    if (absl::Status no = CheckWanted(lease, limit, epoch); !no.ok()) return Refuse(std::move(lease), no, done);
    const std::shared_ptr<Session> locked = lease.session();
    const int64_t bytes = parts_.room.BytesOf(*locked);
    auto charge = parts_.ledger.TryCharge(BytePool::kCopies, locked->account(), bytes);
    if (charge.ok()) {
      return CheckpointLocked(std::move(lease), *std::move(charge), checkpoint_id, std::move(done));
    }
    lease.Release();  // its steps go on until there is memory for a copy; and what waits for its steps holds none
    parts_.ledger.WhenCharged(
        BytePool::kCopies, locked->account(), bytes,
        [this, open, locked, checkpoint_id, done = std::move(done), limit, epoch](ByteCharge granted) mutable {
          auto shared = std::make_shared<ByteCharge>(std::move(granted));
          locked->Lock(
              [this, open, checkpoint_id, done = std::move(done), limit, epoch, shared](SessionLease again) mutable {
                if (absl::Status no = CheckWanted(again, limit, epoch); !no.ok()) {
                  return Refuse(std::move(again), no, done);
                }
                CheckpointLocked(std::move(again), std::move(*shared), checkpoint_id, std::move(done));
              });
        });
  });
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

void Checkpointer::CheckpointLocked(SessionLease lease, ByteCharge charge, const std::string& checkpoint_id,
                                    CheckpointDone done, bool whole) {
  StateKey key = lease.session()->key();
  key.checkpoint = checkpoint_id;
  absl::StatusOr<CheckpointRoom> room = TakeRoom(*lease.session(), key);
  if (!room.ok()) return Refuse(std::move(lease), room.status(), done);
  // A named checkpoint stands for itself, so it holds everything.
  std::function<BaseVersions()> known;
  if (checkpoint_id.empty() && !whole && room->tier == parts_.tiers.durable()) {
    known = [&tiers = parts_.tiers, key] { return tiers.KnownBases(key); };
  }
  CaptureLocked(copies_, StateCopier::Threads::kCallerOnly, std::move(lease), std::move(known),
                [this, checkpoint_id, done = std::move(done), room = std::make_shared<CheckpointRoom>(*std::move(room)),
                 charged = std::make_shared<ByteCharge>(std::move(charge))](absl::StatusOr<CapturedState> captured) {
                  if (!captured.ok()) return done(captured.status());
                  captured->charge = std::move(*charged);
                  captured->room = std::move(*room);
                  const Turn turn = captured->held.session()->account()->turn();
                  auto shared = std::make_shared<CapturedState>(*std::move(captured));
                  const auto write = [this, open = Open(), checkpoint_id, done, shared] {
                    Write(std::move(*shared), checkpoint_id, done);
                  };
                  writes_.Post(write, turn);
                });
}

bool Checkpointer::Schedule(const std::shared_ptr<Session>& session) {
  if (parts_.tiers.durable() == nullptr) return false;
  {
    absl::MutexLock lock(&mu_);
    const auto it = scheduled_.find(session.get());
    if (it != scheduled_.end() && it->second > parts_.clock.Now()) return false;
    scheduled_[session.get()] = SteadyTime::InfiniteFuture();
    waiting_.Push(session->account()->turn(), session);
  }
  PumpLater();
  return true;
}

// Not at once: one may end before its beginning has returned, and so on for thousands.
void Checkpointer::PumpLater() {
  parts_.io.Post([this, open = Open()] { Pump(); });
}

void Checkpointer::Pump() {
  for (;;) {
    std::shared_ptr<Session> session;
    {
      absl::MutexLock lock(&mu_);
      if (waiting_.empty() || active_ == kMostCopies) return;
      session = waiting_.Pop()->item;
      ++locking_;
    }
    session->Lock([this, open = Open()](SessionLease lease) { ScheduledLocked(std::move(lease)); });
  }
}

void Checkpointer::ScheduledLocked(SessionLease lease) {
  const std::shared_ptr<Session> session = lease.session();
  const int64_t bytes = parts_.room.BytesOf(*session);
  {
    absl::MutexLock lock(&mu_);
    const Turn turn = session->account()->turn();
    --locking_;
    if (active_ == kMostCopies) {  // others were faster: its steps go on until a copy has ended
      waiting_.PutBack({.turn = turn, .item = session});
      return;
    }
    waiting_.Charge(turn, static_cast<double>(bytes));
    ++active_;
  }
  ByteCharge charge = parts_.ledger.Charge(BytePool::kCopies, session->account(), bytes);
  CheckpointLocked(
      std::move(lease), std::move(charge), /*checkpoint_id=*/"",
      [this, session](const absl::StatusOr<CheckpointResult>& result) { ScheduledDone(session, result.status()); });
}

void Checkpointer::ScheduledDone(const std::shared_ptr<Session>& session, const absl::Status& status) {
  const bool failed = !status.ok() && session->CheckAlive().ok();  // one that has ended, or is lost, has none
  const std::shared_ptr<void> open = Open();
  std::vector<std::function<void()>> ready;
  {
    absl::MutexLock lock(&mu_);
    --active_;
    if (const auto it = wait_for_room_.find(session.get()); it != wait_for_room_.end()) {
      ready = std::move(it->second);
      wait_for_room_.erase(it);
    }
    if (failed) {
      scheduled_[session.get()] = parts_.clock.Now() + kRetryAfter;
    } else {
      scheduled_.erase(session.get());
    }
  }
  if (failed) {
    spdlog::warn("checkpoint of session id={} failed, its last one is whole: {}", session->id(),
                 std::string(status.message()));
  }
  if (status.ok()) NoteProgress(session);  // one that has ended has nothing left to make durable
  for (std::function<void()>& callback : ready) parts_.io.Post(std::move(callback), session->account()->turn());
  PumpLater();
}

bool Checkpointer::HasRoom(const Session& session, std::optional<int32_t> layer, int64_t tokens) const {
  const auto fits = [&](const LayerInfo& info) {
    const int64_t undurable = info.progress.token_count - info.durable_token_count;
    // A call that is larger than the interval has to be taken somewhere: right behind a durable copy.
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

bool Checkpointer::WaitForRoom(const std::shared_ptr<Session>& session, std::optional<int32_t> layer, int64_t tokens,
                               std::function<void()> ready) {
  if (!bounds_steps()) return true;
  // The step of a session that has ended, or is lost, is refused, and no checkpoint would come of it.
  if (HasRoom(*session, layer, tokens) || !session->CheckAlive().ok()) return true;
  Schedule(session);
  absl::MutexLock lock(&mu_);
  const auto it = scheduled_.find(session.get());
  if (it == scheduled_.end()) {  // it has ended meanwhile
    parts_.io.Post(std::move(ready), session->account()->turn());
    return false;
  }
  if (it->second != SteadyTime::InfiniteFuture()) return true;  // it failed a moment ago
  wait_for_room_[session.get()].push_back(std::move(ready));
  return false;
}

void Checkpointer::NoteProgress(const std::shared_ptr<Session>& session) {
  if (policy_.every_tokens == 0) return;
  if (!session->CheckAlive().ok()) return;
  if (session->undurable().tokens >= std::max<int64_t>(policy_.every_tokens / 2, 1)) Schedule(session);
}

void Checkpointer::Sweep(const std::vector<std::shared_ptr<Session>>& sessions, SteadyTime now) {
  {
    absl::MutexLock lock(&mu_);
    std::erase_if(scheduled_, [now](const auto& entry) { return entry.second <= now; });
  }
  if (policy_.every == absl::InfiniteDuration()) return;
  for (const std::shared_ptr<Session>& session : sessions) {
    const Session::Undurable undurable = session->undurable();
    if (!session->CheckAlive().ok()) continue;
    if (undurable.any && now - undurable.since >= policy_.every) Schedule(session);
  }
}

int64_t Checkpointer::CheckpointAll(const std::vector<std::shared_ptr<Session>>& sessions, absl::Duration timeout,
                                    CheckpointProgress progress) {
  struct Final {
    absl::Mutex mu;
    size_t all = 0;
    size_t left = 0;
    int64_t failures = 0;
    CheckpointProgress progress;
    void Tell() const {
      if (progress) progress(static_cast<int64_t>(all), static_cast<int64_t>(all - left) - failures, failures);
    }
  };
  last_ones_ = true;
  std::vector<std::shared_ptr<Session>> moved;
  for (const auto& session : sessions) {
    // A session whose state is lost goes back to its durable copy: in a new epoch, or after a start its client would
    // take the copy for what it knows.
    if (session->state_is_lost() || (session->undurable().any && session->CheckAlive().ok())) moved.push_back(session);
  }
  const auto final = std::make_shared<Final>();  // answers may come when nobody waits any more
  final->all = final->left = moved.size();
  final->progress = std::move(progress);
  final->Tell();
  // Those that calls still use come last: what waits for them has no part in the memory for copies.
  std::stable_partition(moved.begin(), moved.end(), [](const auto& session) { return session->gate().pins() == 0; });
  for (const auto& session : moved) {
    const auto done = [final, session](const absl::Status& status) {
      const bool failed = !status.ok() && !absl::IsNotFound(status);
      if (failed) {
        spdlog::warn("session id={} could not be made durable: {}", session->id(), std::string(status.message()));
      }
      absl::MutexLock lock(&final->mu);
      final->failures += failed;
      --final->left;
      final->Tell();
    };
    if (session->state_is_lost()) {
      Restore(session, "", done);
    } else {
      Checkpoint(session, "", [done](const absl::StatusOr<CheckpointResult>& result) { done(result.status()); });
    }
  }
  const auto all = [final] { return final->left == 0; };
  absl::MutexLock lock(&final->mu);
  if (!AwaitSteadily(final->mu, absl::Condition(&all), timeout)) {
    spdlog::error("{} of {} sessions were not durable when the time for it was over", final->left, moved.size());
  }
  return final->failures + static_cast<int64_t>(final->left);
}

}  // namespace gdn
