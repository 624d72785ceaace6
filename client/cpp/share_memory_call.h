// The ShareMemory call that keeps a region or a ring: it lasts as long as this object.
//
// Thread safety: safe from any thread. Ownership: owns the call. The destructor ends it and waits until it has ended.
//
//   GDN_ASSIGN_OR_RETURN(auto keeper, ShareMemoryCall::Start(stub, std::move(context), request));
//   GDN_ASSIGN_OR_RETURN(v1::ShareMemoryResponse response, keeper->WaitForResponse(absl::Seconds(5)));
#pragma once

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace gdn {

class ShareMemoryCall final : private grpc::ClientReadReactor<v1::ShareMemoryResponse> {
 public:
  // FAILED_PRECONDITION for a stub without async().
  static absl::StatusOr<std::unique_ptr<ShareMemoryCall>> Start(v1::GdnService::StubInterface& stub,
                                                                std::unique_ptr<grpc::ClientContext> context,
                                                                const v1::ShareMemoryRequest& request);
  ~ShareMemoryCall() override;

  // Waits for the server's only message. The server's errors; DEADLINE_EXCEEDED.
  absl::StatusOr<v1::ShareMemoryResponse> WaitForResponse(absl::Duration timeout);
  // OK while the server keeps the memory. Afterwards, the error with which it ended it; CANCELLED if it gave none.
  absl::Status status() const;

 private:
  ShareMemoryCall(v1::GdnService::StubInterface::async_interface& stub, std::unique_ptr<grpc::ClientContext> context,
                  v1::ShareMemoryRequest request);
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  bool Done() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return end_.has_value(); }
  bool Answered() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return end_.has_value() || answer_.has_value(); }

  const std::unique_ptr<grpc::ClientContext> context_;
  const v1::ShareMemoryRequest request_;
  v1::ShareMemoryResponse response_;
  mutable absl::Mutex mu_;
  std::optional<v1::ShareMemoryResponse> answer_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
