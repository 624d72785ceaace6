// A ring to a server on this host (ring/ring_layout.h): steps without gRPC, for a fraction of a call's time.
//
// The server makes the ring for this client alone. The calls mean what they mean in messages: same checks, quotas,
// exactly-once rules, errors and bits. A ring ends with its server, and when the server drains; a call in flight then
// gets UNAVAILABLE, as over a connection that broke. Client::OpenRing makes a client use one; use this class alone only
// without a Client.
// Thread safety: all methods from any thread; calls of several threads overlap. A ring is for the process that opened
// it: a fork of the process has none. Ownership: owns the ring and the call that keeps it. The destructor ends the
// ring; no call may run then.
//
//   GDN_ASSIGN_OR_RETURN(auto ring, RingChannel::Open(*stub, NewContext(), {}, absl::Seconds(5)));
//   v1::StepResponse reply;
//   if (!ring->Takes(request)) return OverGrpc(request);
//   GDN_RETURN_IF_ERROR(ring->Call(request, absl::Seconds(60), reply));
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/client_context.h"

struct gdn_ring;  // ring/gdn_ring.h

namespace gdn {

class ShareMemoryCall;

struct RingOptions {
  int32_t entries = 64;                          // most calls in flight: a power of two, at most 256
  int64_t area_bytes = int64_t{16} << 20;        // for the tensors of all calls in flight; larger calls go by messages
  absl::Duration spin = absl::Microseconds(50);  // how long a call looks for its reply before it sleeps; 0: not at all
};

class RingChannel {
 public:
  // Waits for the server, at most `timeout`. The server's errors; DEADLINE_EXCEEDED; UNIMPLEMENTED
  // (SHARED_MEMORY_NOT_OFFERED) if the server is too old for rings, or its socket cannot be reached from here.
  // FAILED_PRECONDITION for a stub without async().
  static absl::StatusOr<std::unique_ptr<RingChannel>> Open(v1::GdnService::StubInterface& stub,
                                                           std::unique_ptr<grpc::ClientContext> context,
                                                           const RingOptions& options, absl::Duration timeout);
  RingChannel(const RingChannel&) = delete;
  RingChannel& operator=(const RingChannel&) = delete;
  ~RingChannel();

  // False once the ring has ended, and in a fork of the process that opened it. Open another one then.
  bool open() const;
  // True if a request of so many bytes, tensors included, and a reply of as many fit the ring when no place is in it.
  bool Takes(const google::protobuf::Message& request) const;

  // Make a call, which Takes must allow. `timeout`: InfiniteDuration: none. Errors of the server; DEADLINE_EXCEEDED;
  // UNAVAILABLE if the ring ends, after which the call may have been applied or not. The server has not seen the call
  // after FAILED_PRECONDITION, in a fork, and OUT_OF_RANGE without a reason: the places (step_place.h) leave too little
  // room for it.
  absl::Status Call(const v1::StepRequest& request, absl::Duration timeout, v1::StepResponse& response);
  absl::Status Call(const v1::DecodeRequest& request, absl::Duration timeout, v1::DecodeResponse& response);
  absl::Status Call(const v1::PrefillRequest& request, absl::Duration timeout, v1::PrefillResponse& response);
  absl::Status Call(const v1::AcceptTokensRequest& request, absl::Duration timeout, v1::AcceptTokensResponse& response);

 private:
  friend class StepPlace;  // makes calls with its own tensors
  RingChannel(std::unique_ptr<ShareMemoryCall> keeper, gdn_ring* ring);

  std::unique_ptr<ShareMemoryCall> keeper_;
  gdn_ring* const ring_;
  const uint64_t owner_;  // gdn_process_mark
};

}  // namespace gdn
