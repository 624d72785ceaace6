// A session's snapshots as it advances: WatchState for clients.
//
// Thread safety: one thread reads; Cancel may be called from any other. Ownership: the watch owns its call. It must not
// outlive its Client. It holds one snapshot's bytes while they arrive. The destructor ends the call.
//
//   GDN_ASSIGN_OR_RETURN(StateWatch watch, client.WatchState(request));  // request.set_every_tokens(64)
//   for (;;) {
//     GDN_ASSIGN_OR_RETURN(StateSnapshot snapshot, watch.Next());
//     GDN_RETURN_IF_ERROR(Keep(snapshot));
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"

namespace gdn {

// One complete, verified file.
struct StateSnapshot {
  int64_t sequence = 0;  // number of snapshots of the stream before this one
  bool delta = false;    // true: the file is a delta to the stream's last full snapshot
  std::string file;
};

// Checks the pieces of one state file: their offsets, sizes and checksums. Keeps none of them.
class StatePieces {
 public:
  // Checks the next piece of the file and counts its bytes. DATA_LOSS (INVALID_STATE_FILE), and nothing is counted, if
  // it is damaged or does not follow the pieces before.
  absl::Status Add(std::string_view data, int64_t offset, int64_t total_bytes, uint64_t checksum);

  bool begun() const { return total_.has_value(); }
  bool whole() const { return total_.has_value() && received_ == *total_; }
  int64_t received_bytes() const { return received_; }
  int64_t total_bytes() const { return total_.value_or(0); }

 private:
  int64_t received_ = 0;
  std::optional<int64_t> total_;
};

class StateWatch {
 public:
  using Reader = grpc::ClientReaderInterface<v1::WatchStateResponse>;

  // The session and the epoch that every snapshot must have.
  struct Origin {
    std::string session;  // "sessions/ID"
    int64_t epoch = 0;
  };

  // Without `origin`, the watch does not check the snapshots' epochs.
  StateWatch(std::unique_ptr<grpc::ClientContext> context, std::unique_ptr<Reader> reader,
             std::optional<Origin> origin = std::nullopt);
  StateWatch(StateWatch&& other) noexcept = default;
  StateWatch& operator=(StateWatch&&) = delete;
  ~StateWatch();

  // Waits for the next snapshot. When the call has ended, returns its error: NOT_FOUND if the session has ended,
  // CANCELLED after Cancel, ABORTED (EPOCH_MISMATCH) if the session has left the request's epoch. OUT_OF_RANGE if the
  // server ended the call without an error. DATA_LOSS (INVALID_STATE_FILE) for damaged or misplaced pieces, which end
  // the call. Later calls return the same error.
  absl::StatusOr<StateSnapshot> Next();

  // Ends the call, on any thread, without waiting. A Next() in progress returns CANCELLED, or a snapshot that is
  // complete.
  void Cancel();

 private:
  absl::Status End(absl::Status status);

  std::unique_ptr<grpc::ClientContext> context_;  // null after a move
  std::unique_ptr<Reader> reader_;
  std::optional<Origin> origin_;
  int64_t next_sequence_ = 0;
  std::optional<absl::Status> final_status_;  // set when the call has ended
};

}  // namespace gdn
