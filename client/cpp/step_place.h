// A place for the tensors of a client's steps: the caller writes inputs where the server reads them, and reads outputs
// where the server has written them. A step of 128 rows of 2048 BF16 values then copies a MiB less.
//
// The place lies in the client's ring (Client::OpenRing), where all places together have at most half of the entries
// and of the area. While the client has no ring, or no room in it, the place is memory of this process; replies and
// bits are the same. The place moves by itself, with the inputs, when a ring ends and when a step gets another one.
// Thread safety: one thread at a time; several places of a client are independent. Ownership: owns the place. The
// client must outlive it, and no call of Client::OpenRing may run meanwhile. Spans that it returned are valid until the
// next Call.
//
//   v1::DecodeRequest step;  // sessions, layer, and hidden_states with dtype and shape, without data
//   GDN_ASSIGN_OR_RETURN(const std::unique_ptr<StepPlace> place, StepPlace::Make(client, step));
//   for (;;) {
//     FillIn(place->input(0));
//     GDN_ASSIGN_OR_RETURN(const v1::DecodeResponse reply, place->Call(step));
//     Use(reply.output().shape(), place->output());
//   }
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cpp/client.h"
#include "gdn/v1/service.pb.h"

namespace gdn {

class StepPlace {
 public:
  static constexpr size_t kMostInputs = 5;

  // Makes a place for steps whose tensors have the dtypes and shapes of the request's. INVALID_ARGUMENT if a tensor has
  // data or lies in shared memory (INVALID_TENSOR_DATA), or has an invalid dtype or shape (INVALID_TENSOR_DTYPE,
  // INVALID_TENSOR_SHAPE, SHAPE_OVERFLOW). RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE) above 2 GiB. Does not wait for the
  // server.
  static absl::StatusOr<std::unique_ptr<StepPlace>> Make(Client& client, const v1::StepRequest& request);
  static absl::StatusOr<std::unique_ptr<StepPlace>> Make(Client& client, const v1::DecodeRequest& request);
  static absl::StatusOr<std::unique_ptr<StepPlace>> Make(Client& client, const v1::PrefillRequest& request);
  StepPlace(const StepPlace&) = delete;
  ~StepPlace();

  // Returns where the bytes of an input belong, numbered in the order of the input's fields. Empty for one that the
  // request has not. The inputs stay as they are during a step and after it.
  absl::Span<char> input(size_t number = 0);
  // Returns the bytes of the last step's output. Empty before the first step, and after an error.
  absl::Span<const char> output() const { return output_; }
  // True if the inputs lie in a ring.
  bool in_ring() const { return ring_ != nullptr; }

  // Makes a step with the inputs that are in the place. The response's output has its dtype and shape, but no data.
  // Errors as of Client::Step, Decode and Prefill, and INVALID_ARGUMENT (INVALID_TENSOR_SHAPE) if the request's tensors
  // have other sizes than the place's. After DEADLINE_EXCEEDED, write no inputs until a later step has succeeded: the
  // server may still read them.
  absl::StatusOr<v1::StepResponse> Call(const v1::StepRequest& request, const CallOptions& call = {});
  absl::StatusOr<v1::DecodeResponse> Call(const v1::DecodeRequest& request, const CallOptions& call = {});
  absl::StatusOr<v1::PrefillResponse> Call(const v1::PrefillRequest& request, const CallOptions& call = {});

 private:
  struct InRing;  // a gdn_ring_place

  StepPlace(Client& client, const std::array<uint64_t, kMostInputs>& bytes);
  template <typename Request>
  static absl::StatusOr<std::unique_ptr<StepPlace>> MakeFor(Client& client, const Request& request);
  template <typename Response, typename Request>
  absl::StatusOr<Response> CallAs(uint32_t method, const Request& request, const CallOptions& call);
  // Gets a place in the client's ring, if there is one, and brings the inputs there. Takes the time from `timeout`.
  void EnterRing(uint64_t message_bytes, uint64_t reply_room, absl::Duration& timeout);
  // Brings the inputs to own memory.
  void LeaveRing();

  Client& client_;
  const std::array<uint64_t, kMostInputs> bytes_;
  std::shared_ptr<RingChannel> ring_;  // null: the inputs are in own_
  std::unique_ptr<InRing> place_;
  std::array<std::string, kMostInputs> own_;
  std::string own_output_;
  std::string message_;  // kept for its memory
  absl::Span<const char> output_;
};

}  // namespace gdn
