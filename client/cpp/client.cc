#include "client/cpp/client.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/error.h"
#include "base/net/host_port.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/refusing_channel.h"
#include "client/cpp/reply_epoch.h"
#include "client/cpp/ring_link.h"
#include "client/cpp/ring_reply.h"
#include "client/cpp/rpc_status.h"
#include "client/cpp/token_file.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace gdn {
namespace {

constexpr std::string_view kSessionPrefix = "sessions/";
constexpr int kListPageSize = 1000;
constexpr int kFirstReconnectBackoffMs = 50;

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isprint(c); });
}

// gRPC aborts the process on metadata it cannot send, so it must not get that far.
absl::Status AddMetadata(grpc::ClientContext* context, const char* key, const std::string& value) {
  if (value.empty()) return absl::OkStatus();
  if (!IsPrintable(value)) {
    return absl::InvalidArgumentError(StrCat("the value of the metadata '", key, "' must be printable ASCII"));
  }
  context->AddMetadata(key, value);
  return absl::OkStatus();
}

template <typename Request>
Request Named(const std::string& name) {
  Request request;
  request.set_name(name);
  return request;
}

template <typename Element>
std::vector<Element> Moved(google::protobuf::RepeatedPtrField<Element>& list) {
  return {std::make_move_iterator(list.begin()), std::make_move_iterator(list.end())};
}

// Returns one field of a response, or the call's error.
template <typename Response, typename Field>
absl::StatusOr<Field> PartOf(absl::StatusOr<Response> response, Field* (Response::*field)()) {
  if (!response.ok()) return response.status();
  return std::move(*((*response).*field)());
}

// What the call is routed by: its affinity, else the id of the first session that it names.
template <typename Request>
CallOptions Routed(const Request& request, CallOptions call) {
  if (!call.affinity.empty()) return call;
  std::string name;
  if constexpr (requires { request.acceptances(0); }) {
    if (request.acceptances_size() > 0) name = request.acceptances(0).session();
  } else if constexpr (requires { request.sessions(0); }) {
    if (request.sessions_size() > 0) name = request.sessions(0);
  } else if constexpr (requires { request.rows(0).session(); }) {
    if (request.rows_size() > 0) name = request.rows(0).session();
  } else if constexpr (requires { request.requests(0).session(); }) {
    if (request.requests_size() > 0) name = request.requests(0).session();
  } else if constexpr (requires { request.names(0); }) {
    if (request.names_size() > 0) name = request.names(0);
  } else if constexpr (requires { request.session_id(); }) {
    if (!request.affinity().empty()) return call.affinity = request.affinity(), call;
    name = StrCat(kSessionPrefix, request.session_id());
  } else if constexpr (requires { request.session(); }) {
    name = request.session();
  } else if constexpr (requires { request.name(); }) {
    name = request.name();
  }
  // What no session is called the server refuses, and says why.
  if (name.starts_with(kSessionPrefix) && IsPrintable(name)) call.affinity = name.substr(kSessionPrefix.size());
  return call;
}

// True for targets that name the client's own host.
bool IsOfThisHost(std::string_view target) {
  for (const std::string_view begin : {"localhost", "127.", "[::1]", "unix:", "unix-abstract:"}) {
    if (target.starts_with(begin)) return true;
  }
  return false;
}

}  // namespace

std::unique_ptr<Client> Client::Connect(const std::string& target, ClientOptions options) {
  return Connect(target, grpc::InsecureChannelCredentials(), std::move(options));
}

std::unique_ptr<Client> Client::Connect(const std::string& target,
                                        const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                        ClientOptions options) {
  if (const absl::Status status = CheckTarget(target); !status.ok()) {
    return std::make_unique<Client>(RefusingChannel(WithPrefix(status, "target")), std::move(options));
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_receive_message_bytes);
  // gRPC's own maximum is two minutes: long after a restarted server is back.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(options.max_reconnect_backoff),
                                                        kFirstReconnectBackoffMs, 3'600'000)));
  const std::optional<RingOptions> ring = IsOfThisHost(target) ? options.ring : std::nullopt;
  auto client = std::make_unique<Client>(grpc::CreateCustomChannel(target, credentials, arguments), std::move(options));
  if (ring.has_value()) client->ring_ = std::make_unique<RingLink>(client->RingOpener(*ring, ""));
  return client;
}

