#include "client/cpp/refusing_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>

#include <string>
#include <utility>
#include <vector>

namespace gdn {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

// Takes each call out of the channel's hands before it begins.
class Refusal final : public Interceptor {
 public:
  explicit Refusal(grpc::Status status) : status_(std::move(status)) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    const auto is_at = [methods](InterceptionHookPoints point) { return methods->QueryInterceptionHookPoint(point); };
    const bool begins = is_at(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA);
    if (is_at(InterceptionHookPoints::PRE_SEND_MESSAGE)) methods->FailHijackedSendMessage();
    if (is_at(InterceptionHookPoints::PRE_RECV_MESSAGE)) methods->FailHijackedRecvMessage();
    if (is_at(InterceptionHookPoints::PRE_RECV_STATUS)) *methods->GetRecvStatus() = status_;
    begins ? methods->Hijack() : methods->Proceed();
  }

 private:
  const grpc::Status status_;
};

class RefusalFactory final : public ClientInterceptorFactoryInterface {
 public:
  explicit RefusalFactory(grpc::Status status) : status_(std::move(status)) {}
  Interceptor* CreateClientInterceptor(ClientRpcInfo* /*info*/) override { return new Refusal(status_); }

 private:
  const grpc::Status status_;
};

}  // namespace

std::shared_ptr<grpc::Channel> RefusingChannel(const absl::Status& refusal) {
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<RefusalFactory>(
      grpc::Status(static_cast<grpc::StatusCode>(refusal.code()), std::string(refusal.message()))));
  return grpc::experimental::CreateCustomChannelWithInterceptors("unix:/nowhere", grpc::InsecureChannelCredentials(),
                                                                 grpc::ChannelArguments(), std::move(factories));
}

}  // namespace gdn
