#include "server/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "base/status_macros.h"
#include "base/steady_clock.h"
#include "base/stop_signal.h"
#include "base/string_cat.h"
#include "base/task/owned_flow.h"
#include "gdn/v1/service.grpc.pb.h"
#include "server/rpc/answer_reactor.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/call_charge.h"
#include "server/rpc/calls.h"
#include "server/rpc/reactors.h"
#include "server/rpc/rpc_stats.h"
#include "server/rpc/rpc_status.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

using Call = grpc::CallbackServerContext;
using Unary = grpc::ServerUnaryReactor;

// Base with a class for each method, as generated code has them.
template <typename Base, template <typename> typename... Methods>
struct WithMethods {
  using Type = Base;
};
template <typename Base, template <typename> typename First, template <typename> typename... Rest>
struct WithMethods<Base, First, Rest...> {
  using Type = First<typename WithMethods<Base, Rest...>::Type>;
};

// The callback API, with messages as raw bytes, so that nothing is parsed before it counts. Not one method is left to
// the synchronous API, which would bring threads of its own along.
using Gdn = v1::GdnService;
using GdnServiceMethods =
    WithMethods<Gdn::Service, Gdn::WithRawCallbackMethod_GetServerInfo, Gdn::WithRawCallbackMethod_ListModels,
                Gdn::WithRawCallbackMethod_GetModel, Gdn::WithRawCallbackMethod_CreateSession,
                Gdn::WithRawCallbackMethod_GetSession, Gdn::WithRawCallbackMethod_ListSessions,
                Gdn::WithRawCallbackMethod_DeleteSession, Gdn::WithRawCallbackMethod_ForkSession,
                Gdn::WithRawCallbackMethod_CheckpointSession, Gdn::WithRawCallbackMethod_RestoreCheckpoint,
                Gdn::WithRawCallbackMethod_ListCheckpoints, Gdn::WithRawCallbackMethod_DeleteCheckpoint,
                Gdn::WithRawCallbackMethod_AcceptTokens, Gdn::WithRawCallbackMethod_PrefetchSessions,
                Gdn::WithRawCallbackMethod_EvictSession, Gdn::WithRawCallbackMethod_KeepPrefix,
                Gdn::WithRawCallbackMethod_DropPrefixes, Gdn::WithCallbackMethod_ShareMemory,
                Gdn::WithRawCallbackMethod_TraceCalls, Gdn::WithRawCallbackMethod_GetMetrics,
                Gdn::WithRawCallbackMethod_Drain, Gdn::WithRawCallbackMethod_Prefill, Gdn::WithRawCallbackMethod_Decode,
                Gdn::WithRawCallbackMethod_StreamPrefill, Gdn::WithRawCallbackMethod_StreamDecode,
                Gdn::WithRawCallbackMethod_ExportState, Gdn::WithRawCallbackMethod_ImportState,
                Gdn::WithRawCallbackMethod_WatchState>::Type;

// The sessions that a call has made under ids that its reply alone tells.
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

// What the audit log calls it where such a request is done; "": it is not told of.
template <typename Request>
constexpr std::string_view AuditedAs(const Request& /*request*/) {
  return "";
}
constexpr std::string_view AuditedAs(const v1::CreateSessionRequest& /*request*/) { return "session_created"; }
constexpr std::string_view AuditedAs(const v1::ForkSessionRequest& /*request*/) { return "session_forked"; }
constexpr std::string_view AuditedAs(const v1::DeleteSessionRequest& /*request*/) { return "session_ended"; }
constexpr std::string_view AuditedAs(const v1::RestoreCheckpointRequest& /*request*/) { return "session_restored"; }
constexpr std::string_view AuditedAs(const v1::CheckpointSessionRequest& /*request*/) { return "checkpoint_made"; }
constexpr std::string_view AuditedAs(const v1::DeleteCheckpointRequest& /*request*/) { return "checkpoint_ended"; }
constexpr std::string_view AuditedAs(const v1::EvictSessionRequest& /*request*/) { return "session_evicted"; }
constexpr std::string_view AuditedAs(const v1::DropPrefixesRequest& /*request*/) { return "prefixes_dropped"; }
constexpr std::string_view AuditedAs(const v1::GetMetricsRequest& /*request*/) { return "metrics_read"; }
std::string_view AuditedAs(const v1::ListSessionsRequest& request) { return request.all() ? "sessions_listed" : ""; }
std::string_view AuditedAs(const v1::TraceCallsRequest& request) { return request.has_keep() ? "tracing_set" : ""; }