Client::Client(const std::shared_ptr<grpc::ChannelInterface>& channel, ClientOptions options)
    : channel_(channel), stub_(v1::GdnService::NewStub(channel)), options_(std::move(options)) {}

Client::Client(std::unique_ptr<v1::GdnService::StubInterface> stub, ClientOptions options)
    : stub_(std::move(stub)), options_(std::move(options)) {}

Client::~Client() = default;

absl::Status Client::PrepareContext(const CallOptions& call, std::optional<absl::Duration> default_timeout,
                                    grpc::ClientContext* context) const {
  const absl::Duration timeout = call.timeout.value_or(default_timeout.value_or(absl::InfiniteDuration()));
  if (timeout < absl::InfiniteDuration()) context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  std::string authorization = options_.token;
  if (!options_.token_file.empty()) {
    GDN_ASSIGN_OR_RETURN(authorization, AuthorizationOfFile(options_.token_file));
  }
  GDN_RETURN_IF_ERROR(AddMetadata(context, "authorization", authorization));
  return AddMetadata(context, "x-gdn-affinity", call.affinity);
}

template <typename Request, typename Response>
absl::StatusOr<Response> Client::Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                      const Request& request, const CallOptions& call) {
  Response response;
  CallOptions left = call;
  if constexpr (requires(RingChannel & ring) { ring.Call(request, absl::Duration(), response); }) {
    if (ring_ != nullptr) {
      left.timeout = call.timeout.value_or(options_.default_timeout);
      const std::shared_ptr<RingChannel> ring = ring_->ForCall(*left.timeout);
      if (ring != nullptr && ring->Takes(request)) {
        if (const absl::Status status = ring->Call(request, *left.timeout, response); !IsTooLargeForRing(status)) {
          GDN_RETURN_IF_ERROR(status);
          GDN_RETURN_IF_ERROR(CheckReplyEpoch(request, response));
          return response;
        }
      }
    }
  }
  grpc::ClientContext context;
  GDN_RETURN_IF_ERROR(PrepareContext(Routed(request, left), options_.default_timeout, &context));
  GDN_RETURN_IF_ERROR(StatusFromGrpc((stub_.get()->*method)(&context, request, &response)));
  GDN_RETURN_IF_ERROR(CheckReplyEpoch(request, response));
  return response;
}

absl::StatusOr<v1::GetServerInfoResponse> Client::GetServerInfo(const CallOptions& call) {
  return Call(&Stub::GetServerInfo, v1::GetServerInfoRequest(), call);
}

absl::StatusOr<std::vector<v1::Model>> Client::ListModels(const CallOptions& call) {
  GDN_ASSIGN_OR_RETURN(v1::ListModelsResponse response, Call(&Stub::ListModels, v1::ListModelsRequest(), call));
  return Moved(*response.mutable_models());
}

absl::StatusOr<v1::Model> Client::GetModel(const std::string& name, const CallOptions& call) {
  return PartOf(Call(&Stub::GetModel, Named<v1::GetModelRequest>(name), call), &v1::GetModelResponse::mutable_model);
}

absl::StatusOr<v1::Session> Client::CreateSession(const v1::CreateSessionRequest& request, const CallOptions& call) {
  return PartOf(Call(&Stub::CreateSession, request, call), &v1::CreateSessionResponse::mutable_session);
}

absl::StatusOr<v1::Session> Client::GetSession(const std::string& name, const CallOptions& call) {
  return PartOf(Call(&Stub::GetSession, Named<v1::GetSessionRequest>(name), call),
                &v1::GetSessionResponse::mutable_session);
}

absl::StatusOr<std::vector<v1::Session>> Client::ListSessions(const CallOptions& call) {
  return AllPages(v1::ListSessionsRequest(), call);
}

