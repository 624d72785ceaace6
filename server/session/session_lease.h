// A whole session for one holder: what copies, moves, forks and ends it. No step runs while it lives.
//
// Thread safety: for one thread at a time; may be handed on. Ownership: keeps its session alive, and lets steps in
// again when it dies.
//
//   SessionLease lease = session->TryLock();
//   if (lease.valid() && lease.resident()) { SessionImage image = lease.Describe(); ...copy the slots... }
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/session/session.h"
#include "server/session/session_gate.h"

namespace gdn {

// A layer's state on the device.
struct LayerSlots {
  int32_t slot = -1;       // log and convolution columns; -1: the layer is fresh
  int32_t base_slot = -1;  // the base
  const StatePoolView* pool = nullptr;
};

class SessionLease {
 public:
  SessionLease() = default;
  SessionLease(SessionLease&& other) noexcept { *this = std::move(other); }
  SessionLease& operator=(SessionLease&& other) noexcept;
  ~SessionLease() { Release(); }

  bool valid() const { return session_ != nullptr; }
  const std::shared_ptr<Session>& session() const { return session_; }
  bool resident() const { return session_->resident(); }
  void Release();
  // Steps go on, and no other lease is given, until Release. What is below must not be called any more.
  void Hold();
  // The caller's steps go on, with the session where it is now.
  SessionPin IntoPin() &&;

  LayerSlots slots(size_t index) const;     // index-th of spec.layers
  std::shared_ptr<StatePool> pool() const;  // of the layers' slots and claims; nullptr where there are none
  // Header and layers that have a state, without slots.
  SessionImage Describe(const std::string& numerics_id) const;
  uint64_t changes() const;             // commits so far
  std::vector<int64_t> counts() const;  // token counts, parallel to spec.layers

  // The states leave the device: slots and claims are given up. The image of them has been put elsewhere.
  void Unload();
  // The states are `image`'s, in `slots` (parallel to image.layers); `claims` are for the layers that it leaves out, in
  // order. Counts, kinds and replies become the image's.
  void Install(const SessionImage& image, std::vector<SlotRef> slots, std::vector<SlotClaim> claims);
  // The same for a session whose states stay where the image was put.
  void InstallParked(const SessionImage& image);
  // The states are a checkpoint's, in a new epoch: where the state was lost, it is so no more.
  void Restored(int64_t epoch);

  // Claims that a fork needs for this session itself: one a layer whose slot will be shared.
  int32_t claims_to_share() const;
  // A session that goes on from here, with one claim a layer. `own` are claims_to_share() claims, for this one; empty
  // from the second child on.
  std::shared_ptr<Session> Fork(SessionInit init, std::vector<SlotClaim> claims, std::vector<SlotClaim> own);

  // No step is admitted any more, those that wait hear why; slots are given up.
  void MarkEnded(const absl::Status& why);
  void MarkDeleted();  // the same, with SESSION_NOT_FOUND

 private:
  friend class Session;
  friend class Session::LockAwaiter;
  explicit SessionLease(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  std::shared_ptr<Session> session_;
  bool held_ = false;
};

// Of Session::Lock. Keeps the session alive while it waits.
class Session::LockAwaiter final : public SessionGate::Awaiter {
 public:
  absl::StatusOr<SessionLease> await_resume() {
    absl::Status locked = SessionGate::Awaiter::await_resume();
    if (!locked.ok()) return locked;
    return SessionLease(std::move(session_));
  }

 private:
  friend class Session;
  LockAwaiter(Session& session, Deadline deadline)
      : SessionGate::Awaiter(session.gate_, For::kLock, std::move(deadline)), session_(session.shared_from_this()) {}
  std::shared_ptr<Session> session_;
};

}  // namespace gdn
