// ShareMemory: creates a region of shared memory, or a ring, that lasts as long as the stream.
#include <bit>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/resume_on.h"
#include "base/task/status_macros.h"
#include "base/task/task.h"
#include "base/task/task_queue_executor.h"
#include "server/ring/rings.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/reactors.h"
#include "server/rpc/ring/ring_calls.h"
#include "server/rpc/transfers/stream_flow.h"

namespace gdn {
namespace {

using ResponseWriter = StreamWriter<v1::ShareMemoryResponse>;

absl::Status EndOfStream(bool ended_by_client) {
  if (ended_by_client) {
    return MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled, "the client has ended its shared memory");
  }
  return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                   "the server is shutting down and ends its shared memory");
}

// ---- Regions

Task<absl::Status> OpenRegion(SharedRegions& regions, const Caller& caller, int64_t bytes, v1::SharedRegion& out) {
  const absl::StatusOr<SharedRegionPtr> region = regions.Open(caller.principal, caller.account->name(), bytes);
  GDN_CO_RETURN_IF_ERROR(region.status());
  out.set_name((*region)->name());
  out.set_path((*region)->path());
  out.set_bytes((*region)->bytes());
  co_return absl::OkStatus();
}

Task<absl::Status> ShareRegion(const StreamParts& parts, const Caller& caller, int64_t bytes, Executor& io,
                               ResponseWriter& out) {
  v1::ShareMemoryResponse response;
  Task<absl::Status> opened = OpenRegion(parts.shared_regions, caller, bytes, *response.mutable_region());
  GDN_CO_RETURN_IF_ERROR(co_await RunOn(io, std::move(opened)));
  out.Write(response);
  (co_await parts.shared_regions.drained().Wait(caller.deadline)).IgnoreError();
  // False if a drain has ended it before.
  const bool ended_by_client = parts.shared_regions.End(response.region().name());
  co_await out.Written();
  co_return EndOfStream(ended_by_client);
}

// ---- Rings

// A ring and the calls that come through it. Its charge ends last.
struct OpenedRing {
  std::shared_ptr<void> charge;
  std::shared_ptr<Ring> ring;
  std::shared_ptr<RingCalls> calls;
  std::string token;
};

absl::StatusOr<OpenedRing> MakeRing(const StreamParts& parts, grpc::CallbackServerContext& call, const Caller& caller,
                                    const v1::ShareMemoryRequest& request) {
  const int32_t entries = request.ring_entries();
  if (entries < 0 || entries > static_cast<int32_t>(GDN_RING_MOST_ENTRIES) ||
      !std::has_single_bit(static_cast<uint32_t>(entries))) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("ring_entries is ", entries, ", expected a power of two of at most ", GDN_RING_MOST_ENTRIES,
                            ", or 0 for a region"),
                     {{"field", "ring_entries"}});
  }
  OpenedRing opened;
  GDN_ASSIGN_OR_RETURN(opened.charge, parts.shared_regions.ChargeRing(caller.account->name(), request.bytes()));
  if (parts.rings == nullptr) {
    return MakeError(absl::StatusCode::kUnimplemented, reason::kSharedMemoryNotOffered,
                     "this server offers no rings: their socket cannot be made; send steps in messages");
  }
  GDN_ASSIGN_OR_RETURN(opened.ring, Ring::Make(static_cast<uint32_t>(entries), request.bytes()));
  opened.calls = std::make_shared<RingCalls>(parts.steps, call, caller, opened.ring);
  GDN_RETURN_IF_ERROR(parts.rings->poller->Add(opened.calls));
  opened.token = parts.rings->door->Offer(opened.ring);
  return opened;
}

Task<absl::Status> OpenRing(const StreamParts& parts, grpc::CallbackServerContext& call, const Caller& caller,
                            const v1::ShareMemoryRequest& request, OpenedRing& opened) {
  GDN_CO_ASSIGN_OR_RETURN(opened, MakeRing(parts, call, caller, request));
  co_return absl::OkStatus();
}

// Takes no submission any more. Waits for the poller, so it runs on a thread that may block.
Task<absl::Status> StopTaking(Rings& rings, OpenedRing& opened) {
  rings.door->TakeBack(opened.token);
  rings.poller->Remove(*opened.calls);
  co_return absl::OkStatus();
}

Task<absl::Status> ShareRing(const StreamParts& parts, grpc::CallbackServerContext& call, const Caller& caller,
                             const v1::ShareMemoryRequest& request, Executor& io, ResponseWriter& out) {
  OpenedRing opened;
  Task<absl::Status> open = OpenRing(parts, call, caller, request, opened);
  GDN_CO_RETURN_IF_ERROR(co_await RunOn(io, std::move(open)));
  v1::ShareMemoryResponse response;
  v1::Ring& ring = *response.mutable_ring();
  ring.set_socket_path(parts.rings->door->path());
  ring.set_token(opened.token);
  ring.set_entries(request.ring_entries());
  ring.set_area_bytes(request.bytes());
  out.Write(response);
  const absl::Status drained = co_await parts.shared_regions.drained().Wait(caller.deadline);
  Task<absl::Status> stop = StopTaking(*parts.rings, opened);
  (co_await RunOn(io, std::move(stop))).IgnoreError();
  // A drain lets the calls in flight end, unless it takes too long; then gRPC cancels this call. If the client has
  // gone, the deadline is cancelled already, and nothing is waited for.
  const absl::Status ended = co_await opened.calls->AllEnded(caller.deadline);
  if (!ended.ok()) opened.calls->CancelAll();
  opened.ring->End(GDN_RING_ENDED);
  co_await opened.calls->AllEnded();
  co_await out.Written();
  co_return EndOfStream(/*ended_by_client=*/!drained.ok());
}

Task<absl::Status> ShareMemory(const StreamParts& parts, grpc::CallbackServerContext& call,
                               const v1::ShareMemoryRequest& request, ResponseWriter& out) {
  const Caller caller = CallerOf(call, parts.common.access, out.gone());
  GDN_CO_RETURN_IF_ERROR(caller.allowed);
  // Allocating memory may take long.
  TaskQueueExecutor io(parts.sessions.states.transfer_threads(), caller.account->turn(), parts.sessions.timers);
  Task<absl::Status> shared = request.ring_entries() == 0 ? ShareRegion(parts, caller, request.bytes(), io, out)
                                                          : ShareRing(parts, call, caller, request, io, out);
  co_return co_await std::move(shared);
}

}  // namespace

grpc::ServerWriteReactor<v1::ShareMemoryResponse>* NewShareMemoryReactor(const StreamParts& parts,
                                                                         grpc::CallbackServerContext* call,
                                                                         const v1::ShareMemoryRequest* request) {
  auto* const out = new ResponseWriter(parts.common, RpcMethod::kShareMemory);
  out->Start(ShareMemory(parts, *call, *request, *out));
  return out;
}

}  // namespace gdn
