// The reactors that send state files: ExportState, a session's states as one safetensors file, and WatchState, the same
// now and again as the session advances. Each file goes in pieces.
//
// Served as raw bytes, for a file's bytes should not pass through protobuf's strings; on the wire they are the messages
// of session.proto and state.proto.
// Thread safety and ownership: as step_reactors.h.
//
//   return NewExportReactor(context, callback_context, request);
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/rpc/service_context.h"

namespace gdn {

grpc::ServerWriteReactor<grpc::ByteBuffer>* NewExportReactor(const ServiceContext& context,
                                                             grpc::CallbackServerContext* call,
                                                             const grpc::ByteBuffer* request);
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewWatchReactor(const ServiceContext& context,
                                                            grpc::CallbackServerContext* call,
                                                            const grpc::ByteBuffer* request);

}  // namespace gdn
