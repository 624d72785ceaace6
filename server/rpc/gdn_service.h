// gdn.v1.GdnService, on gRPC's callback API.
//
// Thread safety: as every gRPC service, called from many threads. Ownership: the context must outlive the server.
//
//   GdnServiceImpl service(context);
//   builder.RegisterService(&service);
#pragma once

#include "gdn/v1/service.grpc.pb.h"
#include "server/rpc/service_context.h"

namespace gdn {

// The callback API, with the methods that move state files as raw bytes.
using GdnServiceMethods =
    v1::GdnService::WithRawCallbackMethod_ExportState<v1::GdnService::WithRawCallbackMethod_ImportState<
        v1::GdnService::WithRawCallbackMethod_WatchState<v1::GdnService::CallbackService>>>;

class GdnServiceImpl final : public GdnServiceMethods {
 public:
  explicit GdnServiceImpl(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* call, const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* call, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* call, const v1::CreateSessionRequest* request,
                                          v1::CreateSessionResponse* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* call, const v1::GetSessionRequest* request,
                                       v1::GetSessionResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* call, const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* call, const v1::DeleteSessionRequest* request,
                                          v1::DeleteSessionResponse* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportState(grpc::CallbackServerContext* call,
                                                          const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* ImportState(grpc::CallbackServerContext* call,
                                                         grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchState(grpc::CallbackServerContext* call,
                                                         const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* ForkSession(grpc::CallbackServerContext* call, const v1::ForkSessionRequest* request,
                                        v1::ForkSessionResponse* response) override;
  grpc::ServerUnaryReactor* CheckpointSession(grpc::CallbackServerContext* call,
                                              const v1::CheckpointSessionRequest* request,
                                              v1::CheckpointSessionResponse* response) override;
  grpc::ServerUnaryReactor* RestoreCheckpoint(grpc::CallbackServerContext* call,
                                              const v1::RestoreCheckpointRequest* request,
                                              v1::RestoreCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* AcceptTokens(grpc::CallbackServerContext* call, const v1::AcceptTokensRequest* request,
                                         v1::AcceptTokensResponse* response) override;
  grpc::ServerUnaryReactor* PrefetchSessions(grpc::CallbackServerContext* call,
                                             const v1::PrefetchSessionsRequest* request,
                                             v1::PrefetchSessionsResponse* response) override;
  grpc::ServerUnaryReactor* Prefill(grpc::CallbackServerContext* call, const v1::PrefillRequest* request,
                                    v1::PrefillResponse* response) override;
  grpc::ServerBidiReactor<v1::StreamPrefillRequest, v1::StreamPrefillResponse>* StreamPrefill(
      grpc::CallbackServerContext* call) override;
  grpc::ServerUnaryReactor* Decode(grpc::CallbackServerContext* call, const v1::DecodeRequest* request,
                                   v1::DecodeResponse* response) override;
  grpc::ServerBidiReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse>* StreamDecode(
      grpc::CallbackServerContext* call) override;

 private:
  const ServiceContext& context_;
};

}  // namespace gdn