std::vector<std::string> MadeSessions(const v1::CreateSessionResponse& response) { return {response.session().name()}; }
std::vector<std::string> MadeSessions(const v1::ForkSessionResponse& response) {
  std::vector<std::string> names;
  for (const v1::Session& session : response.sessions()) names.push_back(session.name());
  return names;
}

template <typename Request>
std::string NamedIn(const Request& request) {
  if constexpr (requires { request.name(); }) return request.name();
  return "";
}

// The owner that an admin names; "": the caller's own.
template <typename Request>
std::string OwnerIn(const Request& request) {
  if constexpr (requires { request.subject(); }) return request.subject();
  return "";
}

// A call that makes sessions. Where it is cancelled, those that nobody knows of end with it: nobody could end them.
template <typename Request, typename Response>
class MakingReactor final : public AnswerReactor<Request, Response> {
 public:
  using Method = void (*)(const ServiceContext&, const Caller&, const Request&, Response*, CallDone);

  MakingReactor(const ServiceContext& context, RpcMethod rpc, Call* call, const grpc::ByteBuffer* in,
                grpc::ByteBuffer* out, Method method)
      : AnswerReactor<Request, Response>(context, rpc, *call, *in, *out), call_(call) {
    if (!this->Read()) return;
    method(context, this->caller(), this->request(), &this->response(), [this](const absl::Status& status) {
      if (status.ok()) {
        unknown_ = UnknownSessions(this->request(), this->response());
        for (const std::string& name : MadeSessions(this->response())) {
          Audit(this->context(), this->caller(), AuditedAs(this->request()), name);
        }
      }
      this->End(status);
    });
  }

  void OnDone() override {
    if (call_->IsCancelled()) {
      for (const std::string& name : unknown_) {
        const absl::StatusOr<std::string_view> id = ParseSessionName(name);
        if (!id.ok()) continue;
        this->context().sessions.Delete(this->caller().principal, std::string(*id), [](const absl::Status&) {});
      }
    }
    delete this;
  }

 private:
  Call* const call_;
  std::vector<std::string> unknown_;
};

// A call whose task answers it.
template <typename Request, typename Response>
class TaskReactor final : public AnswerReactor<Request, Response>, private OwnedFlow<absl::Status> {
 public:
  using Method = Task<absl::Status> (*)(const ServiceContext&, const Caller&, const Request&, Response*);

  TaskReactor(const ServiceContext& context, RpcMethod rpc, Call* call, const grpc::ByteBuffer* in,
              grpc::ByteBuffer* out, Method method)
      : AnswerReactor<Request, Response>(context, rpc, *call, *in, *out, context.transfers.Begin()),
        OwnedFlow<absl::Status>(context.calls) {
    if (this->Read()) OwnedFlow<absl::Status>::Start(Run(method));
  }

 private:
  Task<absl::Status> Run(Method method) {
    Caller caller = this->caller();
    std::vector<WantedSession> wanted = WantedIn(this->context(), caller, this->request());
    co_await BringHere(this->context(), caller, std::move(wanted));
    Task<absl::Status> answer = method(this->context(), caller, this->request(), &this->response());
    co_return co_await std::move(answer);
  }
  void Ended(absl::Status status) override {
    const std::string_view event = AuditedAs(this->request());
    if (status.ok() && !event.empty()) {
      Audit(this->context(), this->caller(), event, NamedIn(this->request()), OwnerIn(this->request()));
    }
    this->End(status);
  }
};

