#include "server/session/residency.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/this_thread.h"

namespace gdn {
namespace {

absl::Status NeverFits(int64_t needed, int64_t budget) {
  return MakeError(
      absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
      StrCat("the sessions of this call need ", needed, " bytes on the device at the same time, and its budget is ",
             budget, "; send them in smaller batches, or raise --device-state-bytes"),
      {{"needed", StrCat(needed)}, {"available", StrCat(budget)}});
}

RoomRequest RoomFor(const Session& session) {
  const SessionSpec& spec = session.spec();
  return {.dims = spec.dims, .count = static_cast<int32_t>(spec.layers.size())};
}

}  // namespace

Residency::Residency(const ResidencyOptions& options)
    : options_(options), thread_([this] {
        NameThisThread("gdn-residency");
        Loop();
      }) {}

Residency::~Residency() {
  {
    absl::MutexLock lock(&mu_);
    const auto answered = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return open_requests_ == 0; };
    mu_.Await(absl::Condition(&answered));
    stop_ = true;
  }
  thread_.join();
  options_.io.Drain();
}

Residency::Request::Request(Residency& to) : residency(to) {
  absl::MutexLock lock(&residency.mu_);
  ++residency.open_requests_;
}

Residency::Request::~Request() {
  absl::MutexLock lock(&residency.mu_);
  --residency.open_requests_;
}

ResidencyCounters Residency::counters() const {
  return {.evictions = options_.room.evictions(),
          .returns = returns_,
          .evicted_bytes = options_.room.evicted_bytes(),
          .returned_bytes = returned_bytes_,
          .failures = fetch_failures_ + options_.copier.failures()};
}

bool Residency::TooLate(const Request& request) { return SteadyNow() >= request.deadline; }

void Residency::FailLate(const Request& request) {
  PinResults pins(request.sessions.size());
  for (absl::StatusOr<SessionPin>& pin : pins) pin = ReturnDeadlinePassed();
  request.done(std::move(pins));
}

void Residency::Enqueue(RequestPtr request) {
  absl::MutexLock lock(&mu_);
  requests_.push_back(std::move(request));
}

void Residency::Pin(std::vector<std::shared_ptr<Session>> sessions, SteadyTime deadline, PinsDone done) {
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
  auto request = std::make_shared<Request>(*this);
  request->sessions = std::move(sessions);
  request->deadline = deadline;
  request->done = std::move(done);
  TryAll(request);
}

void Residency::Again(const RequestPtr& request, const std::shared_ptr<Session>& blocked) {
  request->arrivals.clear();  // lets others at them meanwhile
  const auto retry = [this, request] { options_.io.Post([this, request] { TryAll(request); }); };
  // Steps may go on while a copy is written, but states that are away are not brought back until then.
  if (blocked->gate().held() && !blocked->resident()) return blocked->Lock([retry](const SessionLease&) { retry(); });
  blocked->gate().WhenPinnable(retry);
}

void Residency::TryAll(const RequestPtr& request) {
  PinResults pins;
  std::vector<size_t> missing;
  request->errors.assign(request->sessions.size(), absl::OkStatus());
  for (size_t i = 0; i < request->sessions.size(); ++i) {
    const std::shared_ptr<Session>& session = request->sessions[i];
    SessionPin pin;
    const Session::PinOutcome outcome = session->TryPin(&pin);
    if (outcome == Session::PinOutcome::kWait) {
      pins.clear();
      return TooLate(*request) ? FailLate(*request) : Again(request, session);
    }
    if (outcome == Session::PinOutcome::kNotResident) missing.push_back(i);
    pins.emplace_back(std::move(pin));
  }
  if (missing.empty()) return request->done(std::move(pins));
  pins.clear();
  if (TooLate(*request)) return FailLate(*request);
  options_.io.Post([this, request, missing] { Bring(request, missing); });
}

void Residency::Bring(const RequestPtr& request, const std::vector<size_t>& missing) {
  // Nothing is fetched that finds no room beside the others of the call.
  const int64_t budget = options_.room.budget_bytes();
  int64_t together = 0;
  for (const std::shared_ptr<Session>& session : request->sessions) together += options_.room.BytesOf(*session);
  for (const size_t i : missing) together -= options_.room.BytesOf(*request->sessions[i]);
  for (const size_t i : missing) {
    const std::shared_ptr<Session>& session = request->sessions[i];
    const int64_t bytes = options_.room.BytesOf(*session);
    if (together + bytes > budget) {
      request->errors[i] = NeverFits(together + bytes, budget);
      continue;
    }
    if (absl::Status alive = session->CheckAlive(); !alive.ok()) {
      request->errors[i] = std::move(alive);
      continue;
    }
    SessionLease lease = session->TryLock();
    if (!lease.valid()) return Again(request, session);
    if (lease.resident()) {  // somebody else brought it
      together += bytes;
      continue;
    }
    if (TooLate(*request)) {
      request->errors[i] = ReturnDeadlinePassed();
      continue;
    }
    absl::StatusOr<SessionImagePtr> image = options_.tiers.Fetch(session->key());
    if (!image.ok()) {
      fetch_failures_.fetch_add(1, std::memory_order_relaxed);
      request->errors[i] = session->CheckAlive().ok() ? image.status() : session->CheckAlive();
      continue;
    }
    together += bytes;
    request->arrivals.push_back({.index = i, .lease = std::move(lease), .image = *std::move(image)});
  }
  Enqueue(request);
}

