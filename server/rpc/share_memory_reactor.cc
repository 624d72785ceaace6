// ShareMemory: a region of shared memory, for as long as the stream lasts.
#include <atomic>
#include <string>

#include "absl/synchronization/mutex.h"
#include "base/error.h"
#include "server/rpc/caller.h"
#include "server/rpc/reactors.h"
#include "server/rpc/rpc_status.h"

namespace gdn {
namespace {

// Whoever ends the region, the client or a drain, ends the call: SharedRegions tells who is first.
class ShareMemoryReactor final : public grpc::ServerWriteReactor<v1::ShareMemoryResponse> {
 public:
  ShareMemoryReactor(const ServiceContext& context, grpc::CallbackServerContext& call,
                     const v1::ShareMemoryRequest& request)
      : meter_(context.stats, RpcMethod::kShareMemory), regions_(context.shared_regions) {
    // The system takes its time to find room.
    const Caller caller = CallerOf(call, context);
    if (!caller.allowed.ok()) {
      meter_.End(caller.allowed);
      Finish(ToGrpcStatus(caller.allowed));
      return;
    }
    const auto open = [this, principal = caller.principal, account = caller.account, bytes = request.bytes()] {
      Open(principal, account->name(), bytes);
    };
    context.io.Post(open, caller.account->turn());
  }

  void OnWriteDone(bool /*ok*/) override { FinishIfLast(); }
  void OnCancel() override {
    {
      absl::MutexLock lock(&mu_);
      cancelled_ = true;
      if (name_.empty()) return;  // Open sees it
    }
    EndHere();
  }
  void OnDone() override { delete this; }

 private:
  void Open(const std::string& principal, const std::string& account, int64_t bytes) {
    const auto region = regions_.Open(principal, account, bytes, [this] {
      End(MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                    "the server is shutting down and ends its shared memory"));
    });
    if (!region.ok()) {
      meter_.End(region.status());
      return Finish(ToGrpcStatus(region.status()));
    }
    v1::SharedRegion* const out = response_.mutable_region();
    out->set_name((*region)->name());
    out->set_path((*region)->path());
    out->set_bytes((*region)->bytes());
    bool cancelled = false;
    {
      absl::MutexLock lock(&mu_);
      name_ = (*region)->name();
      cancelled = cancelled_;
    }
    if (cancelled) EndHere();
    StartWrite(&response_);  // last: the call may end here
  }

  void EndHere() {
    if (!regions_.End(response_.region().name())) return;
    End(MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled, "the client has ended the region"));
  }

  // Once, by whoever ended the region.
  void End(absl::Status status) {
    end_ = std::move(status);
    FinishIfLast();
  }

  void FinishIfLast() {
    if (waiting_.fetch_sub(1) != 1) return;
    meter_.End(end_);
    Finish(ToGrpcStatus(end_));
  }

  const RpcMeter meter_;
  SharedRegions& regions_;
  v1::ShareMemoryResponse response_;
  absl::Status end_;
  std::atomic<int> waiting_{2};  // the write, and the region's end
  absl::Mutex mu_;
  std::string name_ ABSL_GUARDED_BY(mu_);  // once there is a region
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::ShareMemoryResponse>* NewShareMemoryReactor(const ServiceContext& context,
                                                                         grpc::CallbackServerContext* call,
                                                                         const v1::ShareMemoryRequest* request) {
  return new ShareMemoryReactor(context, *call, *request);
}

}  // namespace gdn