class GdnService final : public GdnServiceMethods {
 public:
  explicit GdnService(const ServiceContext& context) : context_(context) {}

// A method whose requests a function of its name answers.
#define GDN_ANSWERED_METHOD(Name)                                                       \
  Unary* Name(Call* call, const grpc::ByteBuffer* in, grpc::ByteBuffer* out) override { \
    return Answer(RpcMethod::k##Name, call, in, out, gdn::Name);                        \
  }
  GDN_ANSWERED_METHOD(GetServerInfo)
  GDN_ANSWERED_METHOD(ListModels)
  GDN_ANSWERED_METHOD(GetModel)
  GDN_ANSWERED_METHOD(GetSession)
  GDN_ANSWERED_METHOD(ListSessions)
  GDN_ANSWERED_METHOD(DeleteSession)
  GDN_ANSWERED_METHOD(CheckpointSession)
  GDN_ANSWERED_METHOD(ListCheckpoints)
  GDN_ANSWERED_METHOD(DeleteCheckpoint)
  GDN_ANSWERED_METHOD(RestoreCheckpoint)
  GDN_ANSWERED_METHOD(AcceptTokens)
  GDN_ANSWERED_METHOD(PrefetchSessions)
  GDN_ANSWERED_METHOD(EvictSession)
  GDN_ANSWERED_METHOD(KeepPrefix)
  GDN_ANSWERED_METHOD(DropPrefixes)
  GDN_ANSWERED_METHOD(TraceCalls)
  GDN_ANSWERED_METHOD(GetMetrics)
#undef GDN_ANSWERED_METHOD
  Unary* Drain(Call* call, const grpc::ByteBuffer* in, grpc::ByteBuffer* out) override {
    return Answer(RpcMethod::kDrain, call, in, out, gdn::Drain, /*open=*/nullptr);
  }
  Unary* CreateSession(Call* call, const grpc::ByteBuffer* in, grpc::ByteBuffer* out) override {
    return new MakingReactor(context_, RpcMethod::kCreateSession, call, in, out, gdn::CreateSession);
  }
  Unary* ForkSession(Call* call, const grpc::ByteBuffer* in, grpc::ByteBuffer* out) override {
    return new MakingReactor(context_, RpcMethod::kForkSession, call, in, out, gdn::ForkSession);
  }
  // A request is its call's alone, whatever gRPC's signature says, and is given back as soon as it is read.
  Unary* Prefill(Call* call, const grpc::ByteBuffer* request, grpc::ByteBuffer* response) override {
    return NewPrefillReactor(context_, call, const_cast<grpc::ByteBuffer&>(*request), response);
  }
  Unary* Decode(Call* call, const grpc::ByteBuffer* request, grpc::ByteBuffer* response) override {
    return NewDecodeReactor(context_, call, const_cast<grpc::ByteBuffer&>(*request), response);
  }
  ByteStreamReactor* StreamPrefill(Call* call) override { return NewStreamPrefillReactor(context_, call); }
  ByteStreamReactor* StreamDecode(Call* call) override { return NewStreamDecodeReactor(context_, call); }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportState(Call* call, const grpc::ByteBuffer* request) override {
    return NewExportReactor(context_, call, request);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* ImportState(Call* call, grpc::ByteBuffer* response) override {
    return NewImportReactor(context_, call, response);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchState(Call* call, const grpc::ByteBuffer* request) override {
    return NewWatchReactor(context_, call, request);
  }
  grpc::ServerWriteReactor<v1::ShareMemoryResponse>* ShareMemory(Call* call,
                                                                 const v1::ShareMemoryRequest* request) override {
    return NewShareMemoryReactor(context_, call, request);
  }

 private:
  template <typename Request, typename Response>
  Unary* Answer(RpcMethod rpc, Call* call, const grpc::ByteBuffer* in, grpc::ByteBuffer* out,
                void (*method)(const ServiceContext&, const Caller&, const Request&, Response*, CallDone)) {
    return Answer(rpc, call, in, out, method, context_.transfers.Begin());
  }
  template <typename Request, typename Response>
  Unary* Answer(RpcMethod rpc, Call* call, const grpc::ByteBuffer* in, grpc::ByteBuffer* out,
                void (*method)(const ServiceContext&, const Caller&, const Request&, Response*, CallDone),
                std::shared_ptr<void> open) {
    auto* const reactor = new AnswerReactor<Request, Response>(context_, rpc, *call, *in, *out, std::move(open));
    if (!reactor->Read()) return reactor;
    const auto done = [this, reactor](const absl::Status& status) {
      const Request& request = reactor->request();
      const std::string_view event = AuditedAs(request);
      if (status.ok() && !event.empty()) Audit(context_, reactor->caller(), event, NamedIn(request), OwnerIn(request));
      reactor->End(status);
    };
    Brought(*reactor, [this, reactor, method, done](const Caller& caller) {
      method(context_, caller, reactor->request(), &reactor->response(), done);
    });
    return reactor;
  }
  template <typename Request, typename Response>
  Unary* Answer(RpcMethod rpc, Call* call, const grpc::ByteBuffer* in, grpc::ByteBuffer* out,
                absl::Status (*method)(const ServiceContext&, const Caller&, const Request&, Response*)) {
    auto* const reactor = new AnswerReactor<Request, Response>(context_, rpc, *call, *in, *out);
    if (!reactor->Read()) return reactor;
    Brought(*reactor, [this, reactor, method](const Caller& caller) {
      const Request& request = reactor->request();
      absl::Status status = method(context_, caller, request, &reactor->response());
      if (status.ok()) status = reactor->ChargeReply();
      if (const std::string_view event = AuditedAs(request); status.ok() && !event.empty()) {
        Audit(context_, caller, event, NamedIn(request));
      }
      reactor->End(status);
    });
    return reactor;
  }

  template <typename Request, typename Response>
  Unary* Answer(RpcMethod rpc, Call* call, const grpc::ByteBuffer* in, grpc::ByteBuffer* out,
                Task<absl::Status> (*method)(const ServiceContext&, const Caller&, const Request&, Response*)) {
    return new TaskReactor<Request, Response>(context_, rpc, call, in, out, method);
  }

  // Calls `answer` once the sessions that the request names are here, as far as they can be.
  template <typename Reactor, typename Next>
  void Brought(const Reactor& reactor, Next answer) {
    const Caller& caller = reactor.caller();
    if (context_.fleet == nullptr) return answer(caller);
    BringSessions(context_, caller, WantedIn(context_, caller, reactor.request()), std::move(answer));
  }

  const ServiceContext& context_;
};

// Every builder of a process has what InitProtoReflectionServerBuilderPlugin gave it.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

constexpr absl::Duration kStreamGrace = absl::Seconds(1);  // for replies on their way when the last step has ended
constexpr absl::Duration kStuckAfter = absl::Seconds(10);  // calls that were cancelled end at once

}  // namespace

RpcServer::RpcServer(const ServiceContext& context)
    : context_(context), service_(std::make_unique<GdnService>(context)) {}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const ServiceContext& context,
                                                            const std::vector<std::string>& addresses,
                                                            const RpcServerOptions& options) {
  std::unique_ptr<RpcServer> result(new RpcServer(context));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  if (!options.reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  // The service itself refuses what is over the limit, with a reason; the transport only stops what is absurd.
  builder.SetMaxReceiveMessageSize(static_cast<int>(
      std::min<int64_t>(2 * context.limits.max_message_bytes + (1 << 20), std::numeric_limits<int>::max())));
  builder.SetMaxSendMessageSize(-1);
  Apply(options.limits, builder);
  // Bound before gRPC starts, so that a start that fails has answered nobody.
  GDN_ASSIGN_OR_RETURN(std::vector<ListeningSocket> sockets, result->Bind(addresses));
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
  const auto acceptor = [&builder](const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    return std::shared_ptr<Acceptor>(builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials));
  };
  const auto plain = acceptor(grpc::InsecureServerCredentials());
  const auto secure = options.tls == nullptr ? plain : acceptor(options.tls);
  builder.RegisterService(result->service_.get());
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr) return absl::UnavailableError("gRPC's server does not start; its log says why");
  for (UnixSocket& socket : result->sockets_) GDN_RETURN_IF_ERROR(socket.Publish());
  std::vector<std::shared_ptr<Acceptor>> acceptors;
  for (const std::string& address : addresses) {
    acceptors.push_back(UnixSocketPath(address).has_value() ? plain : secure);
  }
  const auto take = [acceptors](OwnedFd fd, size_t origin) {
    Acceptor::NewConnectionParameters made;
    made.fd = std::move(fd).Release();
    acceptors[origin]->HandleNewConnection(&made);
  };
  GDN_ASSIGN_OR_RETURN(result->listener_, SocketListener::Start(std::move(sockets), options.limits.connections, take));
  grpc::HealthCheckServiceInterface* health = result->server_->GetHealthCheckService();
  health->SetServingStatus("", true);
  health->SetServingStatus(v1::GdnService::service_full_name(), true);
  health->SetServingStatus(kDevicesHealth, true);
  return result;
}

