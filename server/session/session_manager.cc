#include "server/session/session_manager.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/resume_on.h"
#include "base/task/status_macros.h"
#include "base/task/task_queue_executor.h"
#include "base/task/when_all.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

// Sessions that ListAll visits before it releases the mutex, which every step needs to find its session.
constexpr int kListedAtOnce = 64;

absl::Status Busy(const std::string& id, std::string_view why) {
  return MakeError(absl::StatusCode::kAborted, reason::kSessionBusy, StrCat(StateName(id), " ", why, "; try again"),
                   {{"session", StateName(id)}});
}

bool IsExpired(const Session& session, SteadyTime now) {
  if (session.lease() != nullptr && session.lease()->ended()) return true;
  return now - session.last_used() > session.idle_ttl() || now - session.born() > session.max_lifetime();
}

}  // namespace

SessionCreation::~SessionCreation() {
  if (manager_ == nullptr) return;
  manager_->Remove(key_);
  manager_->places_.room.Forget(*session_);
}

void SessionCreation::Publish() {
  if (manager_ == nullptr) return;
  absl::MutexLock lock(&manager_->mu_);
  SessionManager::Entry& entry = manager_->sessions_.at(key_);
  entry.session = session_;
  entry.phase = SessionManager::Phase::kPublished;
  if (session_->is_snapshot()) manager_->environment_.snapshots().Add(session_);
  manager_ = nullptr;
}

absl::StatusOr<SessionCreation> SessionManager::BeginUnchecked(SessionInit init, ByteCharge snapshot) {
  if (init.id.empty()) init.id = RandomId();
  if (init.affinity.empty()) init.affinity = init.id;
  const Key key(init.principal, init.id);
  absl::MutexLock lock(&mu_);
  if (const auto it = sessions_.find(key); it != sessions_.end()) {
    if (it->second.phase == Phase::kMaking) return Busy(init.id, "is being made by another call");
    if (it->second.phase == Phase::kEnding) return Busy(init.id, "is being deleted");
    if (it->second.session->request() != init.request) return SessionExists(init.id);
    return SessionCreation(nullptr, key, it->second.session, SessionLease());
  }
  GDN_RETURN_IF_ERROR(CheckNotAway(key.first, key.second));
  ByteLedger& ledger = environment_.ledger();
  if (init.account == nullptr) init.account = ledger.AccountOf(init.principal, /*peer=*/"");
  ByteCharge count, charge = std::move(snapshot);
  if (!IsSnapshotId(init.id)) {
    GDN_ASSIGN_OR_RETURN(count, ledger.TryCharge(BytePool::kSessions, init.account, 1));
    GDN_ASSIGN_OR_RETURN(charge, ledger.TryCharge(BytePool::kStates, init.account, places_.room.BytesOf(init.spec)));
  }
  const size_t layers = init.spec.layers.size();
  auto session = std::make_shared<Session>(std::move(init), std::vector<LayerInfo>(layers), &environment_);
  sessions_.emplace(key, Entry{.session = session,
                               .charge = std::move(charge),
                               .count = std::move(count),
                               .in_lease = CountedInLease(session->lease())});
  environment_.holders().Set(session->key(), session->account());
  SessionLease lease = session->TryLock();
  return SessionCreation(this, key, std::move(session), std::move(lease));
}

absl::StatusOr<SessionCreation> SessionManager::Begin(SessionInit init, ByteCharge snapshot) {
  GDN_ASSIGN_OR_RETURN(SessionCreation creation, BeginUnchecked(std::move(init), std::move(snapshot)));
  // Check the right after the session was added: whoever gives the right back looks for the session after that, so one
  // of the two sees the other.
  if (environment_.has_right && creation.pending() && !environment_.has_right(creation.session()->key())) {
    return SessionMoved(creation.session()->id());
  }
  return creation;
}

SessionLease SessionManager::Adopt(SessionInit init, std::vector<LayerInfo> layers, absl::Time durable_time,
                                   bool epoch_is_stored) {
  const Key key(init.principal, init.id);
  std::vector<int64_t> counts;
  counts.reserve(layers.size());
  for (const LayerInfo& layer : layers) counts.push_back(layer.progress.token_count);
  const auto changes = static_cast<uint64_t>(init.changes);
  auto session = std::make_shared<Session>(std::move(init), std::move(layers), &environment_);
  session->NoteDurable(epoch_is_stored ? changes : 0, counts, {.shown = durable_time, .at = session->Now().at});
  SessionLease lease = session->TryLock();
  absl::MutexLock lock(&mu_);
  const auto [it, adopted] = sessions_.try_emplace(key);
  if (!adopted) return SessionLease();
  ByteLedger& ledger = environment_.ledger();
  const BytePool pool = session->is_snapshot() ? BytePool::kSnapshots : BytePool::kStates;
  it->second = {.session = session,
                .charge = ledger.Charge(pool, session->account(), places_.room.BytesOf(session->spec())),
                .count = {},
                .in_lease = CountedInLease(session->lease()),
                .phase = Phase::kPublished};
  environment_.holders().Set(session->key(), session->account());
  if (session->is_snapshot()) {
    environment_.snapshots().Add(session);
  } else {
    it->second.count = ledger.Charge(BytePool::kSessions, session->account(), 1);
  }
  return lease;
}

