// ExportState and ImportState: a session's states as a safetensors file, in pieces.
//
// Thread safety and ownership: as step_reactors.h.
//
//   return NewExportReactor(context, callback_context, request);
#pragma once

#include <grpcpp/support/server_callback.h>

#include "gdn/v1/session.pb.h"
#include "server/rpc/service_context.h"

namespace gdn {

grpc::ServerWriteReactor<v1::ExportStateResponse>* NewExportReactor(const ServiceContext& context,
                                                                    grpc::CallbackServerContext* call,
                                                                    const v1::ExportStateRequest* request);
grpc::ServerReadReactor<v1::ImportStateRequest>* NewImportReactor(const ServiceContext& context,
                                                                  grpc::CallbackServerContext* call,
                                                                  v1::ImportStateResponse* response);

}  // namespace gdn
