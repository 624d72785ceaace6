// The reactors of Prefill, Decode and their streams.
//
// Thread safety: gRPC's callback API serialises what needs it. Ownership: a reactor deletes itself when the call is
// over; the context must outlive it.
//
//   return NewStreamDecodeReactor(context, callback_context);
#pragma once

#include <grpcpp/support/server_callback.h>

#include "gdn/v1/step.pb.h"
#include "server/rpc/service_context.h"

namespace gdn {

grpc::ServerUnaryReactor* NewPrefillReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                                            const v1::PrefillRequest* request, v1::PrefillResponse* response);
grpc::ServerUnaryReactor* NewDecodeReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                                           const v1::DecodeRequest* request, v1::DecodeResponse* response);

// One message at a time: the next is read when the reply to the last is written, so steps of a stream are in order.
grpc::ServerBidiReactor<v1::StreamPrefillRequest, v1::StreamPrefillResponse>* NewStreamPrefillReactor(
    const ServiceContext& context, grpc::CallbackServerContext* call);
grpc::ServerBidiReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse>* NewStreamDecodeReactor(
    const ServiceContext& context, grpc::CallbackServerContext* call);

}  // namespace gdn
