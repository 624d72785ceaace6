#include "client/cpp/upload.h"

#include <utility>

#include "base/status_macros.h"
#include "client/cpp/rpc_status.h"

namespace gdn {

Upload::Upload(std::shared_ptr<grpc::ChannelInterface> channel, const std::string& method, grpc::ClientContext* context)
    : stub_(std::move(channel)) {
  stub_.PrepareBidiStreamingCall(context, method, {}, this);
  StartRead(&answer_);
  AddHold();  // writes are started from outside of its callbacks
  StartCall();
}

bool Upload::Write(grpc::ByteBuffer message) {
  {
    absl::MutexLock lock(&mu_);
    AwaitWrite();
    if (!open_) return false;
    writing_ = true;
  }
  message_.Swap(&message);
  StartWrite(&message_);
  return true;
}

absl::StatusOr<grpc::ByteBuffer> Upload::Finish() {
  bool open = false;
  {
    absl::MutexLock lock(&mu_);
    AwaitWrite();
    open = std::exchange(open_, false);
  }
  if (open) StartWritesDone();
  RemoveHold();
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&done_));
  GDN_RETURN_IF_ERROR(StatusFromGrpc(status_));
  return std::move(answer_);
}

void Upload::AwaitWrite() {
  const auto written = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !writing_; };
  mu_.Await(absl::Condition(&written));
}

void Upload::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  if (!ok) open_ = false;
}

void Upload::OnDone(const grpc::Status& status) {
  absl::MutexLock lock(&mu_);
  status_ = status;
  done_ = true;
}

}  // namespace gdn
