// The reactors of steps and of streams.
//
// Steps, and what moves a session's states as safetensors files, piece by piece, are served as raw bytes, for those of
// tensors and files should not pass through protobuf's strings; on the wire they are the messages of proto/gdn/v1.
// Thread safety: gRPC's callback API serialises what needs it. Ownership: a reactor deletes itself when the call is
// over; the context must outlive it.
//
//   return NewStreamDecodeReactor(context, callback_context);
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "gdn/v1/shared_memory.pb.h"
#include "server/rpc/service_context.h"

namespace gdn {

// step_reactors.cc. `request` is given back once it is read.
grpc::ServerUnaryReactor* NewPrefillReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                                            grpc::ByteBuffer& request, grpc::ByteBuffer* response);
grpc::ServerUnaryReactor* NewDecodeReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                                           grpc::ByteBuffer& request, grpc::ByteBuffer* response);
// One message at a time: the next is read when the reply to the last is written, so steps of a stream are in order.
using ByteStreamReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
ByteStreamReactor* NewStreamPrefillReactor(const ServiceContext& context, grpc::CallbackServerContext* call);
ByteStreamReactor* NewStreamDecodeReactor(const ServiceContext& context, grpc::CallbackServerContext* call);

// state_stream_reactors.cc: a session's states as one file, and the same now and again as the session advances.
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewExportReactor(const ServiceContext& context,
                                                             grpc::CallbackServerContext* call,
                                                             const grpc::ByteBuffer* request);
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewWatchReactor(const ServiceContext& context,
                                                            grpc::CallbackServerContext* call,
                                                            const grpc::ByteBuffer* request);

// import_reactor.cc: a session made from a file.
grpc::ServerReadReactor<grpc::ByteBuffer>* NewImportReactor(const ServiceContext& context,
                                                            grpc::CallbackServerContext* call,
                                                            grpc::ByteBuffer* response);

// share_memory_reactor.cc
grpc::ServerWriteReactor<v1::ShareMemoryResponse>* NewShareMemoryReactor(const ServiceContext& context,
                                                                         grpc::CallbackServerContext* call,
                                                                         const v1::ShareMemoryRequest* request);

}  // namespace gdn
