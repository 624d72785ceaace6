// The reactors of steps and of streams.
//
// Steps, ExportState, WatchState and ImportState exchange raw bytes with gRPC, because tensors and files should not be
// copied through protobuf's strings. On the wire they are the messages of proto/gdn/v1.
// Thread safety: gRPC's callback API serialises what needs it. Ownership: a reactor deletes itself when the call is
// over; the parts must outlive it.
//
//   return NewStreamDecodeReactor(parts, callback_context);
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "gdn/v1/shared_memory.pb.h"
#include "server/batcher/engines.h"
#include "server/ring/rings.h"
#include "server/rpc/common_parts.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/steps/call_rows.h"
#include "server/shared_memory/shared_regions.h"

namespace gdn {

// Make the reactors of Prefill, Decode and Step (step_reactors.cc). Each runs its call and deletes itself once the call
// is over. `request` is cleared once it is read; `response` is written before the call finishes.
grpc::ServerUnaryReactor* NewPrefillReactor(const StepParts& parts, grpc::CallbackServerContext* call,
                                            grpc::ByteBuffer& request, grpc::ByteBuffer* response);
grpc::ServerUnaryReactor* NewDecodeReactor(const StepParts& parts, grpc::CallbackServerContext* call,
                                           grpc::ByteBuffer& request, grpc::ByteBuffer* response);
grpc::ServerUnaryReactor* NewStepReactor(const StepParts& parts, grpc::CallbackServerContext* call,
                                         grpc::ByteBuffer& request, grpc::ByteBuffer* response);
// A stream handles one message at a time. It reads the next message after it has written the reply to the last, so
// steps run in order.
using ByteStreamReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
ByteStreamReactor* NewStreamPrefillReactor(const StepParts& parts, grpc::CallbackServerContext* call);
ByteStreamReactor* NewStreamDecodeReactor(const StepParts& parts, grpc::CallbackServerContext* call);
ByteStreamReactor* NewStreamStepReactor(const StepParts& parts, grpc::CallbackServerContext* call);

// The parts that ExportState, WatchState, ImportState and ShareMemory use.
struct StreamParts {
  CommonParts common;
  SessionParts sessions;
  const Engines& engines;
  SharedRegions& shared_regions;
  Rings* rings;     // null: the server has none
  StepParts steps;  // for the calls of rings
};

// Make the reactors of ExportState and WatchState (state_stream_reactors.cc), which delete themselves. Export sends a
// session's states as one file; Watch sends them again and again as the session advances. `request` must live until the
// call is over.
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewExportReactor(const StreamParts& parts,
                                                             grpc::CallbackServerContext* call,
                                                             const grpc::ByteBuffer* request);
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewWatchReactor(const StreamParts& parts, grpc::CallbackServerContext* call,
                                                            const grpc::ByteBuffer* request);

// Makes the reactor of ImportState (import_reactor.cc), which creates a session from a file and deletes itself.
// `response` must live until the call is over.
grpc::ServerReadReactor<grpc::ByteBuffer>* NewImportReactor(const StreamParts& parts, grpc::CallbackServerContext* call,
                                                            grpc::ByteBuffer* response);

// Makes the reactor of ShareMemory (share_memory_reactor.cc), which creates a region of shared memory or a ring that
// lasts as long as the stream, and deletes itself. `request` must live until the call is over.
grpc::ServerWriteReactor<v1::ShareMemoryResponse>* NewShareMemoryReactor(const StreamParts& parts,
                                                                         grpc::CallbackServerContext* call,
                                                                         const v1::ShareMemoryRequest* request);

}  // namespace gdn