void SessionManager::Remove(const Key& key) {
  decltype(sessions_)::node_type removed;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(key);
  if (it == sessions_.end()) return;
  if (IsSnapshotId(key.second)) environment_.snapshots().Remove(*it->second.session);
  removed = sessions_.extract(it);
  environment_.holders().Forget({.principal = key.first, .id = key.second, .checkpoint = ""});
}

void SessionManager::SetUnknownIn(std::string_view tier) {
  absl::MutexLock lock(&mu_);
  unknown_in_ = tier;
}

void SessionManager::SetAway(const std::map<StateKey, std::string>& tiers) {
  absl::MutexLock lock(&mu_);
  away_.clear();
  for (const auto& [key, tier] : tiers) away_.emplace(Key(key.principal, key.id), tier);
}

absl::Status SessionManager::CheckNotAway(std::string_view principal, std::string_view id) const {
  const auto it = away_.find(KeyLess::View(principal, id));
  return it == away_.end() ? absl::OkStatus() : SessionAwayIn(it->second, std::string(id));
}

absl::StatusOr<std::shared_ptr<Session>> SessionManager::Find(std::string_view principal, std::string_view id) const {
  GDN_RETURN_IF_ERROR(environment_.CheckOurs());
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(KeyLess::View(principal, id));
  if (it == sessions_.end()) GDN_RETURN_IF_ERROR(CheckNotAway(principal, id));
  if (it == sessions_.end() && !unknown_in_.empty()) return SessionMaybeIn(unknown_in_, std::string(id));
  if (it == sessions_.end() || it->second.phase != Phase::kPublished) return SessionNotFound(std::string(id));
  it->second.session->Touch();
  return it->second.session;
}

bool SessionManager::Knows(std::string_view principal, std::string_view id) const {
  absl::MutexLock lock(&mu_);
  return sessions_.contains(KeyLess::View(principal, id));
}

std::shared_ptr<Session> SessionManager::Peek(const StateKey& key) const {
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(KeyLess::View(key.principal, key.id));
  return it == sessions_.end() || it->second.phase != Phase::kPublished ? nullptr : it->second.session;
}

std::vector<std::shared_ptr<Session>> SessionManager::List(const std::string& principal, const std::string& after,
                                                           size_t limit) const {
  // Ids of snapshots come first. All of them are before this text, and all ids of sessions are after it.
  static const std::string kAfterSnapshots(1, kSnapshotMark + 1);
  return ListFrom(principal, std::max(after, kAfterSnapshots), limit, /*snapshots=*/false);
}

std::vector<std::shared_ptr<Session>> SessionManager::ListSnapshots(const std::string& principal,
                                                                    const std::string& after, size_t limit) const {
  return ListFrom(principal, after, limit, /*snapshots=*/true);
}

std::vector<std::shared_ptr<Session>> SessionManager::ListFrom(const std::string& principal, const std::string& after,
                                                               size_t limit, bool snapshots) const {
  std::vector<std::shared_ptr<Session>> listed;
  absl::MutexLock lock(&mu_);
  for (auto it = sessions_.upper_bound(Key(principal, after));
       it != sessions_.end() && it->first.first == principal && listed.size() < limit; ++it) {
    if (IsSnapshotId(it->first.second) != snapshots) break;
    if (it->second.phase == Phase::kPublished) listed.push_back(it->second.session);
  }
  return listed;
}

std::vector<std::shared_ptr<Session>> SessionManager::ListAll(const Key& after, size_t limit,
                                                              bool with_snapshots) const {
  std::vector<std::shared_ptr<Session>> listed;
  Key last = after;
  while (true) {
    absl::MutexLock lock(&mu_);
    auto it = sessions_.upper_bound(last);
    for (int i = 0; i < kListedAtOnce && it != sessions_.end() && listed.size() < limit; ++i, ++it) {
      if (!with_snapshots && IsSnapshotId(it->first.second)) continue;
      if (it->second.phase == Phase::kPublished) listed.push_back(it->second.session);
    }
    if (it == sessions_.end() || listed.size() == limit) return listed;
    last = std::prev(it)->first;
  }
}

