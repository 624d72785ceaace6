#include "server/rpc/gdn_service.h"

#include "server/rpc/info_calls.h"
#include "server/rpc/principal.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/state_transfer.h"
#include "server/rpc/step_reactors.h"

namespace gdn {
namespace {

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* call, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
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
  gdn::CreateSession(context_, PrincipalOf(*call), *request, response,
                     [reactor](const absl::Status& status) { reactor->Finish(ToGrpcStatus(status)); });
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
  return FinishNow(call, gdn::DeleteSession(context_, PrincipalOf(*call), *request));
}

grpc::ServerWriteReactor<v1::ExportStateResponse>* GdnServiceImpl::ExportState(grpc::CallbackServerContext* call,
                                                                               const v1::ExportStateRequest* request) {
  return NewExportReactor(context_, call, request);
}

grpc::ServerReadReactor<v1::ImportStateRequest>* GdnServiceImpl::ImportState(grpc::CallbackServerContext* call,
                                                                             v1::ImportStateResponse* response) {
  return NewImportReactor(context_, call, response);
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
