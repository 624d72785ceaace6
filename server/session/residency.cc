#include "server/session/residency.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// How long a call waits for others to let go of the states that are in the way of its own.
constexpr absl::Duration kPatience = absl::Seconds(1);
// How much longer while states come back for other calls, which hold room until they are there or are refused: more
// than a tier that hangs takes to be found out (StateService).
constexpr absl::Duration kPatienceWithOthers = absl::Seconds(19);
// How soon calls that end are noticed where all sessions are in use.
constexpr absl::Duration kPoll = absl::Milliseconds(2);
// What the residency thread does for one call at a time; moving one session is the least.
constexpr absl::Duration kSlice = absl::Milliseconds(5);
// How soon it looks again for sessions to move ahead of need, where there was none.
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

Residency::Residency(const ResidencyOptions& options) : options_(options), thread_({.name = "gdn-residency"}) {}

Residency::~Residency() {
  {
    absl::MutexLock lock(&mu_);
    const auto answered = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return open_requests_ == 0; };
    mu_.Await(absl::Condition(&answered));
  }
  thread_.Drain();
  options_.io.Drain();
  options_.memory_io.Drain();
}

Residency::Request::Request(Residency& to, ByteAccountPtr of, WaitLimit until)
    : residency(to), account(std::move(of)), limit(std::move(until)), number(to.next_number_.fetch_add(1)) {
  absl::MutexLock lock(&residency.mu_);
  ++residency.open_requests_;
}

Residency::Request::~Request() {
  // They tell others, who may look for this one.
  pins.clear();
  needs.clear();
  absl::MutexLock lock(&residency.mu_);
  --residency.open_requests_;
}

void Residency::Need::GiveUp() {
  claims.clear();
  lease.Release();
}

ResidencyCounters Residency::counters() const {
  return {.evictions = options_.room.evictions(),
          .returns = returns_,
          .evicted_bytes = options_.room.evicted_bytes(),
          .returned_bytes = returned_bytes_,
          .failures = fetch_failures_ + options_.copier.failures()};
}

void Residency::Post(const RequestPtr& request, void (Residency::*step)(const RequestPtr&)) {
  thread_.Post([this, request, step] { (this->*step)(request); }, request->account->turn());
}

void Residency::Fail(const RequestPtr& request, const absl::Status& status) {
  request->pins.clear();
  request->needs.clear();
  if (request->lease_done) return request->lease_done(status);
  if (request->claims_done) return request->claims_done(status);
  PinResults pins(request->sessions.size());
  for (absl::StatusOr<SessionPin>& pin : pins) pin = status;
  request->pins_done(std::move(pins));
}

void Residency::Pin(std::vector<std::shared_ptr<Session>> sessions, WaitLimit limit, PinsDone done) {
  // Mostly they are all here, and nobody is in the way.
  PinResults pins;
  pins.reserve(sessions.size());
  for (const std::shared_ptr<Session>& session : sessions) {
    SessionPin pin;
    if (session->TryPin(&pin) != Session::PinOutcome::kPinned) break;
    pins.emplace_back(std::move(pin));
  }
  if (pins.size() == sessions.size()) return done(std::move(pins));
  pins.clear();
  auto request = std::make_shared<Request>(*this, sessions.front()->account(), std::move(limit));
  request->sessions = std::move(sessions);
  request->pins_done = std::move(done);
  TryPins(request);
}

void Residency::TryPins(const RequestPtr& request) {
  PinResults pins;
  for (const std::shared_ptr<Session>& session : request->sessions) {
    SessionPin pin;
    switch (session->TryPin(&pin)) {
      case Session::PinOutcome::kPinned:
        pins.emplace_back(std::move(pin));
        continue;
      case Session::PinOutcome::kWait:
        pins.clear();
        return Again(request, session);
      case Session::PinOutcome::kNotResident:
        pins.clear();
        return Post(request, &Residency::Begin);
    }
  }
  request->pins_done(std::move(pins));
}