SessionManager::Entry* SessionManager::FreeEntryOf(const Session& session) {
  const auto it = sessions_.find(KeyLess::View(session.principal(), session.id()));
  const bool is_free = it != sessions_.end() && it->second.session.get() == &session &&
                       it->second.phase == Phase::kPublished && !it->second.leaves;
  return is_free ? &it->second : nullptr;
}

bool SessionManager::BeginEnd(const Session& session) {
  absl::MutexLock lock(&mu_);
  Entry* const entry = FreeEntryOf(session);
  if (entry != nullptr) entry->phase = Phase::kEnding;
  return entry != nullptr;
}

bool SessionManager::Ends(const Key& key) const {
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(key);
  return it != sessions_.end() && it->second.phase == Phase::kEnding;
}

Task<absl::Status> SessionManager::End(std::shared_ptr<Session> session, bool even_unnoted) {
  absl::StatusOr<SessionLease> lease = co_await session->Lock();  // without a deadline, so it comes
  if (places_.tiers.empty()) co_return EraseLocked(*lease, even_unnoted);
  TaskQueueExecutor io(places_.io, session->account()->turn(), places_.executor);
  Executor& here = co_await ThisExecutor();
  co_await ResumeOn(io);
  absl::Status erased = EraseLocked(*lease, even_unnoted);
  lease->Release();
  co_await ReturnTo(here);
  co_return erased;
}

absl::Status SessionManager::EraseLocked(SessionLease& lease, bool even_unnoted) {
  const std::shared_ptr<Session> session = lease.session();
  const Key key(session->principal(), session->id());
  absl::Status refused;
  // In a fleet the session may belong to another server now. The client's retry deletes it there.
  if (!places_.tiers.empty() && environment_.shares_sessions()) refused = session->CheckRestorable();
  if (!places_.tiers.empty() && refused.ok()) refused = places_.tiers.Erase(session->key(), even_unnoted);
  if (!refused.ok()) {
    // A durable copy may be erased although the tier's answer was lost, so the session counts as not durable.
    session->NoteNotDurable();
    absl::MutexLock lock(&mu_);
    sessions_.at(key).phase = Phase::kPublished;
    return refused;
  }
  lease.MarkDeleted();
  places_.room.Forget(*session);
  Remove(key);
  return absl::OkStatus();
}

Task<absl::Status> SessionManager::Delete(std::string principal, std::string id) {
  const Key key(principal, id);
  absl::StatusOr<std::shared_ptr<Session>> session = Find(principal, id);
  // Not NOT_FOUND while the first try is still running: the client would think that the session is deleted, but a crash
  // would bring the durable copy back.
  if (!session.ok() && Ends(key)) co_return Busy(id, "is being deleted");
  GDN_CO_RETURN_IF_ERROR(session.status());
  if ((*session)->gate().pins() > 0) co_return Busy(id, "has a step in flight, which ends first");
  if (!BeginEnd(**session)) {
    if (Peek((*session)->key()) == *session) co_return Busy(id, "leaves for another server");
    if (Ends(key)) co_return Busy(id, "is being deleted");
    co_return SessionNotFound(id);
  }
  co_return co_await End(*std::move(session), /*even_unnoted=*/false);
}

absl::Status SessionManager::DropSnapshot(SessionLease& lease) {
  const std::shared_ptr<Session> snapshot = lease.session();
  if (!BeginEnd(*snapshot)) return Busy(snapshot->id(), "is being deleted, or leaves for another server");
  GDN_RETURN_IF_ERROR(EraseLocked(lease, /*even_unnoted=*/false));
  environment_.snapshots().NoteLost(snapshot->principal(), snapshot->id().substr(1), SnapshotLoss::Cause::kEvicted);
  return absl::OkStatus();
}

void SessionManager::DeleteSoon(std::string principal, std::string id) {
  group_.Spawn(Delete(std::move(principal), std::move(id)));
}

Task<absl::Status> SessionManager::Reset(std::shared_ptr<Session> session, std::string numerics_id, Deadline deadline,
                                         std::optional<int64_t> epoch) {
  GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await session->Lock(deadline));
  GDN_CO_RETURN_IF_ERROR(session->CheckAlive());
  GDN_CO_RETURN_IF_ERROR(CheckEpoch(*session, epoch));
  GDN_CO_RETURN_IF_ERROR(deadline.Check(SteadyNow()));
  if (lease.resident() && !places_.tiers.HasDurableCopy(session->key())) {
    lease.CountChange();
    lease.Reset();
    co_return absl::OkStatus();
  }
  TaskQueueExecutor io(places_.io, session->account()->turn(), places_.executor);
  Executor& here = co_await ThisExecutor();
  co_await ResumeOn(io);
  absl::Status reset = deadline.Check(SteadyNow());
  if (reset.ok()) reset = ResetStored(lease, numerics_id);
  lease.Release();
  co_await ReturnTo(here);
  co_return reset;
}

