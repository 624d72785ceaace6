#include "server/rpc/gdn_service.h"

#include "gdn/v1/service.grpc.pb.h"
#include "server/rpc/calls.h"
#include "server/rpc/reactors.h"
#include "server/rpc/rpc_status.h"

namespace gdn {
namespace {

using Call = grpc::CallbackServerContext;
using Unary = grpc::ServerUnaryReactor;

// The callback API, with the methods that move state files as raw bytes.
using GdnServiceMethods =
    v1::GdnService::WithRawCallbackMethod_ExportState<v1::GdnService::WithRawCallbackMethod_ImportState<
        v1::GdnService::WithRawCallbackMethod_WatchState<v1::GdnService::CallbackService>>>;

class GdnServiceImpl final : public GdnServiceMethods {
 public:
  explicit GdnServiceImpl(const ServiceContext& context) : context_(context) {}

  Unary* GetServerInfo(Call* call, const v1::GetServerInfoRequest* request,
                       v1::GetServerInfoResponse* response) override {
    return Answer(call, request, response, gdn::GetServerInfo);
  }
  Unary* ListModels(Call* call, const v1::ListModelsRequest* request, v1::ListModelsResponse* response) override {
    return Answer(call, request, response, gdn::ListModels);
  }
  Unary* GetModel(Call* call, const v1::GetModelRequest* request, v1::GetModelResponse* response) override {
    return Answer(call, request, response, gdn::GetModel);
  }
  Unary* CreateSession(Call* call, const v1::CreateSessionRequest* request,
                       v1::CreateSessionResponse* response) override {
    return Answer(call, request, response, gdn::CreateSession);
  }
  Unary* GetSession(Call* call, const v1::GetSessionRequest* request, v1::GetSessionResponse* response) override {
    return Answer(call, request, response, gdn::GetSession);
  }
  Unary* ListSessions(Call* call, const v1::ListSessionsRequest* request, v1::ListSessionsResponse* response) override {
    return Answer(call, request, response, gdn::ListSessions);
  }
  Unary* DeleteSession(Call* call, const v1::DeleteSessionRequest* request,
                       v1::DeleteSessionResponse* response) override {
    return Answer(call, request, response, gdn::DeleteSession);
  }
  Unary* ForkSession(Call* call, const v1::ForkSessionRequest* request, v1::ForkSessionResponse* response) override {
    return Answer(call, request, response, gdn::ForkSession);
  }
  Unary* CheckpointSession(Call* call, const v1::CheckpointSessionRequest* request,
                           v1::CheckpointSessionResponse* response) override {
    return Answer(call, request, response, gdn::CheckpointSession);
  }
  Unary* RestoreCheckpoint(Call* call, const v1::RestoreCheckpointRequest* request,
                           v1::RestoreCheckpointResponse* response) override {
    return Answer(call, request, response, gdn::RestoreCheckpoint);
  }
  Unary* AcceptTokens(Call* call, const v1::AcceptTokensRequest* request, v1::AcceptTokensResponse* response) override {
    return Answer(call, request, response, gdn::AcceptTokens);
  }
  Unary* PrefetchSessions(Call* call, const v1::PrefetchSessionsRequest* request,
                          v1::PrefetchSessionsResponse* response) override {
    return Answer(call, request, response, gdn::PrefetchSessions);
  }
  Unary* Prefill(Call* call, const v1::PrefillRequest* request, v1::PrefillResponse* response) override {
    return NewPrefillReactor(context_, call, request, response);
  }
  Unary* Decode(Call* call, const v1::DecodeRequest* request, v1::DecodeResponse* response) override {
    return NewDecodeReactor(context_, call, request, response);
  }
  grpc::ServerBidiReactor<v1::StreamPrefillRequest, v1::StreamPrefillResponse>* StreamPrefill(Call* call) override {
    return NewStreamPrefillReactor(context_, call);
  }
  grpc::ServerBidiReactor<v1::StreamDecodeRequest, v1::StreamDecodeResponse>* StreamDecode(Call* call) override {
    return NewStreamDecodeReactor(context_, call);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportState(Call* call, const grpc::ByteBuffer* request) override {
    return NewExportReactor(context_, call, request);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* ImportState(Call* call, grpc::ByteBuffer* response) override {
    return NewImportReactor(context_, call, response);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchState(Call* call, const grpc::ByteBuffer* request) override {
    return NewWatchReactor(context_, call, request);
  }

 private:
  template <typename Request, typename Response>
  Unary* Answer(Call* call, const Request* request, Response* response,
                void (*method)(const ServiceContext&, const Caller&, const Request&, Response*, CallDone)) {
    Unary* reactor = call->DefaultReactor();
    method(context_, CallerOf(*call), *request, response,
           [reactor](const absl::Status& status) { reactor->Finish(ToGrpcStatus(status)); });
    return reactor;
  }
  template <typename Request, typename Response>
  Unary* Answer(Call* call, const Request* request, Response* response,
                absl::Status (*method)(const ServiceContext&, const Caller&, const Request&, Response*)) {
    Unary* reactor = call->DefaultReactor();
    reactor->Finish(ToGrpcStatus(method(context_, CallerOf(*call), *request, response)));
    return reactor;
  }

  const ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGdnService(const ServiceContext& context) {
  return std::make_unique<GdnServiceImpl>(context);
}

}  // namespace gdn
