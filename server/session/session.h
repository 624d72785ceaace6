// A session: one recurrent state, token count and input kind for each Gated DeltaNet layer, and the rules of its steps.
//
// A step is admitted, computed by whoever holds its StepLease, and committed; a lease that dies uncommitted leaves the
// state as it was.
// Admission looks at the request id first (a stored reply is returned, a call in flight is joined), then at the
// expected token count, then at whether another step of the layer is running.
// Thread safety: safe from any thread; the slot's contents belong to the holder of the StepLease. Ownership: sessions
// are shared; a lease keeps its session alive.
//
//   GDN_ASSIGN_OR_RETURN(Admission admission, session->Admit(request, on_joined));
//   if (admission.lease.valid()) { ...compute...; admission.lease.Commit({.token_count = n, .log_length = l}, reply); }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "base/layer_dims.h"
#include "state_store/state_store.h"

namespace gdn {

// What a session computes with.
struct SessionSpec {
  std::string model;  // without "models/"; "" for an operator session
  LayerDims dims;
  std::vector<int32_t> layers;  // ascending: a model's GDN layers, or 0 .. n - 1
  std::string fingerprint;      // of the model; "" for an operator session

  friend bool operator==(const SessionSpec&, const SessionSpec&) = default;
};

// A session's part of a reply, as it is kept for a retry.
struct StepReply {
  std::string output;  // the session's rows, dense, in the reply's dtype
  int64_t token_count = 0;
  int64_t compute_time_us = 0;
};
using StepReplyPtr = std::shared_ptr<const StepReply>;
using StepReplyCallback = std::function<void(absl::StatusOr<StepReplyPtr>)>;

struct StepRequest {
  int32_t layer = 0;
  InputKind kind = InputKind::kHiddenStates;
  std::string request_id;  // "": none
  Hash128 payload;         // looked at only with a request id
  std::optional<int64_t> expected_token_count;
};

// A layer's state as a step moves it.
struct LayerProgress {
  int64_t token_count = 0;
  int32_t log_length = 0;
};

struct LayerInfo {
  int32_t layer = 0;
  LayerProgress progress;
  InputKind kind = InputKind::kNone;
  int32_t waiting_calls = 0;  // for the step in flight: the call that computes it and those that have joined it
};

class Session;

// The right to advance one layer. Dies uncommitted: the state stays, and joined calls are told to try again.
class StepLease {
 public:
  StepLease() = default;
  StepLease(StepLease&& other) noexcept { *this = std::move(other); }
  StepLease& operator=(StepLease&& other) noexcept;
  ~StepLease() { Abandon(); }

  bool valid() const { return session_ != nullptr; }
  const Session& session() const { return *session_; }
  int32_t layer() const;
  const LayerProgress& before() const { return before_; }
  bool fresh() const { return slot_ == nullptr || !slot_->valid(); }  // no slot yet: the state is all zero
  int32_t slot() const { return slot_->index(); }
  const SlotReservation& slots() const;

  // For in-place work on a fresh layer: takes the layer's own slot, whose contents are undefined.
  int32_t TakeSlot();
  // Puts a slot written aside in the place of the layer's. Call directly before Commit.
  void SwapSlot(SlotLease aside);
  // The step happened. With a request id the reply is kept, and joined calls get it.
  void Commit(const LayerProgress& after, StepReplyPtr reply);
  // Gives the lease back unless another call has joined it, which then wants the result: true where it was given back.
  bool TryCancel();

 private:
  friend class Session;
  void Abandon();
  void ReturnTakenSlot();

  std::shared_ptr<Session> session_;
  size_t index_ = 0;           // of the layer in the session's spec
  SlotLease* slot_ = nullptr;  // the layer's; ours while we hold the lease
  LayerProgress before_;
  InputKind kind_ = InputKind::kNone;
  bool took_slot_ = false;  // a lease that dies must leave a fresh layer fresh
};

// Exactly one of the three: a lease to compute with, a stored reply, or joined (the callback will be called once).
struct Admission {
  StepLease lease;
  StepReplyPtr stored;
  bool joined = false;
};

// All layers at once, for export and deletion. No step is admitted while it lives.
class SessionLease {
 public:
  SessionLease() = default;
  SessionLease(SessionLease&& other) noexcept { *this = std::move(other); }
  SessionLease& operator=(SessionLease&& other) noexcept;
  ~SessionLease();

  Session& session() const { return *session_; }
  // Slot of the index-th layer, -1 where it is fresh.
  int32_t slot(size_t index) const;
  // The index-th layer's own slot, taken where it is fresh. For a session that is being made.
  int32_t TakeSlot(size_t index);
  // Sets what a state that was put in place stands for.
  void SetLayer(size_t index, const LayerProgress& progress, InputKind kind);

 private:
  friend class Session;
  std::shared_ptr<Session> session_;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(std::string id, SessionSpec spec, std::string affinity, SlotReservation slots);

  const std::string& id() const { return id_; }
  const SessionSpec& spec() const { return spec_; }
  const std::string& affinity() const { return affinity_; }
  absl::Time create_time() const { return create_time_; }
  const SlotReservation& slots() const { return slots_; }

  // INVALID_ARGUMENT (LAYER_NOT_GDN, REQUEST_ID_REUSED), FAILED_PRECONDITION (INPUT_KIND_MISMATCH, INPUT_NEEDS_MODEL),
  // ABORTED (TOKEN_COUNT_MISMATCH, SESSION_BUSY), NOT_FOUND (SESSION_NOT_FOUND) once deleted. `on_joined` is called
  // only where the admission says joined; from the thread that ends the other call.
  absl::StatusOr<Admission> Admit(const StepRequest& request, StepReplyCallback on_joined);

  // ABORTED (SESSION_BUSY) while any step is in flight.
  absl::StatusOr<SessionLease> LockAll();
  // No step is admitted any more. ABORTED (SESSION_BUSY) while one is in flight.
  absl::Status MarkDeleted();

  std::vector<LayerInfo> Layers() const;
  // INVALID_ARGUMENT (LAYER_NOT_GDN).
  absl::StatusOr<size_t> LayerIndex(int32_t layer) const;

 private:
  friend class StepLease;
  friend class SessionLease;

  struct Layer {
    SlotLease slot;
    LayerProgress progress;
    InputKind kind = InputKind::kNone;
    bool busy = false;
    // The step in flight, while busy.
    std::string flight_id;
    Hash128 flight_payload;
    std::vector<StepReplyCallback> joined;
    // The last step that had a request id.
    std::string reply_id;
    Hash128 reply_payload;
    StepReplyPtr reply;
  };

  absl::Status BusyError(int32_t layer) const;
  absl::Status CheckKind(const StepRequest& request, const Layer& layer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string id_;
  const SessionSpec spec_;
  const std::string affinity_;
  const absl::Time create_time_;
  const SlotReservation slots_;  // before layers_: their leases return to its pool

  mutable absl::Mutex mu_;
  std::vector<Layer> layers_ ABSL_GUARDED_BY(mu_);  // parallel to spec_.layers; the vector's size is constant
  bool locked_ ABSL_GUARDED_BY(mu_) = false;        // by a SessionLease
  bool deleted_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace gdn
