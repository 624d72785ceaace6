#include "server/rpc/gdn_service.h"

#include "server/rpc/accept_call.h"
#include "server/rpc/fork_call.h"
#include "server/rpc/import_reactor.h"
#include "server/rpc/info_calls.h"
#include "server/rpc/principal.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/state_calls.h"
#include "server/rpc/state_stream_reactors.h"
#include "server/rpc/step_reactors.h"

namespace gdn {
namespace {

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* call, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

CallDone FinishWith(grpc::ServerUnaryReactor* reactor) {
  return [reactor](const absl::Status& status) { reactor->Finish(ToGrpcStatus(status)); };
}

}  // namespace

grpc::ServerUnaryReactor* GdnServiceImpl::GetServerInfo(grpc::CallbackServerContext* call,
                                                        const v1::GetServerInfoRequest* /*request*/,
                                                        v1::GetServerInfoResponse* response) {
  FillServerInfo(context_, response);
  return FinishNow(call, absl::OkStatus());
}

grpc::ServerUnaryReactor* GdnServiceImpl::ListModels(grpc::CallbackServerContext* call,
                                                     const v1::ListModelsRequest* /*request*/,
                                                     v1::ListModelsResponse* response) {
  gdn::ListModels(context_, response);
  return FinishNow(call, absl::OkStatus());
}

grpc::ServerUnaryReactor* GdnServiceImpl::GetModel(grpc::CallbackServerContext* call,
                                                   const v1::GetModelRequest* request, v1::GetModelResponse* response) {
  return FinishNow(call, gdn::GetModel(context_, *request, response));
}

grpc::ServerUnaryReactor* GdnServiceImpl::CreateSession(grpc::CallbackServerContext* call,
                                                        const v1::CreateSessionRequest* request,
                                                        v1::CreateSessionResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  gdn::CreateSession(context_, PrincipalOf(*call), DeadlineOf(*call), *request, response, FinishWith(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* GdnServiceImpl::GetSession(grpc::CallbackServerContext* call,
                                                     const v1::GetSessionRequest* request,
                                                     v1::GetSessionResponse* response) {
  return FinishNow(call, gdn::GetSession(context_, PrincipalOf(*call), *request, response));
}

grpc::ServerUnaryReactor* GdnServiceImpl::ListSessions(grpc::CallbackServerContext* call,
                                                       const v1::ListSessionsRequest* request,
                                                       v1::ListSessionsResponse* response) {
  return FinishNow(call, gdn::ListSessions(context_, PrincipalOf(*call), *request, response));
}

grpc::ServerUnaryReactor* GdnServiceImpl::DeleteSession(grpc::CallbackServerContext* call,
                                                        const v1::DeleteSessionRequest* request,
                                                        v1::DeleteSessionResponse* /*response*/) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  gdn::DeleteSession(context_, PrincipalOf(*call), *request, FinishWith(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* GdnServiceImpl::ForkSession(grpc::CallbackServerContext* call,
                                                      const v1::ForkSessionRequest* request,
                                                      v1::ForkSessionResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  gdn::ForkSession(context_, PrincipalOf(*call), DeadlineOf(*call), *request, response, FinishWith(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* GdnServiceImpl::CheckpointSession(grpc::CallbackServerContext* call,
                                                            const v1::CheckpointSessionRequest* request,
                                                            v1::CheckpointSessionResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  gdn::CheckpointSession(context_, PrincipalOf(*call), *request, response, FinishWith(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* GdnServiceImpl::RestoreCheckpoint(grpc::CallbackServerContext* call,
                                                            const v1::RestoreCheckpointRequest* request,
                                                            v1::RestoreCheckpointResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  gdn::RestoreCheckpoint(context_, PrincipalOf(*call), *request, response, FinishWith(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* GdnServiceImpl::AcceptTokens(grpc::CallbackServerContext* call,
                                                       const v1::AcceptTokensRequest* request,
                                                       v1::AcceptTokensResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  gdn::AcceptTokens(context_, PrincipalOf(*call), DeadlineOf(*call), *request, response, FinishWith(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* GdnServiceImpl::PrefetchSessions(grpc::CallbackServerContext* call,
                                                           const v1::PrefetchSessionsRequest* request,
                                                           v1::PrefetchSessionsResponse* response) {
  return FinishNow(call, gdn::PrefetchSessions(context_, PrincipalOf(*call), *request, response));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GdnServiceImpl::ExportState(grpc::CallbackServerContext* call,
                                                                        const grpc::ByteBuffer* request) {
  return NewExportReactor(context_, call, request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* GdnServiceImpl::ImportState(grpc::CallbackServerContext* call,
                                                                       grpc::ByteBuffer* response) {
  return NewImportReactor(context_, call, response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GdnServiceImpl::WatchState(grpc::CallbackServerContext* call,
                                                                       const grpc::ByteBuffer* request) {
  return NewWatchReactor(context_, call, request);
}

grpc::ServerUnaryReactor* GdnServiceImpl::Prefill(grpc::CallbackServerContext* call, const v1::PrefillRequest* request,
                                                  v1::PrefillResponse* response) {
  return NewPrefillReactor(context_, call, request, response);
}

grpc::ServerBidiReactor<v1::StreamPrefillRequest, v1::StreamPrefillResponse>* GdnServiceImpl::StreamPrefill(
    grpc::CallbackServerContext* call) {
  return NewStreamPrefillReactor(context_, call);
}

grpc::ServerUnaryReactor* GdnServiceImpl::Decode(grpc::CallbackServerContext* call, const v1::DecodeRequest* request,
                                                 v1::DecodeResponse* response) {
  return NewDecodeReactor(context_, call, request, response);
}

grpc::ServerBidiReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse>* GdnServiceImpl::StreamDecode(
    grpc::CallbackServerContext* call) {
  return NewStreamDecodeReactor(context_, call);
}

}  // namespace gdn