absl::StatusOr<std::vector<v1::Session>> Client::ListAllSessions(const CallOptions& call) {
  v1::ListSessionsRequest request;
  request.set_all(true);
  return AllPages(request, call);
}

template <typename Request, typename Response>
absl::Status Client::ForEachPage(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                 Request request, const CallOptions& call,
                                 absl::FunctionRef<void(std::type_identity_t<Response>&)> take) {
  request.set_page_size(kListPageSize);
  for (;;) {
    GDN_ASSIGN_OR_RETURN(Response page, Call(method, request, call));
    take(page);
    if (page.next_page_token().empty()) return absl::OkStatus();
    if (page.next_page_token() == request.page_token()) {
      return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                       "the server gave the page token it was given, so its pages have no end");
    }
    request.set_page_token(page.next_page_token());
  }
}

absl::StatusOr<std::vector<v1::Session>> Client::AllPages(const v1::ListSessionsRequest& request,
                                                          const CallOptions& call) {
  std::vector<v1::Session> sessions;
  const auto take = [&sessions](v1::ListSessionsResponse& page) {
    for (v1::Session& session : *page.mutable_sessions()) sessions.push_back(std::move(session));
  };
  GDN_RETURN_IF_ERROR(ForEachPage(&Stub::ListSessions, request, call, take));
  return sessions;
}

absl::StatusOr<v1::Lease> Client::OpenLease(const v1::OpenLeaseRequest& request, const CallOptions& call) {
  return PartOf(Call(&Stub::OpenLease, request, call), &v1::OpenLeaseResponse::mutable_lease);
}

absl::StatusOr<v1::Lease> Client::RenewLease(const std::string& name, const CallOptions& call) {
  return PartOf(Call(&Stub::RenewLease, Named<v1::RenewLeaseRequest>(name), call),
                &v1::RenewLeaseResponse::mutable_lease);
}

absl::StatusOr<int64_t> Client::EndLease(const std::string& name, const CallOptions& call) {
  GDN_ASSIGN_OR_RETURN(const v1::EndLeaseResponse ended, Call(&Stub::EndLease, Named<v1::EndLeaseRequest>(name), call));
  return ended.ended_sessions();
}

absl::StatusOr<std::vector<v1::Lease>> Client::ListLeases(const CallOptions& call) {
  std::vector<v1::Lease> leases;
  const auto take = [&leases](v1::ListLeasesResponse& page) {
    for (v1::Lease& lease : *page.mutable_leases()) leases.push_back(std::move(lease));
  };
  GDN_RETURN_IF_ERROR(ForEachPage(&Stub::ListLeases, v1::ListLeasesRequest(), call, take));
  return leases;
}

absl::Status Client::DeleteSession(const std::string& name, const CallOptions& call) {
  return DeleteSession(Named<v1::DeleteSessionRequest>(name), call);
}

absl::Status Client::DeleteSession(const v1::DeleteSessionRequest& request, const CallOptions& call) {
  return Call(&Stub::DeleteSession, request, call).status();
}

absl::StatusOr<v1::CreateSessionsResponse> Client::CreateSessions(const v1::CreateSessionsRequest& request,
                                                                  const CallOptions& call) {
  return Call(&Stub::CreateSessions, request, call);
}

absl::StatusOr<v1::DeleteSessionsResponse> Client::DeleteSessions(const v1::DeleteSessionsRequest& request,
                                                                  const CallOptions& call) {
  return Call(&Stub::DeleteSessions, request, call);
}

absl::StatusOr<v1::ForkSessionsResponse> Client::ForkSessions(const v1::ForkSessionsRequest& request,
                                                              const CallOptions& call) {
  return Call(&Stub::ForkSessions, request, call);
}

absl::StatusOr<v1::ResetSessionsResponse> Client::ResetSessions(const v1::ResetSessionsRequest& request,
                                                                const CallOptions& call) {
  return Call(&Stub::ResetSessions, request, call);
}

