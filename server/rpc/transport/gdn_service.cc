// The gRPC service: connects methods with functions, and has the common part of unary calls.
#include "server/rpc/transport/gdn_service.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/open_count.h"
#include "base/status_macros.h"
#include "base/task/owned_flow.h"
#include "base/task/status_macros.h"
#include "gdn/v1/service.grpc.pb.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/callers/call_charge.h"
#include "server/rpc/calls.h"
#include "server/rpc/reactors.h"
#include "server/rpc/rpc_stats.h"
#include "server/rpc/transport/parsed_bytes.h"
#include "server/rpc/transport/raw_message.h"
#include "server/rpc/transport/rpc_status.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

using Call = grpc::CallbackServerContext;
using Unary = grpc::ServerUnaryReactor;

// Wraps Base in a class for each method, as generated code does.
template <typename Base, template <typename> typename... Methods>
struct WithMethods {
  using Type = Base;
};
template <typename Base, template <typename> typename First, template <typename> typename... Rest>
struct WithMethods<Base, First, Rest...> {
  using Type = First<typename WithMethods<Base, Rest...>::Type>;
};

// The callback API with raw bytes as messages, so that nothing is parsed before it is charged. No method uses the
// synchronous API, because that would create threads of its own.
using Gdn = v1::GdnService;
#define GDN_RAW_METHOD(Name, Parts) , Gdn::WithRawCallbackMethod_##Name
using GdnServiceMethods =
    WithMethods<Gdn::Service, Gdn::WithCallbackMethod_ShareMemory GDN_IMMEDIATE_METHODS(GDN_RAW_METHOD)
                                  GDN_TASK_METHODS(GDN_RAW_METHOD) GDN_REACTOR_METHODS(GDN_RAW_METHOD)>::Type;
#undef GDN_RAW_METHOD

// The sessions that a call has made.
std::vector<std::string> MadeSessions(const v1::CreateSessionResponse& response) { return {response.session().name()}; }
std::vector<std::string> MadeSessions(const v1::ForkSessionResponse& response) {
  std::vector<std::string> names;
  for (const v1::Session& session : response.sessions()) names.push_back(session.name());
  return names;
}

std::vector<std::string> MadeSessions(const v1::CreateSessionsResponse& response) {
  std::vector<std::string> names;
  for (const v1::SessionResult& result : response.results()) {
    if (result.has_session()) names.push_back(result.session().name());
  }
  return names;
}
std::vector<std::string> MadeSessions(const v1::ForkSessionsResponse& response) {
  std::vector<std::string> names;
  for (const v1::ForkResult& result : response.results()) {
    for (const v1::Session& session : result.sessions()) names.push_back(session.name());
  }
  return names;
}

// The created sessions whose ids are only in the reply, because the request named none.
std::vector<std::string> UnknownSessions(const v1::CreateSessionRequest& request,
                                         const v1::CreateSessionResponse& response) {
  std::vector<std::string> names;
  if (request.session_id().empty()) names.push_back(response.session().name());
  return names;
}
std::vector<std::string> UnknownSessions(const v1::ForkSessionRequest& request,
                                         const v1::ForkSessionResponse& response) {
  std::vector<std::string> names;
  for (int i = 0; i < std::min(request.session_ids_size(), response.sessions_size()); ++i) {
    if (request.session_ids(i).empty()) names.push_back(response.sessions(i).name());
  }
  return names;
}

std::vector<std::string> UnknownSessions(const v1::CreateSessionsRequest& request,
                                         const v1::CreateSessionsResponse& response) {
  std::vector<std::string> names;
  for (int i = 0; i < response.results_size(); ++i) {
    if (!response.results(i).has_session() || !request.requests(i).session_id().empty()) continue;
    names.push_back(response.results(i).session().name());
  }
  return names;
}
std::vector<std::string> UnknownSessions(const v1::ForkSessionsRequest& request,
                                         const v1::ForkSessionsResponse& response) {
  std::vector<std::string> names;
  for (int i = 0; i < response.results_size(); ++i) {
    for (int child = 0; child < response.results(i).sessions_size(); ++child) {
      if (!request.requests(i).session_ids(child).empty()) continue;
      names.push_back(response.results(i).sessions(child).name());
    }
  }
  return names;
}

