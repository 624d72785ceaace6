// Checks that a reply or a state file has the session epoch that its request named.
//
// A server refuses a request that names another epoch than the session's. An older server ignores the field
// session_epoch. After a crash it answers with an older state of the session. The epoch in the reply, or in the file's
// metadata, then differs from the request's. These functions return the error that newer servers return: ABORTED
// (EPOCH_MISMATCH: session, epoch, expected).
// Thread safety: any thread may call the functions; an EpochCheckedSink is for one thread. Ownership: an
// EpochCheckedSink borrows its sink.
//
//   GDN_RETURN_IF_ERROR(CheckReplyEpoch(request, response));
//   GDN_ASSIGN_OR_RETURN(const StateFileOrigin origin, ReadStateFileOrigin(file));  // origin.seen
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "gdn/v1/service.pb.h"

namespace gdn {

// Always OK, because most replies have no epoch. The overloads for checkpoints and restores check the reply's epoch.
template <typename Request, typename Response>
absl::Status CheckReplyEpoch(const Request& /*request*/, const Response& /*response*/) {
  return absl::OkStatus();
}
// ABORTED (EPOCH_MISMATCH) unless the checkpoint has the request's epoch, or the request names none.
absl::Status CheckReplyEpoch(const v1::CheckpointSessionRequest& request,
                             const v1::CheckpointSessionResponse& response);
// ABORTED (EPOCH_MISMATCH) unless the session's new epoch is the request's plus 1, or the request names none.
absl::Status CheckReplyEpoch(const v1::RestoreCheckpointRequest& request,
                             const v1::RestoreCheckpointResponse& response);

// The tokens that a layer has seen.
struct SeenTokens {
  int64_t tokens = 0;
  int64_t draft = 0;  // tokens of the draft, in addition

  friend bool operator==(const SeenTokens&, const SeenTokens&) = default;
};
using SeenByLayer = std::map<int32_t, SeenTokens>;

// The session's epoch and token counts, from the metadata of its state file.
struct StateFileOrigin {
  int64_t epoch = 0;  // 0: not in the file
  SeenByLayer seen;   // for the layers that have a state
};
// Reads the epoch and the token counts of a state file. `bytes` is the file, or its first part with the whole header.
// DATA_LOSS (INVALID_STATE_FILE) if the header is invalid.
absl::StatusOr<StateFileOrigin> ReadStateFileOrigin(std::string_view bytes);

// OK if the state file `bytes` (whole, or its first part with the header) has this epoch. ABORTED (EPOCH_MISMATCH) if
// it has another or none. Errors of ReadStateFileOrigin. `session` is for the message.
absl::Status CheckFileEpoch(const std::string& session, int64_t epoch, std::string_view bytes);

// Passes the pieces of a state file on to `sink`, but only after the file's header has shown the right epoch.
class EpochCheckedSink {
 public:
  EpochCheckedSink(const std::string& session, int64_t epoch, absl::FunctionRef<absl::Status(std::string_view)> sink)
      : session_(session), epoch_(epoch), sink_(sink) {}

  absl::Status Take(std::string_view piece);
  // Call when the file is complete. OK if its epoch was checked. DATA_LOSS (INVALID_STATE_FILE) if it had no header.
  absl::Status End();

 private:
  const std::string session_;
  const int64_t epoch_;
  const absl::FunctionRef<absl::Status(std::string_view)> sink_;
  std::string begun_;  // bytes that came before the header was complete
  bool checked_ = false;
};

}  // namespace gdn
