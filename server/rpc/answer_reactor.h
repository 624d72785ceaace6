// A unary call that a function answers: its messages, its caller, its meter, and the memory that it counts for.
//
// Messages come and go as bytes: what a request is parsed to counts as the caller's before it is parsed, and a large
// reply until it is sent.
// Thread safety: one thread at a time. Ownership: deletes itself once gRPC is done with the call; the messages live
// until then.
//
//   auto* call = new AnswerReactor<v1::GetSessionRequest, v1::GetSessionResponse>(context, rpc, *grpc_call, in, out);
//   if (call->Read()) call->End(GetSession(context, call->caller(), call->request(), &call->response()));
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "server/admission/byte_ledger.h"
#include "server/rpc/call_charge.h"
#include "server/rpc/caller.h"
#include "server/rpc/parsed_bytes.h"
#include "server/rpc/raw_message.h"
#include "server/rpc/rpc_stats.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/service_context.h"

namespace gdn {

template <typename Request, typename Response>
class AnswerReactor : public grpc::ServerUnaryReactor {
 public:
  // `open`: held until the call has ended; may be nullptr.
  AnswerReactor(const ServiceContext& context, RpcMethod rpc, grpc::CallbackServerContext& call,
                const grpc::ByteBuffer& in, grpc::ByteBuffer& out, std::shared_ptr<void> open = nullptr)
      : context_(context),
        meter_(context.stats, rpc),
        caller_(CallerOf(call, context)),
        in_(in),
        out_(out),
        open_(std::move(open)) {}

  const Caller& caller() const { return caller_; }
  const Request& request() const { return request_; }
  Response& response() { return response_; }

  // Charges the request and parses it. False where the call has ended with an error.
  bool Read() {
    if (absl::Status read = TryRead(); !read.ok()) {
      End(read);
      return false;
    }
    return true;
  }
  // Charges a large reply until it is sent. RESOURCE_EXHAUSTED (BYTES_EXHAUSTED): for calls that have changed
  // nothing, and so may be refused.
  absl::Status ChargeReply() {
    if (const int64_t bytes = LargeReply(); bytes > 0) {
      GDN_ASSIGN_OR_RETURN(reply_, context_.ledger.TryCharge(BytePool::kCalls, caller_.account, bytes));
    }
    return absl::OkStatus();
  }
  // Once. A large reply that was not charged is charged here, whatever the limit.
  void End(const absl::Status& status) {
    Request().Swap(&request_);  // what is not charged any more is not there any more
    charge_.Release();          // before the client hears of the call's end
    if (status.ok()) {
      if (const int64_t bytes = LargeReply(); bytes > 0 && !reply_.valid()) {
        reply_ = context_.ledger.Charge(BytePool::kCalls, caller_.account, bytes);
      }
      out_ = SerializeMessage(response_);
    }
    meter_.End(status);
    Finish(ToGrpcStatus(status));
  }

  void OnDone() override { delete this; }

 protected:
  const ServiceContext& context() const { return context_; }

 private:
  absl::Status TryRead() {
    const auto bytes = static_cast<size_t>(ParsedBytes(*Request::descriptor(), in_));
    GDN_ASSIGN_OR_RETURN(charge_, ChargeCall(context_, caller_, bytes));
    GDN_ASSIGN_OR_RETURN(request_, ParseMessage<Request>(in_));
    return absl::OkStatus();
  }
  // The message's bytes and those it is sent as.
  int64_t LargeReply() const {
    const auto bytes = static_cast<int64_t>(response_.SpaceUsedLong() + response_.ByteSizeLong());
    return bytes > kCallBytes ? bytes : 0;
  }

  const ServiceContext& context_;
  const RpcMeter meter_;
  const Caller caller_;
  const grpc::ByteBuffer& in_;  // the call's
  grpc::ByteBuffer& out_;
  const std::shared_ptr<void> open_;
  Request request_;
  Response response_;
  ByteCharge charge_;
  ByteCharge reply_;
};

}  // namespace gdn
