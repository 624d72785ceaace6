// Exclusive use of a whole session, to copy, move, fork or end it. No step runs while the lease lives.
//
// Thread safety: for one thread at a time; may be passed to another thread. Ownership: keeps its session alive. The
// destructor lets steps run again.
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

// The slots of a layer's state on the device, valid while the lease lives.
struct LayerSlots {
  int32_t slot = -1;       // slot of log and convolution columns; -1: the layer is fresh
  int32_t base_slot = -1;  // slot of the base, often the same; -1: the layer is fresh
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
  // Lets steps run again, but keeps other leases out until Release. The methods below must not be called after this.
  void Hold();
  // Turns the lease into a pin, and is not valid then: the caller may step the session, whose states stay where they
  // are.
  SessionPin IntoPin() &&;

  LayerSlots slots(size_t index) const;     // `index`: in spec.layers
  std::shared_ptr<StatePool> pool() const;  // pool of all slots and claims; nullptr if there are none
  // Returns an image with the header and the layers that have a slot, but without states and layout. `numerics_id`: put
  // into the image.
  SessionImage Describe(const std::string& numerics_id) const;
  uint64_t changes() const;             // 1 for the creation, and each commit, acceptance and CountChange
  std::vector<int64_t> counts() const;  // token counts, parallel to spec.layers

  // Gives up the slots and claims on the device, and drops the stored replies; the session is parked then. Call after
  // the states were stored elsewhere or are not wanted any more.
  void Unload();
  // Makes the session resident with the states in `slots` (parallel to image.layers). `claims` are for the layers that
  // the image leaves out, in order; a snapshot needs none. Counts, kinds and replies are taken from the image.
  void Install(const SessionImage& image, std::vector<SlotRef> slots, std::vector<SlotClaim> claims);
  // Takes counts, kinds and the last acceptance from the image for a session whose states stay parked. Drops its stored
  // replies, which are parked too.
  void InstallParked(const SessionImage& image);
  // Sets the epoch after the states were restored from a checkpoint. If the session's state was lost, it is usable
  // again.
  void Restored(int64_t epoch);

  // Sets every layer back to no tokens, without a draft or a stored reply, and forgets the last acceptance. The session
  // stays where it is: on the device its slots become claims; if it is parked, the caller replaces the parked state.
  // Call CountChange first, so that no earlier copy has the same version.
  void Reset();
  // Counts one change of the states, so that later copies have a higher version than earlier ones.
  void CountChange();

  // Returns the number of claims that a fork needs for this session itself: one for each layer whose slot will be
  // shared and that has no claim yet. 0 for a snapshot.
  int32_t claims_to_share() const;
  // Makes a child session that continues from this session's state and shares its slots; nobody can find it yet.
  // `claims`: one for each layer of the child; none for a snapshot. `own`: claims_to_share() claims for this session,
  // so none from the second child on.
  std::shared_ptr<Session> Fork(SessionInit init, std::vector<SlotClaim> claims, std::vector<SlotClaim> own);

  // Ends the session for good: no step is admitted any more, waiting calls are refused with `why`, and its slots are
  // given up. Tiers are not told.
  void MarkEnded(const absl::Status& why);
  void MarkDeleted();  // MarkEnded with SESSION_NOT_FOUND

 private:
  friend class Session;
  friend class Session::LockAwaiter;
  explicit SessionLease(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  std::shared_ptr<Session> session_;
  bool held_ = false;
};

// The awaiter of Session::Lock. Keeps the session alive while it waits.
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