absl::Status SessionManager::ResetStored(SessionLease& lease, const std::string& numerics_id) {
  const std::shared_ptr<Session> session = lease.session();
  const StateKey key = session->key();
  TierStack& tiers = places_.tiers;
  lease.CountChange();  // the copy of the reset state is later than every other one
  const auto image = std::make_shared<SessionImage>(lease.Describe(numerics_id));
  image->layers.clear();
  image->header.accept_request_id.clear();
  image->header.accepted_tokens = 0;
  image->header.accepted_path.clear();
  GDN_ASSIGN_OR_RETURN(image->layout, places_.room.store(0).LayoutOf(session->spec().dims));
  if (!tiers.HasDurableCopy(key)) {  // it is parked in host memory
    GDN_RETURN_IF_ERROR(tiers.Park(key, image));
    lease.Reset();
    // Host memory may have had no room.
    if (tiers.HasDurableCopy(key)) session->NoteDurable(lease.changes(), lease.counts(), session->Now());
    return absl::OkStatus();
  }
  // First make the reset durable. What steps since the last copy have added is lost with the rest.
  if (absl::Status stored = tiers.Checkpoint(key, image).status(); !stored.ok()) {
    lease.CountChange();
    // If a tier's answer was lost, the tier may have the reset state. So the session counts as not durable.
    if (absl::IsUnavailable(stored)) session->NoteNotDurable();
    return stored;
  }
  if (!lease.resident()) {
    tiers.Release(key);
    tiers.RestAtCheckpoint(key, image->bytes());
  }
  lease.Reset();
  session->NoteDurable(lease.changes(), lease.counts(), session->Now());
  return absl::OkStatus();
}

Task<absl::Status> SessionManager::Leave(std::shared_ptr<Session> session, MoveFn move) {
  const Key key(session->principal(), session->id());
  if (!BeginLeave(*session)) co_return Busy(session->id(), "ends, or leaves for another server");
  absl::StatusOr<SessionLease> lease = co_await session->Lock();  // without a deadline, so it comes
  TaskQueueExecutor io(places_.io, session->account()->turn(), places_.executor);
  Executor& here = co_await ThisExecutor();
  co_await ResumeOn(io);
  absl::Status moved = move(*lease);
  while (!moved.ok() && !Stays(key, *session)) moved = move(*lease);
  if (moved.ok()) {
    places_.tiers.Forget(session->key());
    lease->MarkEnded(SessionMoved(session->id()));
    places_.room.Forget(*session);
    Remove(key);
  }
  lease->Release();
  co_await ReturnTo(here);
  co_return moved;
}

bool SessionManager::BeginLeave(const Session& session) {
  absl::MutexLock lock(&mu_);
  Entry* const entry = FreeEntryOf(session);
  if (entry != nullptr) entry->leaves = true;
  return entry != nullptr;
}

bool SessionManager::Stays(const Key& key, const Session& session) {
  absl::MutexLock lock(&mu_);
  // The task that found the session lost was refused because it leaves, and does not try again. So it must leave now.
  if (!session.CheckNotLost().ok()) return false;
  sessions_.at(key).leaves = false;
  return true;
}

void SessionManager::DeleteExpired(SteadyTime now) {
  if (!environment_.CheckOurs().ok()) return;  // other servers may own the sessions, and expire them
  leases_.EndLapsed(now);
  for (const std::shared_ptr<Session>& session : All()) {
    if (!IsExpired(*session, now) || session->gate().pins() > 0) continue;
    if (!BeginEnd(*session)) continue;
    expired_.fetch_add(1, std::memory_order_relaxed);
    // `even_unnoted`: a session that comes back after a crash keeps its age and expires again.
    group_.Spawn(End(session, /*even_unnoted=*/true));
  }
}

Task<int64_t> SessionManager::EndLease(ClientLeasePtr lease) {
  leases_.End(lease);  // sessions that are being created under it are left to DeleteExpired
  std::vector<Task<absl::Status>> ends;
  for (const auto list : {&SessionManager::ListSnapshots, &SessionManager::List}) {
    std::string after;
    while (true) {
      const std::vector<std::shared_ptr<Session>> page = (this->*list)(lease->principal(), after, kListedAtOnce);
      if (page.empty()) break;
      for (const std::shared_ptr<Session>& session : page) {
        if (session->lease() == lease && BeginEnd(*session)) ends.push_back(End(session, /*even_unnoted=*/true));
      }
      after = page.back()->id();
    }
  }
  Task<std::vector<absl::Status>> all = WhenAll(std::move(ends));
  const std::vector<absl::Status> ended = co_await std::move(all);
  co_return std::ranges::count_if(ended, [](const absl::Status& status) { return status.ok(); });
}

size_t SessionManager::size() const {
  absl::MutexLock lock(&mu_);
  return sessions_.size();
}

}  // namespace gdn