// The errors of single entries in the reply of a call that ended with OK; none for most methods.
template <typename Response>
std::vector<std::string> EntryErrors(const Response& response) {
  std::vector<std::string> reasons;
  if constexpr (requires { response.results(0).error(); }) {
    for (const auto& result : response.results()) {
      if (result.has_error()) reasons.push_back(ReasonOf(result.error()));
    }
  } else if constexpr (requires { response.statuses(0).code(); }) {
    for (const google::rpc::Status& status : response.statuses()) {
      if (status.code() != 0) reasons.push_back(ReasonOf(status));
    }
  }
  return reasons;
}

// The event in the audit log for such a request; "": not audited.
template <typename Request>
constexpr std::string_view AuditedAs(const Request& /*request*/) {
  return "";
}
constexpr std::string_view AuditedAs(const v1::CreateSessionRequest& /*request*/) { return "session_created"; }
constexpr std::string_view AuditedAs(const v1::ForkSessionRequest& /*request*/) { return "session_forked"; }
constexpr std::string_view AuditedAs(const v1::DeleteSessionRequest& /*request*/) { return "session_ended"; }
constexpr std::string_view AuditedAs(const v1::CreateSessionsRequest& /*request*/) { return "session_created"; }
constexpr std::string_view AuditedAs(const v1::ForkSessionsRequest& /*request*/) { return "session_forked"; }
constexpr std::string_view AuditedAs(const v1::DeleteSessionsRequest& /*request*/) { return "session_ended"; }
constexpr std::string_view AuditedAs(const v1::EndLeaseRequest& /*request*/) { return "lease_ended"; }
constexpr std::string_view AuditedAs(const v1::SnapshotSessionRequest& /*request*/) { return "snapshot_made"; }
constexpr std::string_view AuditedAs(const v1::SnapshotSessionsRequest& /*request*/) { return "snapshot_made"; }
constexpr std::string_view AuditedAs(const v1::DeleteSnapshotsRequest& /*request*/) { return "snapshot_ended"; }
constexpr std::string_view AuditedAs(const v1::ResetSessionsRequest& /*request*/) { return "session_reset"; }
constexpr std::string_view AuditedAs(const v1::RestoreCheckpointRequest& /*request*/) { return "session_restored"; }
constexpr std::string_view AuditedAs(const v1::CheckpointSessionRequest& /*request*/) { return "checkpoint_made"; }
constexpr std::string_view AuditedAs(const v1::DeleteCheckpointRequest& /*request*/) { return "checkpoint_ended"; }
constexpr std::string_view AuditedAs(const v1::EvictSessionRequest& /*request*/) { return "session_evicted"; }
constexpr std::string_view AuditedAs(const v1::DropPrefixesRequest& /*request*/) { return "prefixes_dropped"; }
constexpr std::string_view AuditedAs(const v1::GetMetricsRequest& /*request*/) { return "metrics_read"; }
std::string_view AuditedAs(const v1::ListSessionsRequest& request) { return request.all() ? "sessions_listed" : ""; }
std::string_view AuditedAs(const v1::TraceCallsRequest& request) { return request.has_keep() ? "tracing_set" : ""; }

// The sessions of a successful call, one for each line in the audit log; "": the call names none.
template <typename Request, typename Response>
std::vector<std::string> NamedIn(const Request& request, const Response& /*response*/) {
  if constexpr (requires { request.name(); }) return {request.name()};
  return {""};
}
std::vector<std::string> NamedIn(const v1::DeleteSessionsRequest& request, const v1::DeleteSessionsResponse& response) {
  std::vector<std::string> names;
  for (int i = 0; i < response.statuses_size(); ++i) {
    if (response.statuses(i).code() == 0) names.push_back(request.names(i));
  }
  return names;
}
std::string SnapshotName(const std::string& key) { return "snapshots/" + key; }
std::vector<std::string> NamedIn(const v1::SnapshotSessionRequest& request,
                                 const v1::SnapshotSessionResponse& /*response*/) {
  return {SnapshotName(request.key())};
}
std::vector<std::string> NamedIn(const v1::SnapshotSessionsRequest& /*request*/,
                                 const v1::SnapshotSessionsResponse& response) {
  std::vector<std::string> names;
  for (const v1::SnapshotResult& result : response.results()) {
    if (result.has_snapshot()) names.push_back(SnapshotName(result.snapshot().key()));
  }
  return names;
}
std::vector<std::string> NamedIn(const v1::DeleteSnapshotsRequest& request,
                                 const v1::DeleteSnapshotsResponse& response) {
  std::vector<std::string> names;
  for (int i = 0; i < response.statuses_size(); ++i) {
    if (response.statuses(i).code() == 0) names.push_back(SnapshotName(request.keys(i)));
  }
  return names;
}
std::vector<std::string> NamedIn(const v1::ResetSessionsRequest& /*request*/,
                                 const v1::ResetSessionsResponse& response) {
  std::vector<std::string> names;
  for (const v1::SessionResult& result : response.results()) {
    if (result.has_session()) names.push_back(result.session().name());
  }
  return names;
}

