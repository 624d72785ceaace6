// ShareMemory: creates a region of shared memory that lasts as long as the stream.
#include <utility>

#include "base/error.h"
#include "base/task/resume_on.h"
#include "base/task/status_macros.h"
#include "base/task/task.h"
#include "base/task/task_queue_executor.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/reactors.h"
#include "server/rpc/transfers/stream_flow.h"

namespace gdn {
namespace {

using RegionWriter = StreamWriter<v1::ShareMemoryResponse>;

Task<absl::Status> OpenRegion(SharedRegions& regions, const Caller& caller, int64_t bytes, v1::SharedRegion& out) {
  const absl::StatusOr<SharedRegionPtr> region = regions.Open(caller.principal, caller.account->name(), bytes);
  GDN_CO_RETURN_IF_ERROR(region.status());
  out.set_name((*region)->name());
  out.set_path((*region)->path());
  out.set_bytes((*region)->bytes());
  co_return absl::OkStatus();
}

Task<absl::Status> ShareMemory(const StreamParts& parts, grpc::CallbackServerContext& call,
                               const v1::ShareMemoryRequest& request, RegionWriter& out) {
  const Caller caller = CallerOf(call, parts.common.access, out.gone());
  GDN_CO_RETURN_IF_ERROR(caller.allowed);
  v1::ShareMemoryResponse response;
  // Allocating the region's file may take long.
  TaskQueueExecutor io(parts.sessions.states.transfer_threads(), caller.account->turn(), parts.sessions.timers);
  Task<absl::Status> opened = OpenRegion(parts.shared_regions, caller, request.bytes(), *response.mutable_region());
  GDN_CO_RETURN_IF_ERROR(co_await RunOn(io, std::move(opened)));
  out.Write(response);
  (co_await parts.shared_regions.drained().Wait(caller.deadline)).IgnoreError();
  // False if a drain has ended it before.
  const bool ended_by_client = parts.shared_regions.End(response.region().name());
  co_await out.Written();
  if (ended_by_client) {
    co_return MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled, "the client has ended the region");
  }
  co_return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                      "the server is shutting down and ends its shared memory");
}

}  // namespace

grpc::ServerWriteReactor<v1::ShareMemoryResponse>* NewShareMemoryReactor(const StreamParts& parts,
                                                                         grpc::CallbackServerContext* call,
                                                                         const v1::ShareMemoryRequest* request) {
  auto* const out = new RegionWriter(parts.common, RpcMethod::kShareMemory);
  out->Start(ShareMemory(parts, *call, *request, *out));
  return out;
}

}  // namespace gdn
