// GetServerInfo, ListModels, GetModel.
//
// Thread safety: free functions on a constant context.
//
//   FillServerInfo(context, response);
#pragma once

#include "absl/status/status.h"
#include "gdn/v1/info.pb.h"
#include "server/rpc/service_context.h"

namespace gdn {

void FillServerInfo(const ServiceContext& context, v1::GetServerInfoResponse* response);
void ListModels(const ServiceContext& context, v1::ListModelsResponse* response);
// NOT_FOUND (MODEL_NOT_FOUND), INVALID_ARGUMENT (INVALID_NAME).
absl::Status GetModel(const ServiceContext& context, const v1::GetModelRequest& request,
                      v1::GetModelResponse* response);

// The model of a "models/NAME"; errors as GetModel.
absl::StatusOr<const ServedModel*> FindModel(const ServiceContext& context, const std::string& name);

}  // namespace gdn
