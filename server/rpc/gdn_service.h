// gdn.v1.GdnService, on gRPC's callback API.
//
// Thread safety: as every gRPC service, called from many threads. Ownership: the context must outlive the service.
//
//   const std::unique_ptr<grpc::Service> service = MakeGdnService(context);
//   builder.RegisterService(service.get());
#pragma once

#include <memory>

#include <grpcpp/impl/service_type.h>

#include "server/rpc/service_context.h"

namespace gdn {

std::unique_ptr<grpc::Service> MakeGdnService(const ServiceContext& context);

}  // namespace gdn