void Residency::Again(const RequestPtr& request, const std::shared_ptr<Session>& blocked) {
  request->pins.clear();  // lets others at them meanwhile
  request->needs.clear();
  request->patience = SteadyTime::InfiniteFuture();
  if (absl::Status limit = request->limit.Check(); !limit.ok()) return Fail(request, limit);
  const auto retry = [this, request] { Post(request, &Residency::TryPins); };
  // Steps may go on while a copy is written, but states that are away are not brought back until then.
  if (blocked->gate().held() && !blocked->resident()) return blocked->Lock([retry](const SessionLease&) { retry(); });
  blocked->gate().WhenPinnable(retry);
}

void Residency::LockResident(const std::shared_ptr<Session>& session, WaitLimit limit, LeaseDone done) {
  auto request = std::make_shared<Request>(*this, session->account(), std::move(limit));
  request->lease_done = std::move(done);
  session->Lock([this, request](SessionLease lease) {
    if (absl::Status alive = lease.session()->CheckAlive(); !alive.ok()) return request->lease_done(std::move(alive));
    if (lease.resident()) return request->lease_done(std::move(lease));
    Need& need = request->needs.emplace_back();
    need.room = RoomFor(options_.room, *lease.session());
    need.lease = std::move(lease);
    Post(request, &Residency::Claim);
  });
}

void Residency::Place(SessionLease lease, SessionImagePtr image, WaitLimit limit, LeaseDone done) {
  auto request = std::make_shared<Request>(*this, lease.session()->account(), std::move(limit));
  request->lease_done = std::move(done);
  Need& need = request->needs.emplace_back();
  need.room = RoomFor(options_.room, *lease.session());
  need.lease = std::move(lease);
  need.image = std::move(image);
  if (need.image->layers.empty()) {  // nothing to copy: most new sessions
    auto claims = options_.room.TryClaim(need.room);
    if (!claims.ok() && !options_.room.CanMakeRoom(claims.status())) {
      options_.room.CountRefusal(claims.status());
      return Fail(request, claims.status());
    }
    if (claims.ok()) {
      need.claims = *std::move(claims);
      return Bring(request);
    }
  }
  Post(request, &Residency::Claim);
}

void Residency::Reserve(RoomRequest room, const ByteAccountPtr& account, WaitLimit limit, ClaimsDone done) {
  auto claims = options_.room.TryClaim(room);
  if (claims.ok() || !options_.room.CanMakeRoom(claims.status())) {
    options_.room.CountRefusal(claims.status());
    return done(std::move(claims));
  }
  auto request = std::make_shared<Request>(*this, account, std::move(limit));
  request->claims_done = std::move(done);
  request->needs.emplace_back().room = std::move(room);
  Post(request, &Residency::Claim);
}

bool Residency::Prefetch(const std::shared_ptr<Session>& session) {
  if (session->resident()) return false;
  Pin({session}, SteadyNow() + kPatience, [](const PinResults&) {});
  return true;
}

void Residency::Begin(const RequestPtr& request) {
  if (absl::Status limit = request->limit.Check(); !limit.ok()) return Fail(request, limit);
  request->pins.clear();
  request->needs.clear();
  request->pins.resize(request->sessions.size());
  for (size_t i = 0; i < request->sessions.size(); ++i) {
    const std::shared_ptr<Session>& session = request->sessions[i];
    SessionPin pin;
    switch (session->TryPin(&pin)) {
      case Session::PinOutcome::kPinned:
        request->pins[i] = std::move(pin);
        break;
      case Session::PinOutcome::kWait:
        return Again(request, session);
      case Session::PinOutcome::kNotResident:
        if (!LockParked(request, i)) return Again(request, session);
    }
  }
  RefuseWhatNeverFits(*request);
  Claim(request);
}

bool Residency::LockParked(const RequestPtr& request, size_t index) {
  const std::shared_ptr<Session>& session = request->sessions[index];
  if (absl::Status alive = session->CheckAlive(); !alive.ok()) {
    request->pins[index] = std::move(alive);
    return true;
  }
  SessionLease lease = session->TryLock();
  if (!lease.valid()) return false;
  if (lease.resident()) {  // somebody else brought it
    request->pins[index] = std::move(lease).IntoPin();
    return true;
  }
  Need& need = request->needs.emplace_back();
  need.room = RoomFor(options_.room, *session);
  need.index = index;
  need.lease = std::move(lease);
  return true;
}