// The session's owner that an admin names; "": the caller.
template <typename Request>
std::string OwnerIn(const Request& request) {
  if constexpr (requires { request.subject(); }) return request.subject();
  return "";
}

// One unary call, from its message to its reply.
//
// Messages are raw bytes. The memory of the parsed request is charged to the caller before it is parsed, and a large
// reply until it is sent.
// Thread safety: one flow; OnCancel from any thread. Ownership: deletes itself once gRPC is done with the call; the
// messages live until then.
// `Result`: absl::Status if the method answers at once, else a task of it.
template <typename Parts, typename Request, typename Response, typename Result>
class UnaryReactor final : public Unary, private OwnedFlow<absl::Status> {
 public:
  using Method = Result (*)(const Parts&, const Caller&, const Request&, Response*);

  UnaryReactor(const CommonParts& common, const Parts& parts, RpcMethod rpc, Call& call, const grpc::ByteBuffer& in,
               grpc::ByteBuffer& out, Method method, OpenCount::Hold open)
      : OwnedFlow(common.calls),
        common_(common),
        parts_(parts),
        call_(call),
        meter_(common.stats, rpc),
        caller_(CallerOf(call, common.access, gone_)),
        out_(out),
        open_(std::move(open)) {
    absl::Status read = Read(in);
    if (!read.ok()) {
      Ended(std::move(read));
    } else {
      Start(Run(method));
    }
  }

  void OnCancel() override { gone_.Cancel(); }
  void OnDone() override {
    if constexpr (kMakesSessions) {
      // The client does not know the ids of these sessions, so nobody could delete them.
      for (const std::string& name : call_.IsCancelled() ? unknown_ : std::vector<std::string>()) {
        const absl::StatusOr<std::string_view> id = ParseSessionName(name);
        if (id.ok()) common_.lookup.sessions.DeleteSoon(caller_.principal, std::string(*id));
      }
    }
    delete this;
  }

 private:
  static constexpr bool kAnswersAtOnce = std::is_same_v<Result, absl::Status>;
  static constexpr bool kMakesSessions = requires(const Response& response) { MadeSessions(response); };

  absl::Status Read(const grpc::ByteBuffer& in) {
    const auto bytes = static_cast<size_t>(ParsedBytes(*Request::descriptor(), in));
    GDN_ASSIGN_OR_RETURN(charge_, ChargeCall(common_.access.ledger, caller_, bytes));
    GDN_ASSIGN_OR_RETURN(request_, ParseMessage<Request>(in));
    return absl::OkStatus();
  }

  Task<absl::Status> Run(Method method) {
    if (common_.lookup.fleet != nullptr && !kMakesSessions) {  // a call that makes sessions brings them itself
      std::vector<WantedSession> wanted = WantedIn(common_.lookup, caller_, request_);
      co_await BringHere(common_.lookup, caller_, std::move(wanted));
    }
    absl::Status status;
    if constexpr (kAnswersAtOnce) {
      status = method(parts_, caller_, request_, &response_);
      // The method has changed nothing, so its reply may still be refused.
      if (const int64_t bytes = LargeReply(); status.ok() && bytes > 0) {
        GDN_CO_ASSIGN_OR_RETURN(reply_, common_.access.ledger.TryCharge(BytePool::kCalls, caller_.account, bytes));
      }
    } else {
      Task<absl::Status> answer = method(parts_, caller_, request_, &response_);
      status = co_await std::move(answer);
    }
    if (status.ok()) Note();
    co_return status;
  }

  // Counts the errors of a successful call's entries, and writes the call to the audit log.
  void Note() {
    for (const std::string& reason : EntryErrors(response_)) common_.stats.CountReason(reason);
    const std::string_view event = AuditedAs(request_);
    if (event.empty()) return;
    if constexpr (kMakesSessions) {
      unknown_ = UnknownSessions(request_, response_);
      for (const std::string& name : MadeSessions(response_)) Audit(common_.access, caller_, event, name);
    } else {
      const std::string owner = OwnerIn(request_);
      for (const std::string& name : NamedIn(request_, response_)) Audit(common_.access, caller_, event, name, owner);
    }
  }

