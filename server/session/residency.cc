#include "server/session/residency.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/this_thread.h"
#include "server/session/state_copy.h"

namespace gdn {
namespace {

constexpr int kIoThreads = 2;
// How long a call waits for others to let go of the states that are in the way of its own.
constexpr absl::Duration kRoomPatience = absl::Seconds(1);  // others wait behind it
constexpr absl::Duration kRoomPoll = absl::Milliseconds(2);

absl::Status DeadlinePassed() {
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded,
                   "the deadline passed while the session's states were brought back to the device; they did not move");
}

absl::Status NeverFits(int64_t needed, int64_t budget) {
  return MakeError(
      absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
      StrCat("the sessions of this call need ", needed, " bytes on the device at the same time, and its budget is ",
             budget, "; send them in smaller batches, or raise --device-state-bytes"),
      {{"needed", StrCat(needed)}, {"available", StrCat(budget)}});
}

// Of a session that shares nothing, which is the least that any takes.
int64_t DeviceBytes(const StateStore& store, const Session& session) {
  const auto layout = StateLayout::Make(session.spec().dims, store.options().max_draft);
  return layout.ok() ? layout->slot_bytes() * static_cast<int64_t>(session.spec().layers.size()) : 0;
}

}  // namespace

Residency::Residency(const ResidencyOptions& options)
    : options_(options), io_({.name = "gdn-state-io", .threads = kIoThreads}), thread_([this] {
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
  io_.Drain();
}

Residency::Request::Request(Residency& to) : residency(to) {
  absl::MutexLock lock(&residency.mu_);
  ++residency.open_requests_;
}

Residency::Request::~Request() {
  absl::MutexLock lock(&residency.mu_);
  --residency.open_requests_;
}

absl::Status Residency::NoteFailure(absl::Status status) {
  if (!status.ok()) {
    failures_.fetch_add(1, std::memory_order_relaxed);
    if (options_.on_failure) options_.on_failure(status);
  }
  return status;
}

void Residency::Track(const std::shared_ptr<Session>& session) {
  absl::MutexLock lock(&mu_);
  resident_[session.get()] = session;
}

void Residency::Forget(const Session& session) {
  absl::MutexLock lock(&mu_);
  resident_.erase(&session);
}

ResidencyCounters Residency::counters() const {
  return {.evictions = evictions_,
          .returns = returns_,
          .evicted_bytes = evicted_bytes_,
          .returned_bytes = returned_bytes_,
          .failures = failures_};
}

int64_t Residency::resident_sessions() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(resident_.size());
}

void Residency::Enqueue(RequestPtr request) {
  absl::MutexLock lock(&mu_);
  requests_.push_back(std::move(request));
}

void Residency::Pin(std::vector<std::shared_ptr<Session>> sessions, absl::Time deadline, PinsDone done) {
  auto request = std::make_shared<Request>(*this);
  request->sessions = std::move(sessions);
  request->deadline = deadline;
  request->done = std::move(done);
  TryAll(request);
}

void Residency::Again(const RequestPtr& request, const std::shared_ptr<Session>& blocked) {
  request->arrivals.clear();  // lets others at them meanwhile
  const auto retry = [this, request] { io_.Post([this, request] { TryAll(request); }); };
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
      return Again(request, session);
    }
    if (outcome == Session::PinOutcome::kNotResident) missing.push_back(i);
    pins.emplace_back(std::move(pin));
  }
  if (missing.empty()) return request->done(std::move(pins));
  pins.clear();
  io_.Post([this, request, missing] { Bring(request, missing); });
}

void Residency::Bring(const RequestPtr& request, const std::vector<size_t>& missing) {
  for (const size_t i : missing) {
    const std::shared_ptr<Session>& session = request->sessions[i];
    if (absl::Status alive = session->CheckAlive(); !alive.ok()) {
      request->errors[i] = std::move(alive);
      continue;
    }
    SessionLease lease = session->TryLock();
    if (!lease.valid()) return Again(request, session);
    if (lease.resident()) continue;  // somebody else brought it
    absl::StatusOr<SessionImagePtr> image = options_.tiers.Fetch(session->key());
    if (!image.ok()) {
      failures_.fetch_add(1, std::memory_order_relaxed);
      request->errors[i] = session->CheckAlive().ok() ? image.status() : session->CheckAlive();
      continue;
    }
    request->arrivals.push_back({.index = i, .lease = std::move(lease), .image = *std::move(image)});
  }
  Enqueue(request);
}

