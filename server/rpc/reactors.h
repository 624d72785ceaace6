// The reactors of steps and of streams.
//
// Steps, ExportState, WatchState and ImportState exchange raw bytes with gRPC, because tensors and files should not be
// copied through protobuf's strings. On the wire they are the messages of proto/gdn/v1.
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

// In step_reactors.cc. `request` is cleared once it is read.
grpc::ServerUnaryReactor* NewPrefillReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                                            grpc::ByteBuffer& request, grpc::ByteBuffer* response);
grpc::ServerUnaryReactor* NewDecodeReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                                           grpc::ByteBuffer& request, grpc::ByteBuffer* response);
// A stream handles one message at a time. It reads the next message after it has written the reply to the last, so
// steps run in order.
using ByteStreamReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
ByteStreamReactor* NewStreamPrefillReactor(const ServiceContext& context, grpc::CallbackServerContext* call);
ByteStreamReactor* NewStreamDecodeReactor(const ServiceContext& context, grpc::CallbackServerContext* call);

// In state_stream_reactors.cc. Export sends a session's states as one file; Watch sends them again and again as the
// session advances.
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewExportReactor(const ServiceContext& context,
                                                             grpc::CallbackServerContext* call,
                                                             const grpc::ByteBuffer* request);
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewWatchReactor(const ServiceContext& context,
                                                            grpc::CallbackServerContext* call,
                                                            const grpc::ByteBuffer* request);

// In import_reactor.cc. Creates a session from a file.
grpc::ServerReadReactor<grpc::ByteBuffer>* NewImportReactor(const ServiceContext& context,
                                                            grpc::CallbackServerContext* call,
                                                            grpc::ByteBuffer* response);

// In share_memory_reactor.cc. Creates a region of shared memory that lasts as long as the stream.
grpc::ServerWriteReactor<v1::ShareMemoryResponse>* NewShareMemoryReactor(const ServiceContext& context,
                                                                         grpc::CallbackServerContext* call,
                                                                         const v1::ShareMemoryRequest* request);

}  // namespace gdn
