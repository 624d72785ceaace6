// Answers the submissions of one client's ring: Step, Decode, Prefill and AcceptTokens.
//
// A submission has the messages of these methods, and the same checks, charges, quotas, sessions and errors. Only its
// bytes come another way: the message is copied and parsed, and the tensors are copied once, to memory that a device
// copies from. A reply goes to the place that the submission names; the part of it that does not fit there is kept
// until the client fetches it.
// Thread safety: Serve is for the poller; calls end on any thread. Ownership: shares the ring. The calls in flight
// belong to this object: destroy it after AllEnded. `parts` and `call` must outlive that.
//
//   auto calls = std::make_shared<RingCalls>(parts, call, caller, ring);
//   GDN_CO_RETURN_IF_ERROR(poller.Add(calls));
//   ...
//   poller.Remove(*calls);       // no call begins any more
//   co_await calls->AllEnded();
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <grpcpp/server_context.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/task/arrivals.h"
#include "server/admission/byte_ledger.h"
#include "server/ring/ring_poller.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/steps/call_rows.h"

namespace gdn {

class RingCalls final : public PolledRing {
 public:
  // A call in flight.
  class InFlight {
   public:
    virtual ~InFlight() = default;
    // Cancels the call. Cancel a copy without the lock of RingCalls: the call may end, and be destroyed, within.
    virtual CancelSource gone() const = 0;
  };

  // `call`: the ShareMemory call that keeps the ring. `caller`: its caller, who makes the ring's calls.
  RingCalls(const StepParts& parts, grpc::CallbackServerContext& call, Caller caller, std::shared_ptr<Ring> ring);

  Ring& ring() override { return *ring_; }
  // Ends the ring (GDN_RING_BROKEN) if the submission breaks the rules of ring_layout.h.
  void Serve(const gdn_ring_submission& submission, bool alone) override;

  // Cancels all calls in flight. They end soon.
  void CancelAll();
  // Waits until no call is in flight. None may begin meanwhile. Errors of the deadline.
  Arrivals::Awaiter AllEnded(Deadline deadline = {}) { return in_flight_count_.All(std::move(deadline)); }

  // --- For the calls in flight.
  const StepParts& parts() const { return parts_; }
  // Returns the caller for a call that begins now, with its deadline: cancelled by `gone`, and over after `timeout_us`
  // microseconds (0: never).
  Caller CallerOfNow(const CancelSource& gone, uint64_t timeout_us) const;
  // Ends the call `submission`: writes its reply and completes it. `charge`: kept with a part of the reply that does
  // not fit. Destroys the call.
  void End(const gdn_ring_submission& submission, const absl::Status& status, std::string_view message,
           std::string_view output, ByteCharge charge);

 private:
  // A reply of which the client has not fetched all.
  struct Kept {
    uint64_t id = 0;
    std::string bytes;
    ByteCharge charge;
  };

  template <typename Call>
  void Begin(const gdn_ring_submission& submission, bool alone);
  void Fetch(const gdn_ring_submission& submission);
  bool FollowsTheRules(const gdn_ring_submission& submission) const;

  const StepParts& parts_;
  grpc::CallbackServerContext& call_;
  const Caller caller_;
  const std::shared_ptr<Ring> ring_;
  Arrivals in_flight_count_;
  absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<InFlight>> in_flight_ ABSL_GUARDED_BY(mu_);  // by id
  std::deque<Kept> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