void Residency::LockResident(const std::shared_ptr<Session>& session, absl::Time deadline, LeaseDone done) {
  auto request = std::make_shared<Request>(*this);
  request->deadline = deadline;
  request->lease_done = std::move(done);
  session->Lock([this, request](SessionLease lease) {
    if (absl::Status alive = lease.session()->CheckAlive(); !alive.ok()) return request->lease_done(std::move(alive));
    if (lease.resident()) return request->lease_done(std::move(lease));
    request->arrivals.push_back({.index = 0, .lease = std::move(lease), .image = nullptr});
    io_.Post([this, request] {
      Arrival& arrival = request->arrivals.front();
      absl::StatusOr<SessionImagePtr> image = options_.tiers.Fetch(arrival.lease.session()->key());
      if (!image.ok()) return request->lease_done(image.status());
      arrival.image = *std::move(image);
      Enqueue(request);
    });
  });
}

void Residency::Place(SessionLease lease, SessionImagePtr image, absl::Time deadline, LeaseDone done) {
  if (image->layers.empty()) {  // nothing to copy: most new sessions
    const SessionSpec& spec = lease.session()->spec();
    auto claims = options_.store.Reserve(spec.dims, static_cast<int32_t>(spec.layers.size()));
    if (claims.ok()) {
      lease.Install(*image, {}, *std::move(claims));
      options_.tiers.Release(lease.session()->key());
      Track(lease.session());
      return done(std::move(lease));
    }
    if (options_.tiers.empty() || !absl::IsResourceExhausted(claims.status())) return done(claims.status());
  }
  auto request = std::make_shared<Request>(*this);
  request->deadline = deadline;
  request->lease_done = std::move(done);
  request->arrivals.push_back({.index = 0, .lease = std::move(lease), .image = std::move(image)});
  Enqueue(std::move(request));
}

void Residency::Reserve(const LayerDims& dims, std::shared_ptr<StatePool> pool, int32_t count, absl::Time deadline,
                        ClaimsDone done) {
  auto claims = pool != nullptr ? options_.store.ReserveIn(pool, count) : options_.store.Reserve(dims, count);
  if (claims.ok() || options_.tiers.empty() || !absl::IsResourceExhausted(claims.status())) {
    return done(std::move(claims));
  }
  auto request = std::make_shared<Request>(*this);
  request->deadline = deadline;
  request->claims_done = std::move(done);
  request->dims = dims;
  request->pool = std::move(pool);
  request->count = count;
  Enqueue(std::move(request));
}

bool Residency::Prefetch(const std::shared_ptr<Session>& session) {
  if (session->resident()) return false;
  Pin({session}, absl::Now() + kRoomPatience, [](const PinResults&) {});
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
  if (request->claims_done) {
    return request->claims_done(MakeRoom(request->dims, request->pool, request->count, request->deadline));
  }
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
  const int64_t budget = options_.store.options().budget_bytes;
  int64_t together = 0;  // of the sessions that are to be on the device at the same time
  for (size_t i = 0; i < pins.size(); ++i) {
    if (!arriving[i] && request->errors[i].ok()) together += DeviceBytes(options_.store, *request->sessions[i]);
  }
  for (Arrival& arrival : request->arrivals) {
    together += DeviceBytes(options_.store, *arrival.lease.session());
    absl::Status status = together > budget ? NeverFits(together, budget) : Arrive(arrival, request->deadline);
    if (status.ok()) {
      pins[arrival.index] = std::move(arrival.lease).IntoPin();
    } else {
      together -= DeviceBytes(options_.store, *arrival.lease.session());
      arrival.lease.Release();
      request->errors[arrival.index] = std::move(status);
    }
  }
  for (size_t i = 0; i < pins.size(); ++i) {
    if (!request->errors[i].ok()) pins[i] = request->errors[i];
  }
  request->done(std::move(pins));
}

