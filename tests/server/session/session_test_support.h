// Sessions for unit tests: a null backend, a store, specs of a small model and a small operator, and steps that write
// recognisable numbers into states.
//
// Thread safety: make it on one thread; Decode and Prefill are as safe as their leases. Ownership: owns all parts;
// sessions must be destroyed first.
//
//   SessionWorld world;
//   auto session = world.MakeSession(OperatorSessionSpec(2));
//   ASSERT_TRUE(Decode(world.Admit(session), {.tail = 7}).ok());
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/task/arrivals.h"
#include "base/task/task.h"
#include "kernels/null/null_backend.h"
#include "server/session/session.h"
#include "server/session/session_lease.h"
#include "server/session/step_lease.h"

namespace gdn {

inline SessionSpec OperatorSessionSpec(int layers = 1, int32_t value_dim = 8) {
  SessionSpec spec;
  spec.dims = {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = value_dim};
  for (int32_t layer = 0; layer < layers; ++layer) spec.layers.push_back(layer);
  return spec;
}

// Returns the spec of a hybrid model: only some of its layers are GDN layers, and the first one is not layer 0.
inline SessionSpec ModelSessionSpec() {
  SessionSpec spec;
  spec.model = "m";
  spec.fingerprint = "f";
  spec.dims = {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 8, .conv_width = 4, .hidden_size = 16};
  spec.layers = {1, 2, 5};
  return spec;
}

// Returns a delta_rule step without a request id.
inline StepRequest PlainStep(int32_t layer = 0) {
  StepRequest request;
  request.layer = layer;
  request.kind = InputKind::kDeltaRule;
  return request;
}

// The contents of a state whose base elements all equal one number, and whose log and convolution elements all equal
// another. A fresh state is {0, 0}.
struct Contents {
  float base = 0.0f;
  float tail = 0.0f;