absl::StatusOr<v1::Session> Client::EvictSession(const v1::EvictSessionRequest& request, const CallOptions& call) {
  return PartOf(Call(&Stub::EvictSession, request, call), &v1::EvictSessionResponse::mutable_session);
}

absl::Status Client::ExportState(const v1::ExportStateRequest& request,
                                 absl::FunctionRef<absl::Status(std::string_view)> sink, const CallOptions& call) {
  grpc::ClientContext context;
  GDN_RETURN_IF_ERROR(PrepareContext(Routed(request, call), options_.default_timeout, &context));
  const auto reader = stub_->ExportState(&context, request);
  if (!request.has_session_epoch()) return ReceiveState(*reader, context, sink, call.progress);
  EpochCheckedSink checked(request.name(), request.session_epoch(), sink);
  GDN_RETURN_IF_ERROR(ReceiveState(
      *reader, context, [&checked](std::string_view piece) { return checked.Take(piece); }, call.progress));
  return checked.End();
}

absl::StatusOr<std::string> Client::ExportState(const v1::ExportStateRequest& request, const CallOptions& call) {
  std::string file;
  GDN_RETURN_IF_ERROR(ExportState(
      request,
      [&file](std::string_view piece) {
        file.append(piece);
        return absl::OkStatus();
      },
      call));
  return file;
}

absl::StatusOr<v1::Session> Client::ImportState(const v1::ImportStateRequest::Target& target, std::string_view file,
                                                const CallOptions& call) {
  v1::ImportStateRequest::Target sized = target;
  sized.set_total_bytes(static_cast<int64_t>(file.size()));
  size_t sent = 0;
  return ImportState(
      sized,
      [&](size_t bytes) -> absl::StatusOr<std::string_view> {
        const std::string_view piece = file.substr(sent, bytes);
        sent += piece.size();
        return piece;
      },
      call);
}

absl::StatusOr<v1::Session> Client::ImportState(const v1::ImportStateRequest::Target& target,
                                                absl::FunctionRef<absl::StatusOr<std::string_view>(size_t)> source,
                                                const CallOptions& call) {
  if (channel_ == nullptr)
    return absl::FailedPreconditionError("ImportState needs a client that was made of a channel");
  grpc::ClientContext context;
  GDN_RETURN_IF_ERROR(PrepareContext(Routed(target, call), options_.default_timeout, &context));
  return SendState(channel_, context, target, source, call.progress);
}

absl::StatusOr<StateWatch> Client::WatchState(const v1::WatchStateRequest& request, const CallOptions& call) {
  auto context = std::make_unique<grpc::ClientContext>();
  GDN_RETURN_IF_ERROR(PrepareContext(Routed(request, call), std::nullopt, context.get()));
  auto reader = stub_->WatchState(context.get(), request);
  if (!request.has_session_epoch()) return StateWatch(std::move(context), std::move(reader));
  return StateWatch(std::move(context), std::move(reader),
                    StateWatch::Origin{.session = request.name(), .epoch = request.session_epoch()});
}

absl::StatusOr<std::vector<v1::Session>> Client::ForkSession(const v1::ForkSessionRequest& request,
                                                             const CallOptions& call) {
  GDN_ASSIGN_OR_RETURN(v1::ForkSessionResponse response, Call(&Stub::ForkSession, request, call));
  return Moved(*response.mutable_sessions());
}

absl::StatusOr<v1::SnapshotSessionResponse> Client::SnapshotSession(const v1::SnapshotSessionRequest& request,
                                                                    const CallOptions& call) {
  return Call(&Stub::SnapshotSession, request, call);
}

absl::StatusOr<v1::SnapshotSessionsResponse> Client::SnapshotSessions(const v1::SnapshotSessionsRequest& request,
                                                                      const CallOptions& call) {
  return Call(&Stub::SnapshotSessions, request, call);
}

