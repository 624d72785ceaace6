// The messages of a unary step, which know when gRPC began to parse the request: its callback API says nothing of a
// call before that is done.
//
// Thread safety: the allocator from any thread, as gRPC asks it. Ownership: gRPC releases messages when the call is
// over; the allocator must outlive the server, and the tracer the allocator.
//
//   SetMessageAllocatorFor_Decode(&decode_messages_);           // StepMessageAllocator<v1::DecodeRequest, ...>
//   const int64_t parse = StepMessages<v1::DecodeRequest, v1::DecodeResponse>::ParseBegin(*call);
#pragma once

#include <cstdint>

#include <grpcpp/server_context.h>
#include <grpcpp/support/message_allocator.h>

#include "server/trace/call_tracer.h"

namespace gdn {

template <typename Request, typename Response>
class StepMessages final : public grpc::MessageHolder<Request, Response> {
 public:
  explicit StepMessages(int64_t parse_begin) : parse_begin_(parse_begin) {
    this->set_request(&request_);
    this->set_response(&response_);
  }
  void Release() override { delete this; }

  // Of a call whose messages are these; 0 where tracing was off.
  static int64_t ParseBegin(grpc::CallbackServerContext& call) {
    return static_cast<StepMessages*>(call.GetRpcAllocatorState())->parse_begin_;
  }

 private:
  const int64_t parse_begin_;
  Request request_;
  Response response_;
};

template <typename Request, typename Response>
class StepMessageAllocator final : public grpc::MessageAllocator<Request, Response> {
 public:
  explicit StepMessageAllocator(const CallTracer& tracer) : tracer_(tracer) {}

  grpc::MessageHolder<Request, Response>* AllocateMessages() override {
    return new StepMessages<Request, Response>(tracer_.on() ? TraceNow() : 0);
  }

 private:
  const CallTracer& tracer_;
};

}  // namespace gdn