  friend bool operator==(const Contents&, const Contents&) = default;
};

inline void FillBase(const StatePoolView& pool, int32_t slot, float value) {
  std::fill_n(pool.slot(slot), pool.layout.log_k_offset(), value);
}

inline void FillTail(const StatePoolView& pool, int32_t slot, float value) {
  std::fill(pool.slot(slot) + pool.layout.log_k_offset(), pool.slot(slot) + pool.layout.slot_floats(), value);
}

// Reads the contents of a state. A part whose elements differ is NaN, which equals nothing.
inline Contents ReadContents(const StatePoolView& pool, int32_t slot, int32_t base_slot) {
  const auto only = [](const float* begin, const float* end) {
    const bool same = std::all_of(begin, end, [begin](float value) { return value == *begin; });
    return same ? *begin : std::numeric_limits<float>::quiet_NaN();
  };
  const int64_t tail = pool.layout.log_k_offset();
  return {.base = only(pool.slot(base_slot), pool.slot(base_slot) + tail),
          .tail = only(pool.slot(slot) + tail, pool.slot(slot) + pool.layout.slot_floats())};
}

inline Contents ReadContents(const StepLease& lease) {
  if (lease.fresh()) return {};
  return ReadContents(lease.pool()->view(), lease.slot(), lease.base_slot());
}

inline Contents ReadContents(const SessionLease& lease, size_t index) {
  const LayerSlots slots = lease.slots(index);
  return slots.slot < 0 ? Contents() : ReadContents(*slots.pool, slots.slot, slots.base_slot);
}

// Runs a step of one token: writes a new tail, and with `fold` a new base.
inline absl::Status Decode(StepLease lease, const Contents& to, bool fold = false,
                           std::shared_ptr<StoredReply> reply = nullptr) {
  const LayerProgress before = lease.before();
  GDN_ASSIGN_OR_RETURN(const StepSlots slots, lease.PrepareDecode());
  const StatePoolView& pool = lease.pool()->view();
  if (slots.zero) {
    FillBase(pool, slots.slot, 0.0f);
    FillTail(pool, slots.slot, 0.0f);
  }
  if (slots.copy_tail_from >= 0) {
    const int64_t tail = pool.layout.log_k_offset();
    std::copy(pool.slot(slots.copy_tail_from) + tail, pool.slot(slots.copy_tail_from) + pool.layout.slot_floats(),
              pool.slot(slots.slot) + tail);
  }
  FillTail(pool, slots.slot, to.tail);
  if (fold) FillBase(pool, slots.slot, to.base);
  lease.Commit({.after = {.token_count = before.token_count + 1, .log_length = fold ? 0 : before.log_length + 1},
                .base_written = fold || slots.zero},
               std::move(reply));
  return absl::OkStatus();
}

// Runs a prefill of `tokens` tokens, which writes a spare slot.
inline absl::Status Prefill(StepLease lease, const Contents& to, int64_t tokens = 1) {
  const LayerProgress before = lease.before();
  GDN_ASSIGN_OR_RETURN(const int32_t slot, lease.PrepareAside());
  const StatePoolView& pool = lease.pool()->view();
  FillBase(pool, slot, to.base);
  FillTail(pool, slot, to.tail);
  lease.Commit({.after = {.token_count = before.token_count + tokens}, .base_written = true, .prefill = true}, nullptr);
  return absl::OkStatus();
}

inline SessionPin PinOf(const std::shared_ptr<Session>& session) {
  SessionPin pin;
  session->TryPin(&pin);
  return pin;
}

// Admits a step. The lease is invalid if the step is not admitted.
inline StepLease AdmitStep(const std::shared_ptr<Session>& session, const StepRequest& request = PlainStep()) {
  const SessionPin pin = PinOf(session);
  if (!pin.valid()) return StepLease();
  auto admission = session->Admit(pin.Another(), request, nullptr);
  return admission.ok() ? std::move(admission->lease) : StepLease();
}

struct SessionWorld {
  explicit SessionWorld(int64_t budget_bytes = int64_t{1} << 22, int64_t reply_bytes = int64_t{1} << 20,
                        int64_t copy_bytes = kNoByteLimit, int64_t state_bytes = kNoByteLimit,
                        int64_t disk_bytes = kNoByteLimit)
      : store(*backend, {.budget_bytes = budget_bytes, .max_draft = 8}),
        ledger({.pools = {{BytePool::kReplies, {.limit_bytes = reply_bytes}},
                          {BytePool::kCopies, {.limit_bytes = copy_bytes, .headroom = 0}},
                          {BytePool::kStates, {.limit_bytes = state_bytes, .flag = "--session-bytes"}},
                          {BytePool::kDisk, {.limit_bytes = disk_bytes, .flag = "--disk-state-bytes"}}}}) {}

  static int64_t SlotBytes(const SessionSpec& spec) { return StateLayout::Make(spec.dims, 8)->slot_bytes(); }

  std::shared_ptr<Session> MakeSession(SessionSpec spec, const std::string& id = "a") {
    auto claims = store.Reserve(spec.dims, static_cast<int32_t>(spec.layers.size())).value();
    return std::make_shared<Session>(SessionInit{.id = id, .spec = std::move(spec), .affinity = id}, std::move(claims),
                                     &environment);
  }

  // Forks the locked session.
  absl::StatusOr<std::shared_ptr<Session>> Fork(SessionLease& lease, const std::string& id) {
    const SessionSpec& spec = lease.session()->spec();
    const auto pool = PoolOf(lease);
    const auto reserve = [&](int32_t count) {
      return pool != nullptr ? store.ReserveIn(pool, count) : store.Reserve(spec.dims, count);
    };
    GDN_ASSIGN_OR_RETURN(std::vector<SlotClaim> claims, reserve(static_cast<int32_t>(spec.layers.size())));
    GDN_ASSIGN_OR_RETURN(std::vector<SlotClaim> own, reserve(lease.claims_to_share()));
    return lease.Fork({.id = id, .spec = spec, .affinity = id}, std::move(claims), std::move(own));
  }

  // Returns the session's pool. Sessions of a SessionWorld have one pool each.
  static std::shared_ptr<StatePool> PoolOf(const SessionLease& lease) { return lease.pool(); }

  std::unique_ptr<Backend> backend = MakeNullBackend();
  StateStore store;
  ByteLedger ledger;
  SessionEnvironment environment{ledger};
};

// Waits until the operations have ended.
inline Task<absl::Status> EndOf(Arrivals& ended) { co_return co_await ended.All(); }

}  // namespace gdn