absl::StatusOr<v1::ListSnapshotsResponse> Client::ListSnapshots(int64_t lost_after, const CallOptions& call) {
  v1::ListSnapshotsRequest request;
  request.set_page_size(kListPageSize);
  request.set_lost_after(lost_after);
  GDN_ASSIGN_OR_RETURN(v1::ListSnapshotsResponse all, Call(&Stub::ListSnapshots, request, call));
  while (!all.next_page_token().empty()) {
    if (all.next_page_token() == request.page_token()) {
      return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                       "ListSnapshots gave the page token it was given, so its pages have no end");
    }
    request.set_page_token(all.next_page_token());
    GDN_ASSIGN_OR_RETURN(v1::ListSnapshotsResponse page, Call(&Stub::ListSnapshots, request, call));
    for (v1::Snapshot& snapshot : *page.mutable_snapshots()) all.add_snapshots()->Swap(&snapshot);
    all.set_next_page_token(page.next_page_token());
  }
  return all;
}

absl::StatusOr<v1::DeleteSnapshotsResponse> Client::DeleteSnapshots(const std::vector<std::string>& keys,
                                                                    const CallOptions& call) {
  v1::DeleteSnapshotsRequest request;
  for (const std::string& key : keys) request.add_keys(key);
  return Call(&Stub::DeleteSnapshots, request, call);
}

absl::StatusOr<v1::KeepPrefixResponse> Client::KeepPrefix(const std::string& session, const v1::PromptPrefix& prefix,
                                                          const CallOptions& call) {
  v1::KeepPrefixRequest request;
  request.set_name(session);
  *request.mutable_prefix() = prefix;
  return KeepPrefix(request, call);
}

absl::StatusOr<v1::KeepPrefixResponse> Client::KeepPrefix(const v1::KeepPrefixRequest& request,
                                                          const CallOptions& call) {
  return Call(&Stub::KeepPrefix, request, call);
}

absl::StatusOr<int64_t> Client::DropPrefixes(const CallOptions& call) {
  GDN_ASSIGN_OR_RETURN(const v1::DropPrefixesResponse response,
                       Call(&Stub::DropPrefixes, v1::DropPrefixesRequest(), call));
  return response.dropped();
}

absl::StatusOr<v1::Checkpoint> Client::CheckpointSession(const v1::CheckpointSessionRequest& request,
                                                         const CallOptions& call) {
  return PartOf(Call(&Stub::CheckpointSession, request, call), &v1::CheckpointSessionResponse::mutable_checkpoint);
}

absl::StatusOr<std::vector<v1::Checkpoint>> Client::ListCheckpoints(const std::string& session,
                                                                    const CallOptions& call) {
  GDN_ASSIGN_OR_RETURN(v1::ListCheckpointsResponse response,
                       Call(&Stub::ListCheckpoints, Named<v1::ListCheckpointsRequest>(session), call));
  return Moved(*response.mutable_checkpoints());
}

absl::Status Client::DeleteCheckpoint(const std::string& session, const std::string& checkpoint_id,
                                      const CallOptions& call) {
  v1::DeleteCheckpointRequest request;
  request.set_name(session);
  request.set_checkpoint_id(checkpoint_id);
  return Call(&Stub::DeleteCheckpoint, request, call).status();
}

absl::StatusOr<v1::Session> Client::RestoreCheckpoint(const v1::RestoreCheckpointRequest& request,
                                                      const CallOptions& call) {
  return PartOf(Call(&Stub::RestoreCheckpoint, request, call), &v1::RestoreCheckpointResponse::mutable_session);
}

absl::StatusOr<v1::AcceptTokensResponse> Client::AcceptTokens(const v1::AcceptTokensRequest& request,
                                                              const CallOptions& call) {
  return Call(&Stub::AcceptTokens, request, call);
}

absl::StatusOr<v1::PrefetchSessionsResponse> Client::PrefetchSessions(const std::vector<std::string>& names,
                                                                      const CallOptions& call) {
  v1::PrefetchSessionsRequest request;
  for (const std::string& name : names) request.add_names(name);
  return Call(&Stub::PrefetchSessions, request, call);
}

absl::StatusOr<v1::TraceCallsResponse> Client::TraceCalls(const v1::TraceCallsRequest& request,
                                                          const CallOptions& call) {
  return Call(&Stub::TraceCalls, request, call);
}

