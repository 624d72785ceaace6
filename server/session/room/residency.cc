#include "server/session/room/residency.h"

#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/resume_on.h"
#include "base/task/sleep.h"
#include "base/task/status_macros.h"
#include "base/task/task_queue_executor.h"
#include "base/task/when_all.h"
#include "server/session/durable/foreign_state.h"

namespace gdn {
namespace {

// How long a call waits for others to release states that are in the way of its own.
constexpr absl::Duration kPatience = absl::Seconds(1);
// How much longer a call waits while states come back for other calls, which hold room until then. This is longer than
// it takes to detect that a tier hangs (StateService).
constexpr absl::Duration kPatienceWithOthers = absl::Seconds(19);
// How often this checks for calls that have ended if all sessions are in use.
constexpr absl::Duration kPoll = absl::Milliseconds(2);
// Longest time that the residency thread works for one call before the next one's turn; it moves at least one session.
constexpr absl::Duration kSlice = absl::Milliseconds(5);
// Pause before it looks again for idle sessions to move ahead of need, if there was none.
constexpr absl::Duration kAheadPause = absl::Milliseconds(200);

absl::Status NeverFits(int64_t needed, int64_t budget) {
  return MakeError(
      absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
      StrCat("the sessions of this call need ", needed, " bytes on the device at the same time, and its budget is ",
             budget, "; send them in smaller batches, or raise --device-state-bytes"),
      {{"needed", StrCat(needed)}, {"available", StrCat(budget)}});
}

RoomRequest RoomFor(const DeviceRoom& room, const Session& session) {
  const SessionSpec& spec = session.spec();
  return {.dims = spec.dims,
          .count = static_cast<int32_t>(spec.layers.size()),
          .affinity = DeviceRoom::AffinityOf(session),
          .account = session.account(),
          .bytes = room.BytesOf(session)};
}

}  // namespace

struct Residency::Need {
  RoomRequest room;
  RoomClaims claims;
  absl::Status status;
  // For a session's states:
  size_t index = 0;  // index in the request's sessions
  SessionLease lease;
  SessionImagePtr image;  // nullptr: fetch it from the tiers

  bool wants_claims() const { return status.ok() && claims.empty() && room.count > 0; }
  // Refuses the need, and frees its room before the call is answered, because the client's next call may need the room.
  void Refuse(absl::Status why) {
    status = std::move(why);
    claims.clear();
    lease.Release();
  }
};

struct Residency::Request {
  Request(Residency& of, ByteAccountPtr by, Deadline until, Executor& from)
      : open(of.open_.Begin()),
        here(from),
        account(std::move(by)),
        deadline(std::move(until)),
        number(of.next_number_.fetch_add(1)),
        thread(of.thread_, account->turn(), of.parts_.executor),
        io(of.parts_.io, account->turn(), of.parts_.executor),
        memory_io(of.parts_.memory_io, account->turn(), of.parts_.executor) {}

  // First member, so destroyed last: releasing the others resumes flows that may wait until this count is 0.
  const OpenCount::Hold open;
  Executor& here;  // the executor that the call continues on
  const ByteAccountPtr account;
  const Deadline deadline;
  const uint64_t number;  // older requests have smaller numbers
  TaskQueueExecutor thread, io, memory_io;
  std::vector<std::shared_ptr<Session>> sessions;  // sessions to pin; may be empty
  PinResults pins;                                 // parallel to `sessions`
  std::vector<Need> needs;
  RoomEffort effort;
  SteadyTime patience = SteadyTime::InfiniteFuture();  // until when the request waits for others to release states