void Residency::LockResident(const std::shared_ptr<Session>& session, SteadyTime deadline, LeaseDone done) {
  auto request = std::make_shared<Request>(*this);
  request->deadline = deadline;
  request->lease_done = std::move(done);
  session->Lock([this, request](SessionLease lease) {
    if (absl::Status alive = lease.session()->CheckAlive(); !alive.ok()) return request->lease_done(std::move(alive));
    if (lease.resident()) return request->lease_done(std::move(lease));
    request->arrivals.push_back({.index = 0, .lease = std::move(lease), .image = nullptr});
    options_.io.Post([this, request] {
      Arrival& arrival = request->arrivals.front();
      if (TooLate(*request)) return request->lease_done(ReturnDeadlinePassed());
      absl::StatusOr<SessionImagePtr> image = options_.tiers.Fetch(arrival.lease.session()->key());
      if (!image.ok()) return request->lease_done(image.status());
      arrival.image = *std::move(image);
      Enqueue(request);
    });
  });
}

void Residency::Place(SessionLease lease, SessionImagePtr image, SteadyTime deadline, LeaseDone done) {
  if (image->layers.empty()) {  // nothing to copy: most new sessions
    auto claims = options_.room.TryClaim(RoomFor(*lease.session()));
    if (claims.ok()) {
      lease.Install(*image, {}, *std::move(claims));
      options_.tiers.Release(lease.session()->key());
      options_.room.Track(lease.session());
      return done(std::move(lease));
    }
    if (!options_.room.CanMakeRoom(claims.status())) return done(claims.status());
  }
  auto request = std::make_shared<Request>(*this);
  request->deadline = deadline;
  request->lease_done = std::move(done);
  request->arrivals.push_back({.index = 0, .lease = std::move(lease), .image = std::move(image)});
  Enqueue(std::move(request));
}

void Residency::Reserve(RoomRequest room, SteadyTime deadline, ClaimsDone done) {
  auto claims = options_.room.TryClaim(room);
  if (claims.ok() || !options_.room.CanMakeRoom(claims.status())) return done(std::move(claims));
  auto request = std::make_shared<Request>(*this);
  request->deadline = deadline;
  request->claims_done = std::move(done);
  request->room = std::move(room);
  Enqueue(std::move(request));
}

bool Residency::Prefetch(const std::shared_ptr<Session>& session) {
  if (session->resident()) return false;
  Pin({session}, SteadyNow() + kRoomPatience, [](const PinResults&) {});
  return true;
}

void Residency::Loop() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !requests_.empty(); };
  for (;;) {
    RequestPtr request;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (requests_.empty()) return;
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    Serve(request);
  }
}

void Residency::Serve(const RequestPtr& request) {
  if (request->done) return ServePins(request);
  if (request->claims_done) return request->claims_done(options_.room.MakeRoom(request->room, request->deadline));
  Arrival& arrival = request->arrivals.front();
  if (absl::Status status = Arrive(arrival, request->deadline); !status.ok()) {
    return request->lease_done(std::move(status));
  }
  request->lease_done(std::move(arrival.lease));
}

void Residency::ServePins(const RequestPtr& request) {
  PinResults pins(request->sessions.size());
  // What is there is held first, lest it go to make room for what is not.
  std::vector<bool> arriving(request->sessions.size());
  for (const Arrival& arrival : request->arrivals) arriving[arrival.index] = true;
  for (size_t i = 0; i < pins.size(); ++i) {
    if (arriving[i] || !request->errors[i].ok()) continue;
    SessionPin pin;
    const Session::PinOutcome outcome = request->sessions[i]->TryPin(&pin);
    if (outcome != Session::PinOutcome::kPinned) {
      pins.clear();
      return Again(request, request->sessions[i]);
    }
    pins[i] = std::move(pin);
  }
  const int64_t budget = options_.room.budget_bytes();
  int64_t together = 0;  // of the sessions that are to be on the device at the same time
  for (size_t i = 0; i < pins.size(); ++i) {
    if (!arriving[i] && request->errors[i].ok()) together += options_.room.BytesOf(*request->sessions[i]);
  }
  for (Arrival& arrival : request->arrivals) {
    together += options_.room.BytesOf(*arrival.lease.session());
    absl::Status status = together > budget ? NeverFits(together, budget) : Arrive(arrival, request->deadline);
    if (status.ok()) {
      pins[arrival.index] = std::move(arrival.lease).IntoPin();
    } else {
      together -= options_.room.BytesOf(*arrival.lease.session());
      arrival.lease.Release();
      request->errors[arrival.index] = std::move(status);
    }
  }
  for (size_t i = 0; i < pins.size(); ++i) {
    if (!request->errors[i].ok()) pins[i] = request->errors[i];
  }
  request->done(std::move(pins));
}

absl::Status Residency::Arrive(Arrival& arrival, SteadyTime deadline) {
  const std::shared_ptr<Session> session = arrival.lease.session();
  if (SteadyNow() >= deadline) return ReturnDeadlinePassed();
  GDN_RETURN_IF_ERROR(options_.copier.CheckDevice());
  GDN_ASSIGN_OR_RETURN(std::vector<SlotClaim> claims, options_.room.MakeRoom(RoomFor(*session), deadline));
  GDN_RETURN_IF_ERROR(options_.copier.CopyIn(*arrival.image, std::move(claims), arrival.lease));
  returns_.fetch_add(1, std::memory_order_relaxed);
  returned_bytes_.fetch_add(arrival.image->bytes(), std::memory_order_relaxed);
  arrival.image = nullptr;
  options_.tiers.Release(session->key());
  options_.room.Track(session);
  return absl::OkStatus();
}

}  // namespace gdn
