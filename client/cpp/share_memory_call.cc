#include "client/cpp/share_memory_call.h"

#include <utility>

#include "base/string_cat.h"
#include "client/cpp/rpc_status.h"

namespace gdn {

absl::StatusOr<std::unique_ptr<ShareMemoryCall>> ShareMemoryCall::Start(v1::GdnService::StubInterface& stub,
                                                                        std::unique_ptr<grpc::ClientContext> context,
                                                                        const v1::ShareMemoryRequest& request) {
  if (stub.async() == nullptr) {
    return absl::FailedPreconditionError("ShareMemory needs a client that was made of a channel");
  }
  return std::unique_ptr<ShareMemoryCall>(new ShareMemoryCall(*stub.async(), std::move(context), request));
}

ShareMemoryCall::ShareMemoryCall(v1::GdnService::StubInterface::async_interface& stub,
                                 std::unique_ptr<grpc::ClientContext> context, v1::ShareMemoryRequest request)
    : context_(std::move(context)), request_(std::move(request)) {
  stub.ShareMemory(context_.get(), &request_, this);
  StartRead(&response_);
  StartCall();
}

ShareMemoryCall::~ShareMemoryCall() {
  context_->TryCancel();
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &ShareMemoryCall::Done));
}

absl::StatusOr<v1::ShareMemoryResponse> ShareMemoryCall::WaitForResponse(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  if (!mu_.AwaitWithTimeout(absl::Condition(this, &ShareMemoryCall::Answered), timeout)) {
    return absl::DeadlineExceededError(
        StrCat("the server has not shared memory within ", absl::FormatDuration(timeout)));
  }
  if (end_.has_value()) return *end_;
  return *answer_;
}

absl::Status ShareMemoryCall::status() const {
  absl::MutexLock lock(&mu_);
  return end_.value_or(absl::OkStatus());
}

void ShareMemoryCall::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone follows
  {
    absl::MutexLock lock(&mu_);
    answer_ = std::move(response_);
  }
  StartRead(&response_);
}

void ShareMemoryCall::OnDone(const grpc::Status& status) {
  absl::Status end = StatusFromGrpc(status);
  absl::MutexLock lock(&mu_);
  end_ = end.ok() ? absl::CancelledError("the server has ended its shared memory") : std::move(end);
}

}  // namespace gdn
