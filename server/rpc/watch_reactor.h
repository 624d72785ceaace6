// WatchState: a session's states as safetensors files, now and again as it advances.
//
// Served as raw bytes, for a file's bytes should not pass through protobuf's strings; on the wire they are the messages
// of state.proto.
// Thread safety and ownership: as step_reactors.h.
//
//   return NewWatchReactor(context, callback_context, request);
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/rpc/service_context.h"

namespace gdn {

grpc::ServerWriteReactor<grpc::ByteBuffer>* NewWatchReactor(const ServiceContext& context,
                                                            grpc::CallbackServerContext* call,
                                                            const grpc::ByteBuffer* request);

}  // namespace gdn