  void Ended(absl::Status status) override {
    Request().Swap(&request_);  // free the memory before its charge
    charge_.Release();          // before the client gets the reply
    if (status.ok()) {
      if (const int64_t bytes = LargeReply(); bytes > 0 && !reply_.valid()) {
        reply_ = common_.access.ledger.Charge(BytePool::kCalls, caller_.account, bytes);
      }
      out_ = SerializeMessage(response_);
    }
    meter_.End(status);
    Finish(ToGrpcStatus(status));
  }

  // Memory of the reply and of its serialized form, in bytes; 0 if it is small.
  int64_t LargeReply() const {
    const auto bytes = static_cast<int64_t>(response_.SpaceUsedLong() + response_.ByteSizeLong());
    return bytes > kCallBytes ? bytes : 0;
  }

  const CommonParts& common_;
  const Parts& parts_;
  Call& call_;
  const RpcMeter meter_;
  CancelSource gone_;  // the client
  Caller caller_;
  grpc::ByteBuffer& out_;
  const OpenCount::Hold open_;
  Request request_;
  Response response_;
  ByteCharge charge_;
  ByteCharge reply_;
  std::vector<std::string> unknown_;
};

class GdnService final : public GdnServiceMethods {
 public:
  explicit GdnService(const ServiceParts& parts) : parts_(parts) {}

#define GDN_ANSWERED_METHOD(Name, Parts)                                                \
  Unary* Name(Call* call, const grpc::ByteBuffer* in, grpc::ByteBuffer* out) override { \
    return Answer(RpcMethod::k##Name, *call, *in, *out, gdn::Name);                     \
  }
  GDN_IMMEDIATE_METHODS(GDN_ANSWERED_METHOD)
  GDN_TASK_METHODS(GDN_ANSWERED_METHOD)
#undef GDN_ANSWERED_METHOD
  // The request belongs to this call although gRPC's signature says const. It is cleared as soon as it is read.
  Unary* Prefill(Call* call, const grpc::ByteBuffer* request, grpc::ByteBuffer* response) override {
    return NewPrefillReactor(parts_.steps, call, const_cast<grpc::ByteBuffer&>(*request), response);
  }
  Unary* Decode(Call* call, const grpc::ByteBuffer* request, grpc::ByteBuffer* response) override {
    return NewDecodeReactor(parts_.steps, call, const_cast<grpc::ByteBuffer&>(*request), response);
  }
  Unary* Step(Call* call, const grpc::ByteBuffer* request, grpc::ByteBuffer* response) override {
    return NewStepReactor(parts_.steps, call, const_cast<grpc::ByteBuffer&>(*request), response);
  }
  ByteStreamReactor* StreamPrefill(Call* call) override { return NewStreamPrefillReactor(parts_.steps, call); }
  ByteStreamReactor* StreamDecode(Call* call) override { return NewStreamDecodeReactor(parts_.steps, call); }
  ByteStreamReactor* StreamStep(Call* call) override { return NewStreamStepReactor(parts_.steps, call); }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportState(Call* call, const grpc::ByteBuffer* request) override {
    return NewExportReactor(parts_.streams, call, request);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* ImportState(Call* call, grpc::ByteBuffer* response) override {
    return NewImportReactor(parts_.streams, call, response);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchState(Call* call, const grpc::ByteBuffer* request) override {
    return NewWatchReactor(parts_.streams, call, request);
  }
  grpc::ServerWriteReactor<v1::ShareMemoryResponse>* ShareMemory(Call* call,
                                                                 const v1::ShareMemoryRequest* request) override {
    return NewShareMemoryReactor(parts_.streams, call, request);
  }

 private:
  template <typename Parts, typename Request, typename Response, typename Result>
  Unary* Answer(RpcMethod rpc, Call& call, const grpc::ByteBuffer& in, grpc::ByteBuffer& out,
                Result (*method)(const Parts&, const Caller&, const Request&, Response*)) {
    // Shutdown waits for tasks, except Drain, which waits for shutdown.
    OpenCount::Hold open;
    if (!std::is_same_v<Result, absl::Status> && rpc != RpcMethod::kDrain) open = parts_.common.transfers.Begin();
    return new UnaryReactor<Parts, Request, Response, Result>(parts_.common, parts_.Of<Parts>(), rpc, call, in, out,
                                                              method, std::move(open));
  }

  const ServiceParts& parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewGdnService(const ServiceParts& parts) { return std::make_unique<GdnService>(parts); }

}  // namespace gdn
