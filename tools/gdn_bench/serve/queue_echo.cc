#include "tools/gdn_bench/serve/queue_echo.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/server_process.h"
#include "base/status_macros.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_stream.h"
#include "grpcpp/support/async_unary_call.h"
#include "grpcpp/support/byte_buffer.h"
#include "tools/common/child_process.h"

namespace gdn::bench {
namespace {

using Bytes = grpc::ByteBuffer;
using Queue = grpc::ServerCompletionQueue;

// Calls of each method that a queue is ready to accept at the same time.
constexpr int kReadyCalls = 16;

class QueueEchoService final : public grpc::Service {
 public:
  enum Unary { kDecode = 0, kPrefill = 1 };
  enum Stream { kStreamDecode = 2, kStreamPrefill = 3 };

  QueueEchoService() {
    using grpc::internal::RpcMethod;
    Add("/gdn.v1.GdnService/Decode", RpcMethod::NORMAL_RPC);
    Add("/gdn.v1.GdnService/Prefill", RpcMethod::NORMAL_RPC);
    Add("/gdn.v1.GdnService/StreamDecode", RpcMethod::BIDI_STREAMING);
    Add("/gdn.v1.GdnService/StreamPrefill", RpcMethod::BIDI_STREAMING);
  }
  // Accepts a unary call together with its request. AsyncGenericService would need one more event, for the request.
  void Accept(Unary method, grpc::ServerContext& context, Bytes& request,
              grpc::ServerAsyncResponseWriter<Bytes>& responder, Queue& queue, void* tag) {
    RequestAsyncUnary(method, &context, &request, &responder, &queue, &queue, tag);
  }
  void Accept(Stream method, grpc::ServerContext& context, grpc::ServerAsyncReaderWriter<Bytes, Bytes>& stream,
              Queue& queue, void* tag) {
    RequestAsyncBidiStreaming(method, &context, &stream, &queue, &queue, tag);
  }

 private:
  void Add(const char* name, grpc::internal::RpcMethod::RpcType type) {
    AddMethod(new grpc::internal::RpcServiceMethod(name, type, nullptr));
    MarkMethodRaw(methods_++);
  }

  int methods_ = 0;
};

// A call whose address is the tag of its events. It accepts another call when its call has ended.
class QueueCall {
 public:
  virtual ~QueueCall() = default;
  // The event that the call waits for has come; `ok` as grpc::CompletionQueue::Next tells it.
  virtual void Proceed(bool ok) = 0;
};

class UnaryCall final : public QueueCall {
 public:
  UnaryCall(QueueEchoService& service, QueueEchoService::Unary method, Queue& queue)
      : service_(service), method_(method), queue_(queue) {
    Accept();
  }
  void Proceed(bool /*ok*/) override {
    answered_ = !answered_;
    answered_ ? call_->responder.Finish(call_->bytes, grpc::Status::OK, this) : Accept();
  }

 private:
  struct Call {
    grpc::ServerContext context;
    Bytes bytes;
    grpc::ServerAsyncResponseWriter<Bytes> responder{&context};
  };

  void Accept() {
    call_ = std::make_unique<Call>();
    service_.Accept(method_, call_->context, call_->bytes, call_->responder, queue_, this);
  }

  QueueEchoService& service_;
  const QueueEchoService::Unary method_;
  Queue& queue_;
  std::unique_ptr<Call> call_;
  bool answered_ = false;
};

// Reads a message, answers it, and so on until the client is done.
class StreamCall final : public QueueCall {
 public:
  StreamCall(QueueEchoService& service, QueueEchoService::Stream method, Queue& queue)
      : service_(service), method_(method), queue_(queue) {
    Accept();
  }
  void Proceed(bool ok) override {
    if (awaited_ == Awaited::kEnd) return Accept();
    if (!ok) {
      const bool client_is_done = std::exchange(awaited_, Awaited::kEnd) == Awaited::kRead;
      return call_->stream.Finish(client_is_done ? grpc::Status::OK : grpc::Status::CANCELLED, this);
    }
    if (awaited_ == Awaited::kRead) {
      awaited_ = Awaited::kWrite;
      call_->stream.Write(call_->bytes, this);
    } else {
      awaited_ = Awaited::kRead;
      call_->stream.Read(&call_->bytes, this);
    }
  }

 private:
  enum class Awaited { kCall, kRead, kWrite, kEnd };
  struct Call {
    grpc::ServerContext context;
    Bytes bytes;
    grpc::ServerAsyncReaderWriter<Bytes, Bytes> stream{&context};
  };

  void Accept() {
    awaited_ = Awaited::kCall;
    call_ = std::make_unique<Call>();
    service_.Accept(method_, call_->context, call_->stream, queue_, this);
  }

  QueueEchoService& service_;
  const QueueEchoService::Stream method_;
  Queue& queue_;
  std::unique_ptr<Call> call_;
  Awaited awaited_ = Awaited::kCall;
};

void Poll(QueueEchoService& service, Queue& queue) {
  std::vector<std::unique_ptr<QueueCall>> calls;
  for (int i = 0; i < kReadyCalls; ++i) {
    for (const auto method : {QueueEchoService::kDecode, QueueEchoService::kPrefill}) {
      calls.push_back(std::make_unique<UnaryCall>(service, method, queue));
    }
    for (const auto method : {QueueEchoService::kStreamDecode, QueueEchoService::kStreamPrefill}) {
      calls.push_back(std::make_unique<StreamCall>(service, method, queue));
    }
  }
  void* tag = nullptr;
  for (bool ok = false; queue.Next(&tag, &ok);) static_cast<QueueCall*>(tag)->Proceed(ok);
}

}  // namespace

absl::Status RunQueueEchoServer(const std::string& address, const std::string& port_file, int threads) {
  SetUpServerProcess();
  QueueEchoService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::vector<std::unique_ptr<Queue>> queues;
  for (int i = 0; i < threads; ++i) queues.push_back(builder.AddCompletionQueue());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return absl::UnavailableError(absl::StrCat("cannot listen on '", address, "'"));
  for (const std::unique_ptr<Queue>& queue : queues) {
    std::thread([&service, queue = queue.get()] { Poll(service, *queue); }).detach();
  }
  GDN_RETURN_IF_ERROR(WritePortFile(port_file, port));
  server->Wait();  // SIGTERM's and SIGINT's default action ends the process: there is nothing to save
  return absl::OkStatus();
}

}  // namespace gdn::bench