absl::StatusOr<std::string> Client::GetMetrics(const CallOptions& call) {
  return PartOf(Call(&Stub::GetMetrics, v1::GetMetricsRequest(), call), &v1::GetMetricsResponse::mutable_text);
}

absl::StatusOr<v1::DrainProgress> Client::Drain(const v1::DrainRequest& request, const CallOptions& call) {
  return PartOf(Call(&Stub::Drain, request, call), &v1::DrainResponse::mutable_progress);
}

absl::StatusOr<v1::PrefillResponse> Client::Prefill(const v1::PrefillRequest& request, const CallOptions& call) {
  return Call(&Stub::Prefill, request, call);
}

absl::StatusOr<v1::DecodeResponse> Client::Decode(const v1::DecodeRequest& request, const CallOptions& call) {
  return Call(&Stub::Decode, request, call);
}

absl::StatusOr<v1::StepResponse> Client::Step(const v1::StepRequest& request, const CallOptions& call) {
  absl::StatusOr<v1::StepResponse> response = Call(&Stub::Step, request, call);
  // gRPC answers for an unknown method, and gives no reason.
  if (response.status().code() == absl::StatusCode::kUnimplemented && ErrorReason(response.status()).empty()) {
    step_is_unimplemented_ = true;
  }
  return response;
}

bool Client::UsesRing() const { return ring_ != nullptr && ring_->open(); }

absl::Status Client::OpenRing(const RingOptions& options, const CallOptions& call) {
  ring_ = nullptr;
  GDN_ASSIGN_OR_RETURN(
      ring_, RingLink::Open(RingOpener(options, call.affinity), call.timeout.value_or(options_.default_timeout)));
  return absl::OkStatus();
}

std::function<absl::StatusOr<std::unique_ptr<RingChannel>>(absl::Duration)> Client::RingOpener(
    const RingOptions& options, const std::string& affinity) {
  const CallOptions forever{.timeout = absl::InfiniteDuration(), .affinity = affinity};
  return [this, options, forever](absl::Duration timeout) -> absl::StatusOr<std::unique_ptr<RingChannel>> {
    auto context = std::make_unique<grpc::ClientContext>();
    GDN_RETURN_IF_ERROR(PrepareContext(forever, std::nullopt, context.get()));
    return RingChannel::Open(*stub_, std::move(context), options, timeout);
  };
}

absl::StatusOr<std::unique_ptr<SharedMemory>> Client::ShareMemory(int64_t bytes, const CallOptions& call) {
  auto context = std::make_unique<grpc::ClientContext>();
  CallOptions endless = call;  // the call is to last as long as the region
  endless.timeout = std::nullopt;
  GDN_RETURN_IF_ERROR(PrepareContext(endless, std::nullopt, context.get()));
  return SharedMemory::Open(*stub_, std::move(context), bytes, call.timeout.value_or(options_.default_timeout));
}

absl::StatusOr<PrefillStream> Client::StreamPrefill(const CallOptions& call) {
  auto context = std::make_unique<grpc::ClientContext>();
  GDN_RETURN_IF_ERROR(PrepareContext(call, std::nullopt, context.get()));
  auto stream = stub_->StreamPrefill(context.get());
  return PrefillStream(std::move(context), std::move(stream));
}

absl::StatusOr<DecodeStream> Client::StreamDecode(const CallOptions& call) {
  auto context = std::make_unique<grpc::ClientContext>();
  GDN_RETURN_IF_ERROR(PrepareContext(call, std::nullopt, context.get()));
  auto stream = stub_->StreamDecode(context.get());
  return DecodeStream(std::move(context), std::move(stream));
}

absl::StatusOr<MixedStream> Client::StreamStep(const CallOptions& call) {
  auto context = std::make_unique<grpc::ClientContext>();
  GDN_RETURN_IF_ERROR(PrepareContext(call, std::nullopt, context.get()));
  auto stream = stub_->StreamStep(context.get());
  return MixedStream(std::move(context), std::move(stream));
}

}  // namespace gdn