void Residency::RefuseWhatNeverFits(Request& request) const {
  if (!options_.copier.CheckAnyDevice().ok()) return;  // Claim says that
  const int64_t budget = options_.room.working_budget_bytes();
  const int64_t quota = DeviceRoom::QuotaOf(*request.account);
  int64_t together = 0;
  for (size_t i = 0; i < request.sessions.size(); ++i) {
    if (request.pins[i].ok()) together += options_.room.BytesOf(*request.sessions[i]);
  }
  for (Need& need : request.needs) {
    const int64_t bytes = options_.room.BytesOf(*request.sessions[need.index]);
    if (together + bytes > budget) {
      need.status = NeverFits(together + bytes, budget);
      need.GiveUp();
    } else if (together + bytes > quota) {
      need.status =
          QuotaExceeded({.quota = Quota::kDeviceBytes, .needed = together + bytes, .used = together, .limit = quota});
      options_.room.CountRefusal(need.status);
      need.GiveUp();
    } else {
      together += bytes;
    }
  }
}

void Residency::Claim(const RequestPtr& request) {
  const SteadyTime begun = SteadyNow();
  if (request->patience == SteadyTime::InfiniteFuture()) request->patience = begun + kPatience;
  holders_.erase(request->number);
  for (Need& need : request->needs) {
    if (!need.status.ok()) continue;  // refused already
    // No room is made for a state that cannot come.
    if (need.lease.valid() && need.image == nullptr && need.wants_claims()) {
      need.status = options_.tiers.CanFetch(need.lease.session()->key());
    }
    while (need.wants_claims()) {
      need.status = request->limit.Check();
      if (need.status.ok()) need.status = options_.copier.CheckAnyDevice();
      if (!need.status.ok()) break;
      const auto progress = options_.room.Advance(need.room, request->effort, &need.claims);
      need.status = progress.status();
      if (!progress.ok() || *progress == RoomProgress::kMade) break;
      if (*progress == RoomProgress::kNothingMoves) {
        const absl::Duration more = bringing_ > 0 ? kPatienceWithOthers : absl::ZeroDuration();
        if (SteadyNow() < request->patience + more) return Stuck(request);
        need.status = request->effort.error();
      } else if (SteadyNow() - begun >= kSlice) {
        holders_.insert(request->number);
        return Post(request, &Residency::Claim);
      }
    }
    if (!need.status.ok()) {
      options_.room.CountRefusal(need.status);
      need.GiveUp();
    }
  }
  Bring(request);
}

void Residency::Stuck(const RequestPtr& request) {
  const bool oldest = holders_.empty() || request->number < *holders_.begin();
  if (oldest) {
    holders_.insert(request->number);
  } else {
    // What an older one waits for may be here.
    for (Need& need : request->needs) need.claims.clear();
    if (request->pins_done) request->needs.clear();
    request->pins.clear();
  }
  if (stuck_.empty()) thread_.Post([this] { RetryStuck(); }, {.of = this});
  stuck_.push_back(request);
}

void Residency::RetryStuck() {
  absl::SleepFor(kPoll);
  for (const RequestPtr& request : std::exchange(stuck_, {})) {
    const bool let_go = request->pins_done && request->pins.empty();
    Post(request, let_go ? &Residency::Begin : &Residency::Claim);
  }
}

void Residency::MoveIdleAhead() {
  if (!options_.room.WantsAhead() || moving_ahead_.exchange(true)) return;
  thread_.Post([this] { MoveOneAhead(); }, {.of = &moving_ahead_});
}

void Residency::MoveOneAhead() {
  moving_ahead_ = false;
  if (!options_.room.WantsAhead() || SteadyNow() < ahead_again_) return;  // somebody may have asked meanwhile
  if (options_.room.EvictAhead()) return MoveIdleAhead();
  ahead_again_ = SteadyNow() + kAheadPause;
}

}  // namespace gdn
