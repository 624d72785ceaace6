// Whether a reply, or a state file, is of the session's epoch that its request named.
//
// A server of today refuses another epoch. An older one does not know the field and answers all the same, of the older
// state that a crash has left; the epoch in the reply, or in the file's metadata, tells. The errors are those that a
// server of today gives: ABORTED (EPOCH_MISMATCH: session, epoch, expected).
// Thread safety: free functions; an EpochCheckedSink is for one thread. Ownership: everything is borrowed.
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

// Replies that tell no epoch are believed.
template <typename Request, typename Response>
absl::Status CheckReplyEpoch(const Request& /*request*/, const Response& /*response*/) {
  return absl::OkStatus();
}
absl::Status CheckReplyEpoch(const v1::CheckpointSessionRequest& request,
                             const v1::CheckpointSessionResponse& response);
// The session's new epoch is the one after the request's.
absl::Status CheckReplyEpoch(const v1::RestoreCheckpointRequest& request,
                             const v1::RestoreCheckpointResponse& response);

// What a layer has seen.
struct SeenTokens {
  int64_t tokens = 0;
  int64_t draft = 0;  // beside them

  friend bool operator==(const SeenTokens&, const SeenTokens&) = default;
};
using SeenByLayer = std::map<int32_t, SeenTokens>;

// What a state file's metadata says of the session that it is of.
struct StateFileOrigin {
  int64_t epoch = 0;  // 0: it does not say
  SeenByLayer seen;   // of the layers that have a state
};
// `bytes`: the file, or as much of it as has its header. DATA_LOSS (INVALID_STATE_FILE) where the header is none.
absl::StatusOr<StateFileOrigin> ReadStateFileOrigin(std::string_view bytes);

// Errors as ReadStateFileOrigin's, and ABORTED (EPOCH_MISMATCH).
absl::Status CheckFileEpoch(const std::string& session, int64_t epoch, std::string_view bytes);

// Hands a file that comes in pieces on to `sink`, from the moment that its header has turned out to be of the epoch.
class EpochCheckedSink {
 public:
  EpochCheckedSink(const std::string& session, int64_t epoch, absl::FunctionRef<absl::Status(std::string_view)> sink)
      : session_(session), epoch_(epoch), sink_(sink) {}

  absl::Status Take(std::string_view piece);
  // The file is whole. DATA_LOSS (INVALID_STATE_FILE) where it had no header.
  absl::Status End();

 private:
  const std::string session_;
  const int64_t epoch_;
  const absl::FunctionRef<absl::Status(std::string_view)> sink_;
  std::string begun_;  // what came before the header was whole
  bool checked_ = false;
};

}  // namespace gdn
