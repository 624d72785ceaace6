// Runs a streaming call of gRPC as a flow: one task does the whole call, awaits its reads and writes, and returns its
// status.
//
// The reactor below is thin. It keeps the objects that gRPC needs until the call is over, tells the task when an
// operation of gRPC has ended, and finishes the call with the task's result.
// Thread safety: all methods are for the task; gRPC's reactions come from any thread. Ownership: a reactor owns its
// task and deletes itself when gRPC is done with the call, which is after the task has ended. The parts must outlive
// it.
//
//   Task<absl::Status> SendTwo(StreamWriter<grpc::ByteBuffer>& out, grpc::ByteBuffer one, grpc::ByteBuffer two) {
//     out.Write(one);  // the task may work during the write
//     GDN_CO_RETURN_IF_ERROR(co_await out.Written());
//     out.Write(two);
//     co_return co_await out.Written();
//   }
//   auto* out = new StreamWriter<grpc::ByteBuffer>(common, RpcMethod::kExportState);
//   out->Start(SendTwo(*out, Piece(1), Piece(2)));
#pragma once

#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/status/status.h"
#include "base/error.h"
#include "base/open_count.h"
#include "base/task/arrivals.h"
#include "base/task/deadline.h"
#include "base/task/owned_flow.h"
#include "base/task/task.h"
#include "server/rpc/common_parts.h"
#include "server/rpc/rpc_stats.h"
#include "server/rpc/transport/rpc_status.h"

namespace gdn {

inline absl::Status ClientGone() {
  return MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled, "the client has gone");
}

// A reactor of gRPC that runs one task, and finishes its call with the task's status. `Reactor`: gRPC's base class.
template <typename Reactor>
class StreamFlow : public Reactor, protected OwnedFlow<absl::Status> {
 public:
  // `open` is held until gRPC is done with the call.
  StreamFlow(const CommonParts& common, RpcMethod method, OpenCount::Hold open = OpenCount::Hold())
      : OwnedFlow(common.calls), meter_(common.stats, method), open_(std::move(open)) {}

  // Start(task): call once, after the constructor. gRPC queues operations that begin before it knows the reactor.
  using OwnedFlow<absl::Status>::Start;
  const CancelSource& gone() const { return gone_; }  // cancelled when the client goes; for CallerOf

 protected:
  void Ended(absl::Status status) override {
    meter_.End(status);
    this->Finish(ToGrpcStatus(status));  // last: after this the reactor may be deleted
  }

 private:
  void OnCancel() final { gone_.Cancel(); }
  void OnDone() final { delete this; }

  CancelSource gone_;  // the client
  const RpcMeter meter_;
  const OpenCount::Hold open_;
};

template <typename Message>
class StreamWriter final : public StreamFlow<grpc::ServerWriteReactor<Message>> {
 public:
  using StreamFlow<grpc::ServerWriteReactor<Message>>::StreamFlow;

  // Begins a write. Await Written before the next write and before the task ends; the message must live until then.
  void Write(const Message& message) {
    writes_.Begin();
    this->StartWrite(&message);
  }
  // Waits for the write. CANCELLED (CALL_CANCELLED) if it failed because the client has gone.
  Task<absl::Status> Written() {
    co_await writes_.All();
    if (broken_) co_return ClientGone();
    co_return absl::OkStatus();
  }

 private:
  void OnWriteDone(bool ok) override {
    if (!ok) broken_ = true;
    writes_.End();
  }

  Arrivals writes_;
  bool broken_ = false;  // written before writes_ ends, read after
};

}  // namespace gdn
