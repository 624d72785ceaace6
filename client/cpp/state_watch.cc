#include "client/cpp/state_watch.h"

#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/string_cat.h"
#include "client/cpp/reply_epoch.h"
#include "client/cpp/rpc_status.h"

namespace gdn {
namespace {

absl::Status NotWhole(std::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                   StrCat("the state file did not come whole: ", what, "; ask for it again"));
}

}  // namespace

absl::Status StatePieces::Add(std::string_view data, int64_t offset, int64_t total_bytes, uint64_t checksum) {
  if (offset != received_) return NotWhole(StrCat("a piece begins at byte ", offset, ", expected ", received_));
  if (total_.has_value() && total_bytes != *total_) {
    return NotWhole(StrCat("its size changed from ", *total_, " to ", total_bytes, " bytes"));
  }
  if (static_cast<int64_t>(data.size()) > total_bytes - offset) {
    return NotWhole(StrCat("more bytes than the announced ", total_bytes));
  }
  if (Hash64(data) != checksum) {
    return NotWhole(StrCat("the checksum of the ", data.size(), " bytes from byte ", offset, " on is another"));
  }
  total_ = total_bytes;
  received_ += static_cast<int64_t>(data.size());
  return absl::OkStatus();
}

StateWatch::StateWatch(std::unique_ptr<grpc::ClientContext> context, std::unique_ptr<Reader> reader,
                       std::optional<Origin> origin)
    : context_(std::move(context)), reader_(std::move(reader)), origin_(std::move(origin)) {}

StateWatch::~StateWatch() {
  if (reader_ == nullptr || final_status_.has_value()) return;
  (void)End(absl::OkStatus());
}

absl::Status StateWatch::End(absl::Status status) {
  if (!status.ok()) {
    final_status_ = std::move(status);
  } else {
    final_status_ = absl::CancelledError("the watch was ended here");
  }
  context_->TryCancel();
  (void)reader_->Finish();
  return *final_status_;
}

absl::StatusOr<StateSnapshot> StateWatch::Next() {
  if (final_status_.has_value()) return *final_status_;
  StateSnapshot snapshot;
  StatePieces pieces;
  v1::WatchStateResponse piece;
  while (reader_->Read(&piece)) {
    if (!pieces.begun()) {
      snapshot.sequence = piece.sequence();
      snapshot.delta = piece.delta();
      if (piece.sequence() != next_sequence_ || (piece.delta() && next_sequence_ == 0)) {
        return End(NotWhole(StrCat("snapshot ", piece.sequence(), piece.delta() ? " (a delta)" : "", " came, expected ",
                                   next_sequence_, next_sequence_ == 0 ? ", in full" : "")));
      }
    } else if (piece.sequence() != snapshot.sequence || piece.delta() != snapshot.delta) {
      return End(
          NotWhole(StrCat("a piece of snapshot ", piece.sequence(), " came inside snapshot ", snapshot.sequence)));
    }
    if (absl::Status status = pieces.Add(piece.data(), piece.offset(), piece.total_bytes(), piece.checksum());
        !status.ok()) {
      return End(std::move(status));
    }
    if (snapshot.file.empty() && piece.data().size() == static_cast<size_t>(piece.total_bytes())) {
      snapshot.file = std::move(*piece.mutable_data());
    } else {
      snapshot.file.append(piece.data());
    }
    if (pieces.whole()) {
      if (origin_.has_value()) {
        absl::Status same = CheckFileEpoch(origin_->session, origin_->epoch, snapshot.file);
        if (!same.ok()) return End(std::move(same));
      }
      ++next_sequence_;
      return snapshot;
    }
  }
  final_status_ = StatusFromGrpc(reader_->Finish());
  if (final_status_->ok()) {
    final_status_ = pieces.begun()
                        ? NotWhole(StrCat(pieces.received_bytes(), " of ", pieces.total_bytes(), " bytes came"))
                        : absl::OutOfRangeError("the server has ended the watch");
  }
  return *final_status_;
}

void StateWatch::Cancel() { context_->TryCancel(); }

}  // namespace gdn
