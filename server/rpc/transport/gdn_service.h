// The gRPC service gdn.v1.GdnService: a function or a reactor for each method.
//
// Thread safety: methods from any thread. Ownership: the caller owns the service. The parts must outlive the service,
// and the service its calls.
//
//   const std::unique_ptr<grpc::Service> service = NewGdnService(parts);
#pragma once

#include <grpcpp/impl/codegen/service_type.h>

#include <memory>

#include "server/rpc/service_parts.h"

namespace gdn {

std::unique_ptr<grpc::Service> NewGdnService(const ServiceParts& parts);

}  // namespace gdn