absl::Status Residency::Arrive(Arrival& arrival, absl::Time deadline) {
  const std::shared_ptr<Session> session = arrival.lease.session();
  if (absl::Now() >= deadline) return DeadlinePassed();
  GDN_RETURN_IF_ERROR(device_status());
  const SessionSpec& spec = session->spec();
  GDN_ASSIGN_OR_RETURN(std::vector<SlotClaim> claims,
                       MakeRoom(spec.dims, /*pool=*/nullptr, static_cast<int32_t>(spec.layers.size()), deadline));
  GDN_RETURN_IF_ERROR(NoteFailure(
      CopyIn(options_.backend, options_.memory, *arrival.image, std::move(claims), arrival.lease, options_.copiers)));
  returns_.fetch_add(1, std::memory_order_relaxed);
  returned_bytes_.fetch_add(arrival.image->bytes(), std::memory_order_relaxed);
  arrival.image = nullptr;
  options_.tiers.Release(session->key());
  Track(session);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SlotClaim>> Residency::MakeRoom(const LayerDims& dims,
                                                           const std::shared_ptr<StatePool>& pool, int32_t count,
                                                           absl::Time deadline) {
  const absl::Time end = std::min(deadline, absl::Now() + kRoomPatience);
  for (;;) {
    auto claims = pool != nullptr ? options_.store.ReserveIn(pool, count) : options_.store.Reserve(dims, count);
    if (claims.ok() || !absl::IsResourceExhausted(claims.status()) || options_.tiers.empty()) return claims;
    GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(dims, options_.store.options().max_draft));
    if (count * layout.slot_bytes() > options_.store.options().budget_bytes) return claims;  // it never fits
    const absl::Status evicted = EvictOne();
    if (evicted.ok()) continue;
    if (!absl::IsNotFound(evicted)) return evicted;
    // Nothing can move now. Calls that run end soon.
    if (resident_sessions() == 0) return claims;
    if (absl::Now() >= end) return deadline <= absl::Now() ? DeadlinePassed() : claims.status();
    absl::SleepFor(kRoomPoll);
  }
}

absl::Status Residency::EvictOne() {
  std::vector<std::pair<absl::Time, std::shared_ptr<Session>>> candidates;
  {
    absl::MutexLock lock(&mu_);
    for (auto it = resident_.begin(); it != resident_.end();) {
      if (auto session = it->second.lock(); session != nullptr) {
        candidates.emplace_back(session->last_used(), std::move(session));
        ++it;
      } else {
        it = resident_.erase(it);
      }
    }
  }
  // A heap and no sort: the first few of thousands are looked at.
  const auto later = [](const auto& a, const auto& b) { return a.first > b.first; };
  std::make_heap(candidates.begin(), candidates.end(), later);
  for (; !candidates.empty(); candidates.pop_back()) {
    std::pop_heap(candidates.begin(), candidates.end(), later);
    SessionLease lease = candidates.back().second->TryLock();
    if (lease.valid() && lease.resident()) return Evict(lease);
  }
  return absl::NotFoundError("no session can be moved");
}

absl::Status Residency::Evict(SessionLease& lease) {
  const std::shared_ptr<Session> session = lease.session();
  GDN_RETURN_IF_ERROR(device_status());
  absl::StatusOr<SessionImagePtr> image =
      CopyOut(options_.backend, options_.memory, lease, /*known=*/{}, options_.copiers);
  GDN_RETURN_IF_ERROR(NoteFailure(image.status()));
  GDN_RETURN_IF_ERROR(options_.tiers.Park(session->key(), *image));
  const std::string place = options_.tiers.PlaceOf(session->key());
  if (place != "host") session->NoteDurable(lease.changes(), lease.counts(), absl::Now());
  lease.Unload();
  Forget(*session);
  evictions_.fetch_add(1, std::memory_order_relaxed);
  evicted_bytes_.fetch_add((*image)->bytes(), std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace gdn