absl::StatusOr<std::vector<ListeningSocket>> RpcServer::Bind(const std::vector<std::string>& addresses) {
  std::vector<ListeningSocket> all;
  for (size_t i = 0; i < addresses.size(); ++i) {
    std::vector<ListeningSocket> made;
    if (const auto path = UnixSocketPath(addresses[i]); path.has_value()) {
      GDN_ASSIGN_OR_RETURN(UnixSocket socket, UnixSocket::Prepare(*path));
      GDN_ASSIGN_OR_RETURN(made.emplace_back(), ListenOnUnix(socket.bind_path()));
      sockets_.push_back(std::move(socket));
      addresses_.push_back(addresses[i]);
    } else {
      GDN_ASSIGN_OR_RETURN(made, ListenOnTcp(addresses[i]));
      const int port = made.front().port;
      addresses_.push_back(StrCat(addresses[i].substr(0, addresses[i].rfind(':')), ":", port));
      if (port_ == 0) port_ = port;
    }
    for (ListeningSocket& socket : made) {
      socket.origin = i;
      all.push_back(std::move(socket));
    }
  }
  return all;
}

RpcServer::~RpcServer() { Stop(absl::ZeroDuration()); }

void RpcServer::ReportDegraded() { server_->GetHealthCheckService()->SetServingStatus(kDevicesHealth, false); }

