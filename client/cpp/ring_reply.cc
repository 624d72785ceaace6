#include "client/cpp/ring_reply.h"

#include <algorithm>

#include "base/error.h"
#include "base/string_cat.h"
#include "client/cpp/rpc_status.h"

namespace gdn {
namespace {

// The output is as large as the first input if its dtype is, and never more than twice as large otherwise.
uint64_t RoomFor(int64_t rows, absl::Span<const uint64_t> tensor_bytes) {
  constexpr uint64_t kReplyBytes = 4096, kRowBytes = 64;
  const uint64_t output = tensor_bytes.empty() ? 0 : *std::ranges::max_element(tensor_bytes);
  return kReplyBytes + kRowBytes * static_cast<uint64_t>(rows) + output;
}

}  // namespace

uint64_t RingReplyRoom(const v1::StepRequest& request, absl::Span<const uint64_t> tensor_bytes) {
  return RoomFor(request.rows_size(), tensor_bytes);
}
uint64_t RingReplyRoom(const v1::DecodeRequest& request, absl::Span<const uint64_t> tensor_bytes) {
  return RoomFor(request.sessions_size(), tensor_bytes);
}
uint64_t RingReplyRoom(const v1::PrefillRequest& /*request*/, absl::Span<const uint64_t> tensor_bytes) {
  return RoomFor(/*rows=*/1, tensor_bytes);
}
uint64_t RingReplyRoom(const v1::AcceptTokensRequest& request) { return RoomFor(request.acceptances_size(), {}); }

uint64_t RingTimeoutUs(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return 0;
  return static_cast<uint64_t>(std::max<int64_t>(1, absl::ToInt64Microseconds(timeout)));
}

absl::Status RingCallStatus(int end, absl::Duration timeout) {
  switch (end) {
    case GDN_RING_OK:
      return absl::OkStatus();
    case GDN_RING_TIMEOUT:
      return absl::DeadlineExceededError(StrCat("the server has not answered within ", absl::FormatDuration(timeout)));
    case GDN_RING_TOO_LARGE:
      return absl::OutOfRangeError("the call does not fit the ring; send a message");
    case GDN_RING_FORKED:
      return absl::FailedPreconditionError(
          "another process opened the ring, and this one is its fork; open a ring here, or send steps in messages");
    case GDN_RING_FAILED:
      return absl::ResourceExhaustedError("no memory for the reply");
    default:
      return absl::UnavailableError("the ring to the server has ended; the call may have been applied or not");
  }
}

bool IsTooLargeForRing(const absl::Status& status) {
  return status.code() == absl::StatusCode::kOutOfRange && ErrorReason(status).empty();  // the server's have a reason
}

absl::Status ReadRingReply(const gdn_ring_reply& reply, google::protobuf::Message& response) {
  const auto bytes = static_cast<int>(reply.message_bytes);
  if (reply.code == 0) {
    return response.ParseFromArray(reply.message, bytes) ? absl::OkStatus()
                                                         : absl::InternalError("the server's reply is damaged");
  }
  absl::Status status;
  google::rpc::Status error;
  if (error.ParseFromArray(reply.message, bytes)) status = StatusFromRpc(error);
  return status.ok() ? absl::UnknownError("the server's error is damaged") : status;
}

}  // namespace gdn