  absl::Status CheckDeadline() const { return deadline.Check(SteadyNow()); }
  void LetGo() {
    pins.clear();
    needs.clear();
  }
};

Residency::Residency(const StateParts& parts)
    : parts_(parts), thread_({.name = "gdn-residency"}), group_(parts.executor) {}

Residency::~Residency() {
  open_.WaitForNone();
  group_.Wait();
  thread_.Drain();
  parts_.io.Drain();
  parts_.memory_io.Drain();
}

ResidencyCounters Residency::counters() const {
  return {.evictions = parts_.room.evictions(),
          .returns = returns_,
          .evicted_bytes = parts_.room.evicted_bytes(),
          .returned_bytes = returned_bytes_,
          .failures = fetch_failures_ + parts_.copier.failures()};
}

// ---- What calls ask for

Residency::PinResults Residency::TryPin(const std::vector<std::shared_ptr<Session>>& sessions) {
  PinResults pins;
  pins.reserve(sessions.size());
  for (const std::shared_ptr<Session>& session : sessions) {
    SessionPin pin;
    if (session->TryPin(&pin) != Session::PinOutcome::kPinned) return {};
    pins.emplace_back(std::move(pin));
  }
  return pins;
}

Task<Residency::PinResults> Residency::Pin(std::vector<std::shared_ptr<Session>> sessions, Deadline deadline) {
  PinResults pins = TryPin(sessions);  // usually succeeds
  if (!pins.empty()) co_return pins;
  Executor& here = co_await ThisExecutor();
  Request request(*this, sessions.front()->account(), std::move(deadline), here);
  request.sessions = std::move(sessions);
  const absl::Status brought = co_await BringAll(request);
  co_await ReturnTo(here);
  if (!brought.ok()) {
    request.LetGo();
    pins.resize(request.sessions.size());
    for (absl::StatusOr<SessionPin>& pin : pins) pin = brought;
    co_return pins;
  }
  for (Need& need : request.needs) {
    if (need.status.ok()) {
      request.pins[need.index] = std::move(need.lease).IntoPin();
    } else {
      request.pins[need.index] = need.status;
    }
  }
  co_return std::move(request.pins);
}

Task<absl::StatusOr<SessionLease>> Residency::LockResident(std::shared_ptr<Session> session, Deadline deadline) {
  Executor& here = co_await ThisExecutor();
  Request request(*this, session->account(), deadline, here);
  GDN_CO_ASSIGN_OR_RETURN(SessionLease lease, co_await session->Lock(deadline));
  GDN_CO_RETURN_IF_ERROR(session->CheckAlive());
  if (lease.resident()) co_return lease;
  Need& need = request.needs.emplace_back();
  need.room = RoomFor(parts_.room, *session);
  need.lease = std::move(lease);
  absl::Status brought = co_await BringAll(request);
  co_await ReturnTo(here);
  if (brought.ok()) brought = need.status;
  GDN_CO_RETURN_IF_ERROR(brought);
  co_return std::move(need.lease);
}

Task<absl::StatusOr<SessionLease>> Residency::Place(SessionLease lease, SessionImagePtr image, Deadline deadline) {
  Executor& here = co_await ThisExecutor();
  Request request(*this, lease.session()->account(), std::move(deadline), here);
  Need& need = request.needs.emplace_back();
  need.room = RoomFor(parts_.room, *lease.session());
  need.lease = std::move(lease);
  need.image = std::move(image);
  absl::Status brought;
  if (need.image->layers.empty()) {  // nothing to copy: most new sessions
    auto claims = parts_.room.TryClaim(need.room);
    if (claims.ok()) {
      need.claims = *std::move(claims);
    } else if (!parts_.room.CanMakeRoom(claims.status())) {
      parts_.room.CountRefusal(claims.status());
      need.Refuse(claims.status());
    }
  }
  if (need.status.ok()) brought = co_await BringAll(request);
  co_await ReturnTo(here);
  if (brought.ok()) brought = need.status;
  GDN_CO_RETURN_IF_ERROR(brought);
  co_return std::move(need.lease);
}

Task<absl::StatusOr<SessionImagePtr>> Residency::CopyBeginning(const SessionLease& lease) {
  TaskQueueExecutor transfers(parts_.transfers, lease.session()->account()->turn(), parts_.executor);
  Executor& here = co_await ThisExecutor();
  co_await ResumeOn(transfers);
  absl::StatusOr<SessionImagePtr> image = parts_.copier.CopyOut(lease, /*known=*/{});
  if (image.ok()) {
    SessionImage& own = *std::const_pointer_cast<SessionImage>(*image);  // nobody else uses it yet
    own.header = {};
    for (LayerImage& layer : own.layers) {
      layer.reply = nullptr;
      layer.base_version = 0;
    }
  }
  co_await ReturnTo(here);
  co_return image;
}

Task<absl::StatusOr<RoomClaims>> Residency::Reserve(RoomRequest room, ByteAccountPtr account, Deadline deadline) {
  auto claims = parts_.room.TryClaim(room);
  if (claims.ok() || !parts_.room.CanMakeRoom(claims.status())) {
    parts_.room.CountRefusal(claims.status());
    co_return claims;
  }
  Executor& here = co_await ThisExecutor();
  Request request(*this, std::move(account), std::move(deadline), here);
  Need& need = request.needs.emplace_back();
  need.room = std::move(room);
  absl::Status brought = co_await BringAll(request);
  co_await ReturnTo(here);
  if (brought.ok()) brought = need.status;
  GDN_CO_RETURN_IF_ERROR(brought);
  co_return std::move(need.claims);
}

bool Residency::Prefetch(const std::shared_ptr<Session>& session) {
  if (session->resident()) return false;
  std::vector<std::shared_ptr<Session>> one(1, session);
  group_.Spawn(Pin(std::move(one), SteadyNow() + kPatience));
  return true;
}

// ---- The way back

Task<absl::Status> Residency::BringAll(Request& request) {
  bool has_room = false;
  while (!has_room) {
    if (!request.sessions.empty()) GDN_CO_RETURN_IF_ERROR(co_await LockAll(request));
    has_room = co_await ClaimRoom(request);
  }
  co_await FetchAll(request);
  co_return absl::OkStatus();
}

Task<absl::Status> Residency::LockAll(Request& request) {
  for (;;) {
    GDN_CO_RETURN_IF_ERROR(request.CheckDeadline());
    co_await ResumeOn(request.thread);
    const std::shared_ptr<Session> blocked = TryLockAll(request);
    if (blocked == nullptr) break;
    request.LetGo();  // lets others use the sessions meanwhile
    request.patience = SteadyTime::InfiniteFuture();
    // While a copy of a session is written, steps may run if its states are here. If they are not, wait until the copy
    // is written.
    if (blocked->gate().held() && !blocked->resident()) {
      GDN_CO_ASSIGN_OR_RETURN(SessionLease free, co_await blocked->Lock(request.deadline));
      free.Release();
    } else {
      GDN_CO_RETURN_IF_ERROR(co_await blocked->gate().Pinnable(request.deadline));
    }
  }
  RefuseWhatNeverFits(request);
  co_return absl::OkStatus();
}

std::shared_ptr<Session> Residency::TryLockAll(Request& request) {
  request.LetGo();
  request.pins.resize(request.sessions.size());
  for (size_t i = 0; i < request.sessions.size(); ++i) {
    const std::shared_ptr<Session>& session = request.sessions[i];
    SessionPin pin;
    const Session::PinOutcome outcome = session->TryPin(&pin);
    if (outcome == Session::PinOutcome::kWait) return session;
    if (outcome == Session::PinOutcome::kPinned) {
      request.pins[i] = std::move(pin);
      continue;
    }
    if (absl::Status alive = session->CheckAlive(); !alive.ok()) {
      request.pins[i] = std::move(alive);
      continue;
    }
    SessionLease lease = session->TryLock();
    if (!lease.valid()) return session;
    if (lease.resident()) {  // another call has brought it
      request.pins[i] = std::move(lease).IntoPin();
      continue;
    }
    Need& need = request.needs.emplace_back();
    need.room = RoomFor(parts_.room, *session);
    need.index = i;
    need.lease = std::move(lease);
  }
  return nullptr;
}

void Residency::RefuseWhatNeverFits(Request& request) const {
  if (!parts_.copier.CheckAnyDevice().ok()) return;  // ClaimRoom returns that error
  const int64_t budget = parts_.room.working_budget_bytes();
  const int64_t quota = DeviceRoom::QuotaOf(*request.account);
  int64_t together = 0;
  for (size_t i = 0; i < request.sessions.size(); ++i) {
    if (request.pins[i].ok()) together += parts_.room.BytesOf(*request.sessions[i]);
  }
  for (Need& need : request.needs) {
    const int64_t bytes = parts_.room.BytesOf(*request.sessions[need.index]);
    if (together + bytes > budget) {
      need.Refuse(NeverFits(together + bytes, budget));
    } else if (together + bytes > quota) {
      need.Refuse(
          QuotaExceeded({.quota = Quota::kDeviceBytes, .needed = together + bytes, .used = together, .limit = quota}));
      parts_.room.CountRefusal(need.status);
    } else {
      together += bytes;
    }
  }
}

Task<bool> Residency::ClaimRoom(Request& request) {
  bool asked = false;
  SteadyTime begun;
  for (Need& need : request.needs) {
    while (need.wants_claims()) {
      if (!std::exchange(asked, true)) {
        co_await ResumeOn(request.thread);
        begun = SteadyNow();
        if (request.patience == SteadyTime::InfiniteFuture()) request.patience = begun + kPatience;
      }
      absl::Status refused = request.CheckDeadline();
      // Make no room for a state that cannot be fetched.
      if (refused.ok() && need.lease.valid() && need.image == nullptr) {
        refused = parts_.tiers.CanFetch(need.lease.session()->key());
      }
      if (refused.ok()) refused = parts_.copier.CheckAnyDevice();
      RoomProgress progress = RoomProgress::kMade;
      if (refused.ok()) {
        const absl::StatusOr<RoomProgress> made = parts_.room.Advance(need.room, request.effort, &need.claims);
        refused = made.status();
        if (made.ok()) progress = *made;
      }
      if (refused.ok() && progress == RoomProgress::kMade) break;
      if (refused.ok() && progress == RoomProgress::kNothingMoves) {
        const absl::Duration more = bringing_ > 0 ? kPatienceWithOthers : absl::ZeroDuration();
        if (SteadyNow() >= request.patience + more) {
          refused = request.effort.error();
        } else if (KeepsRoom(request)) {
          (co_await SleepUntil(SteadyNow() + kPoll)).IgnoreError();
          begun = SteadyNow();
        } else {
          // An older request may wait for this room.
          for (Need& other : request.needs) other.claims.clear();
          if (!request.sessions.empty()) request.LetGo();
          (co_await SleepUntil(SteadyNow() + kPoll)).IgnoreError();
          co_return false;
        }
      } else if (refused.ok() && SteadyNow() - begun >= kSlice) {
        holders_.insert(request.number);
        co_await ResumeOn(request.thread);
        begun = SteadyNow();
      }
      holders_.erase(request.number);
      if (!refused.ok()) {
        parts_.room.CountRefusal(refused);
        need.Refuse(std::move(refused));
      }
    }
  }
  co_return true;
}

bool Residency::KeepsRoom(const Request& request) {
  if (!holders_.empty() && *holders_.begin() < request.number) return false;
  holders_.insert(request.number);
  return true;
}

Task<void> Residency::FetchAll(Request& request) {
  std::vector<Task<void>> fetches;
  for (Need& need : request.needs) {
    if (need.status.ok() && need.lease.valid()) fetches.push_back(FetchOne(request, need));
  }
  if (fetches.empty()) co_return;
  ++bringing_;
  if (fetches.size() == 1) {
    co_await std::move(fetches.front());
  } else {
    // So that the last fetch resumes the call there, not behind others on the residency thread.
    co_await ReturnTo(request.here);
    co_await WhenAll(std::move(fetches));
  }
  --bringing_;
  MoveIdleAhead();
}

Task<void> Residency::FetchOne(Request& request, Need& need) {
  if (need.image == nullptr || !need.image->layers.empty()) {
    // States in host memory use other threads than those from disk and Redis, which may hang.
    const bool in_memory = need.image != nullptr || parts_.tiers.RestsInMemory(need.lease.session()->key());
    TaskQueueExecutor& threads = in_memory ? request.memory_io : request.io;
    co_await ResumeOn(threads);
  }
  absl::Status arrived = Arrive(request, need);
  if (!arrived.ok()) need.Refuse(std::move(arrived));
}

absl::Status Residency::Arrive(const Request& request, Need& need) {
  const std::shared_ptr<Session> session = need.lease.session();
  GDN_RETURN_IF_ERROR(request.CheckDeadline());
  // A session without layers has no slots, and is counted on the first device.
  const int32_t device = need.claims.slots.empty() ? 0 : need.claims.slots.front().pool()->device();
  GDN_RETURN_IF_ERROR(parts_.copier.CheckDevice(device));
  ByteCharge copy;
  if (need.image == nullptr) {
    copy = parts_.room.ChargeCopy(*session);
    absl::StatusOr<SessionImagePtr> image = parts_.tiers.Fetch(session->key());
    if (!image.ok()) {
      fetch_failures_.fetch_add(1, std::memory_order_relaxed);
      return session->CheckAlive().ok() ? image.status() : session->CheckAlive();
    }
    GDN_RETURN_IF_ERROR(CheckIsStateOf(*session, **image));
    need.image = *std::move(image);
  }
  GDN_RETURN_IF_ERROR(parts_.copier.CopyIn(*need.image, std::move(need.claims.slots), need.lease));
  if (!need.image->layers.empty()) {
    returns_.fetch_add(1, std::memory_order_relaxed);
    returned_bytes_.fetch_add(need.image->bytes(), std::memory_order_relaxed);
  }
  need.image = nullptr;
  parts_.tiers.Release(session->key());
  parts_.room.Track(session, device, std::move(need.claims.charge));
  return absl::OkStatus();
}

// ---- Ahead of need

void Residency::MoveIdleAhead() {
  if (parts_.room.WantsAhead() && !moving_ahead_.exchange(true)) group_.Spawn(MoveAhead());
}

Task<void> Residency::MoveAhead() {
  TaskQueueExecutor thread(thread_, {.of = &moving_ahead_}, parts_.executor);
  bool more = true;
  while (more) {
    co_await ResumeOn(thread);
    // Another call may have changed this meanwhile.
    more = parts_.room.WantsAhead() && SteadyNow() >= ahead_again_;
    if (more && !parts_.room.EvictAhead()) {
      ahead_again_ = SteadyNow() + kAheadPause;
      more = false;
    }
  }
  co_await ResumeOn(parts_.executor);
  moving_ahead_ = false;
}

}  // namespace gdn