void RpcServer::ReportNotServing() { server_->GetHealthCheckService()->SetServingStatus(false); }

bool RpcServer::Stop(absl::Duration timeout, const std::function<void()>& before_closing) {
  if (server_ == nullptr) return true;
  const SteadyTime end = SteadyNow() + timeout;
  server_->GetHealthCheckService()->SetServingStatus(false);
  const bool drained = context_.engines.Drain(timeout);
  context_.shared_regions.Drain();
  const bool moved = context_.transfers.WaitForNone(std::max(end - SteadyNow(), absl::ZeroDuration()));
  if (before_closing) {
    before_closing();
    context_.transfers.WaitForNone(std::max(end - SteadyNow(), absl::ZeroDuration()));  // that have begun meanwhile
  }
  context_.drain.End();
  if (listener_ != nullptr) listener_->Stop();
  server_->Shutdown(
      absl::ToChronoTime(absl::Now() + std::clamp(end - SteadyNow(), absl::ZeroDuration(), kStreamGrace)));
  // Calls whose step a driver does not give back end never; what is not theirs is to be made durable all the same.
  auto ended = std::make_shared<StopSignal>();
  std::thread waiter([server = server_.get(), ended] {
    server->Wait();
    ended->Give();
  });
  if (ended->GivenWithin(kStuckAfter)) {
    waiter.join();
    server_ = nullptr;
    sockets_.clear();
    return drained && moved;
  }
  stuck_ = true;
  waiter.detach();
  static_cast<void>(server_.release());  // the calls use both
  static_cast<void>(service_.release());
  return false;
}

}  // namespace gdn
