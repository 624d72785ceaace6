// The gRPC service: what answers each method.
//
// Thread safety: methods from any thread. Ownership: the caller's; the context must outlive it, and it its calls.
//
//   const std::unique_ptr<grpc::Service> service = NewGdnService(context);
#pragma once

#include <grpcpp/impl/codegen/service_type.h>

#include <memory>

#include "server/rpc/service_context.h"

namespace gdn {

std::unique_ptr<grpc::Service> NewGdnService(const ServiceContext& context);

}  // namespace gdn
