// ImportState: a session made from a safetensors file that arrives in pieces.
//
// Served as raw bytes, for a file's bytes should not pass through protobuf's strings; on the wire they are the messages
// of session.proto.
// Thread safety and ownership: as step_reactors.h.
//
//   return NewImportReactor(context, callback_context, response);
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/rpc/service_context.h"

namespace gdn {

grpc::ServerReadReactor<grpc::ByteBuffer>* NewImportReactor(const ServiceContext& context,
                                                            grpc::CallbackServerContext* call,
                                                            grpc::ByteBuffer* response);

}  // namespace gdn
