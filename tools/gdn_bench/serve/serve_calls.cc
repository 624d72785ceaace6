#include "tools/gdn_bench/serve/serve_calls.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "client/cpp/step_place.h"
#include "client/cpp/tensor_codec.h"
#include "grpcpp/client_context.h"
#include "grpcpp/impl/client_unary_call.h"
#include "grpcpp/impl/rpc_method.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/sync_stream.h"
#include "tools/gdn_bench/serve/rpc_setup.h"
#include "tools/gdn_bench/serve/step_calls.h"

namespace gdn::bench {
namespace {

using grpc::internal::RpcMethod;

// A load that hangs must end. A stream lives as long as its load.
constexpr std::chrono::minutes kCallTimeout{2};
constexpr std::chrono::minutes kStreamTimeout{30};

v1::Tensor* MutableTensor(v1::DecodeRequest& request) {
  return request.mutable_hidden_states()->mutable_hidden_states();
}
v1::Tensor* MutableTensor(v1::PrefillRequest& request) {
  return request.mutable_hidden_states()->mutable_hidden_states();
}

v1::DecodeRequest MakeDecode(const Workload& load, const std::vector<std::string>& sessions) {
  v1::DecodeRequest request;
  for (const std::string& name : sessions) request.add_sessions(name);
  *MutableTensor(request) = RandomTensor({load.sessions, load.tokens, load.hidden}, -1, 1, load.dtype);
  return request;
}

v1::PrefillRequest MakePrefill(const Workload& load, const std::vector<std::string>& sessions) {
  v1::PrefillRequest request;
  request.set_session(sessions.front());
  *MutableTensor(request) = RandomTensor({load.tokens, load.hidden}, -1, 1, load.dtype);
  return request;
}

// The step that a message carries.
v1::DecodeRequest& StepIn(v1::DecodeRequest& request) { return request; }
v1::PrefillRequest& StepIn(v1::PrefillRequest& request) { return request; }
v1::DecodeRequest& StepIn(v1::StreamDecodeRequest& request) { return *request.mutable_step(); }
v1::PrefillRequest& StepIn(v1::StreamPrefillRequest& request) { return *request.mutable_segment(); }

// Makes a message the `number`-th call's.
template <typename Request>
void SetCall(Request& request, const Workload& load, int64_t number) {
  auto& step = StepIn(request);
  step.set_layer(static_cast<int32_t>(number % load.layers));
  if (load.request_ids) step.set_request_id(absl::StrCat("call-", number));
}
void SetCall(grpc::ByteBuffer& /*request*/, const Workload& /*load*/, int64_t /*number*/) {}

absl::Status ExpectBytes(int64_t actual, int64_t expected) {
  if (actual == expected) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a call of ", expected, " bytes was answered with ", actual));
}

template <typename Response>
absl::Status CheckResult(const Response& response, const Workload& load) {
  const v1::Tensor& output = response.output();
  const int64_t bytes = output.has_shared() ? output.shared().bytes() : static_cast<int64_t>(output.data().size());
  return ExpectBytes(bytes, load.tensor_bytes());
}
template <typename Response>
absl::Status CheckStreamed(const Response& response, const Workload& load) {
  GDN_RETURN_IF_ERROR(StatusFromRpc(response.status()));
  return CheckResult(response.result(), load);
}

template <typename Request>
absl::Status CheckReply(const Request& /*request*/, const v1::DecodeResponse& response, const Workload& load) {
  return CheckResult(response, load);
}
template <typename Request>
absl::Status CheckReply(const Request& /*request*/, const v1::PrefillResponse& response, const Workload& load) {
  return CheckResult(response, load);
}
template <typename Request>
absl::Status CheckReply(const Request& /*request*/, const v1::StreamDecodeResponse& response, const Workload& load) {
  return CheckStreamed(response, load);
}
template <typename Request>
absl::Status CheckReply(const Request& /*request*/, const v1::StreamPrefillResponse& response, const Workload& load) {
  return CheckStreamed(response, load);
}
absl::Status CheckReply(const grpc::ByteBuffer& request, const grpc::ByteBuffer& response, const Workload& /*load*/) {
  return ExpectBytes(static_cast<int64_t>(response.Length()), static_cast<int64_t>(request.Length()));
}

template <typename Message>
int64_t WireBytes(const Message& message) {
  return static_cast<int64_t>(message.ByteSizeLong());
}
int64_t WireBytes(const grpc::ByteBuffer& bytes) { return static_cast<int64_t>(bytes.Length()); }

// A stub's code with the message types as parameters, so that messages and bytes take the same way.
template <typename Request, typename Response>
class RpcCaller : public Caller {
 public:
  RpcCaller(std::shared_ptr<grpc::Channel> channel, const char* method, RpcMethod::RpcType type, const Workload& load,
            Request request)
      : channel_(std::move(channel)), method_(method, type, channel_), load_(load), request_(std::move(request)) {}

  absl::Status Call() override {
    SetCall(request_, load_, calls_++);
    Response response;
    GDN_RETURN_IF_ERROR(Exchange(request_, response));
    response_bytes_ = WireBytes(response);
    return CheckReply(request_, response, load_);
  }
  int64_t request_bytes() const override { return WireBytes(request_); }
  int64_t response_bytes() const override { return response_bytes_; }

 protected:
  virtual absl::Status Exchange(const Request& request, Response& response) = 0;

  const std::shared_ptr<grpc::Channel> channel_;
  const RpcMethod method_;

 private:
  const Workload load_;
  Request request_;
  int64_t calls_ = 0;
  int64_t response_bytes_ = 0;
};

template <typename Request, typename Response>
class UnaryCaller final : public RpcCaller<Request, Response> {
 public:
  UnaryCaller(std::shared_ptr<grpc::Channel> channel, const char* method, const Workload& load, Request request)
      : RpcCaller<Request, Response>(std::move(channel), method, RpcMethod::NORMAL_RPC, load, std::move(request)) {}

 private:
  absl::Status Exchange(const Request& request, Response& response) override {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    return StatusFromGrpc(
        grpc::internal::BlockingUnaryCall(this->channel_.get(), this->method_, &context, request, &response));
  }
};

template <typename Request, typename Response>
class StreamCaller final : public RpcCaller<Request, Response> {
 public:
  StreamCaller(std::shared_ptr<grpc::Channel> channel, const char* method, const Workload& load, Request request)
      : RpcCaller<Request, Response>(std::move(channel), method, RpcMethod::BIDI_STREAMING, load, std::move(request)) {}
  ~StreamCaller() override {
    if (stream_ == nullptr) return;
    stream_->WritesDone();
    Response unread;
    while (stream_->Read(&unread)) {
    }
    static_cast<void>(stream_->Finish());  // Call has reported a failure
  }

 private:
  absl::Status Exchange(const Request& request, Response& response) override {
    if (stream_ == nullptr) {
      context_.set_deadline(std::chrono::system_clock::now() + kStreamTimeout);
      stream_.reset(grpc::internal::ClientReaderWriterFactory<Request, Response>::Create(this->channel_.get(),
                                                                                         this->method_, &context_));
    }
    if (stream_->Write(request) && stream_->Read(&response)) return absl::OkStatus();
    const absl::Status ended = StatusFromGrpc(std::exchange(stream_, nullptr)->Finish());
    return ended.ok() ? absl::InternalError("the stream ended before the reply that was due") : ended;
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream_;
};

template <template <typename, typename> class Kind, typename Request, typename Response>
std::unique_ptr<Caller> MakeKind(std::shared_ptr<grpc::Channel> channel, const char* method, const Workload& load,
                                 Request request, Wire wire) {
  SetCall(request, load, 0);
  if (wire == Wire::kMessages) {
    return std::make_unique<Kind<Request, Response>>(std::move(channel), method, load, std::move(request));
  }
  const grpc::Slice bytes(request.SerializeAsString());
  return std::make_unique<Kind<grpc::ByteBuffer, grpc::ByteBuffer>>(std::move(channel), method, load,
                                                                    grpc::ByteBuffer(&bytes, 1));
}

std::unique_ptr<Caller> MakeStepCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load,
                                       v1::DecodeRequest step, Wire wire) {
  if (load.api == Api::kUnary) {
    return MakeKind<UnaryCaller, v1::DecodeRequest, v1::DecodeResponse>(std::move(channel), "/gdn.v1.GdnService/Decode",
                                                                        load, std::move(step), wire);
  }
  v1::StreamDecodeRequest request;
  *request.mutable_step() = std::move(step);
  return MakeKind<StreamCaller, v1::StreamDecodeRequest, v1::StreamDecodeResponse>(
      std::move(channel), "/gdn.v1.GdnService/StreamDecode", load, std::move(request), wire);
}

std::unique_ptr<Caller> MakeStepCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load,
                                       v1::PrefillRequest segment, Wire wire) {
  if (load.api == Api::kUnary) {
    return MakeKind<UnaryCaller, v1::PrefillRequest, v1::PrefillResponse>(
        std::move(channel), "/gdn.v1.GdnService/Prefill", load, std::move(segment), wire);
  }
  v1::StreamPrefillRequest request;
  *request.mutable_segment() = std::move(segment);
  return MakeKind<StreamCaller, v1::StreamPrefillRequest, v1::StreamPrefillResponse>(
      std::move(channel), "/gdn.v1.GdnService/StreamPrefill", load, std::move(request), wire);
}

// Messages whose tensors lie in a region of the caller's own, which its first call makes.
class SharedMemoryCaller final : public Caller {
 public:
  SharedMemoryCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load, std::vector<std::string> sessions)
      : channel_(std::move(channel)), load_(load), sessions_(std::move(sessions)), client_(channel_) {}

  absl::Status Call() override {
    if (caller_ == nullptr) GDN_RETURN_IF_ERROR(Open());
    return caller_->Call();
  }
  int64_t request_bytes() const override { return caller_ == nullptr ? 0 : caller_->request_bytes(); }
  int64_t response_bytes() const override { return caller_ == nullptr ? 0 : caller_->response_bytes(); }

 private:
  absl::Status Open() {
    constexpr int64_t kAlignment = 64;
    GDN_ASSIGN_OR_RETURN(memory_, client_.ShareMemory(2 * (load_.tensor_bytes() + kAlignment)));
    return load_.call == CallKind::kDecode ? Open(MakeDecode(load_, sessions_)) : Open(MakePrefill(load_, sessions_));
  }
  template <typename Step>
  absl::Status Open(Step step) {
    const v1::Tensor tensor = std::move(*MutableTensor(step));
    GDN_ASSIGN_OR_RETURN(const TensorView view, ViewTensor(tensor));
    GDN_RETURN_IF_ERROR(memory_->AddTensor(view, MutableTensor(step)));
    GDN_ASSIGN_OR_RETURN(*step.mutable_output_shared(), memory_->Allocate(load_.tensor_bytes()));
    caller_ = MakeStepCaller(channel_, load_, std::move(step), Wire::kMessages);
    return absl::OkStatus();
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const Workload load_;
  const std::vector<std::string> sessions_;
  Client client_;
  std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<Caller> caller_;
};

// Calls through a ring of the caller's own, with tensors that stay in the ring (StepPlace). Between two calls, outside
// their time, the caller reads the output and writes the next input, as an engine does.
template <typename Request>
class RingCaller final : public Caller {
 public:
  RingCaller(const std::shared_ptr<grpc::Channel>& channel, const Workload& load, Request request)
      : client_(channel), load_(load), request_(std::move(request)) {
    input_ = std::move(*MutableTensor(request_)->mutable_data());
    MutableTensor(request_)->clear_data();
  }

  absl::Status Prepare() override {
    if (!client_.UsesRing()) {
      constexpr int64_t kBesideTensors = 64 << 10;
      GDN_RETURN_IF_ERROR(client_.OpenRing({.entries = 4,
                                            .area_bytes = 4 * (load_.tensor_bytes() + kBesideTensors),
                                            .spin = absl::Microseconds(load_.ring_spin_us)}));
    }
    if (place_ == nullptr) {
      GDN_ASSIGN_OR_RETURN(place_, StepPlace::Make(client_, request_));
    }
    output_.assign(place_->output().begin(), place_->output().end());
    std::ranges::copy(input_, place_->input().begin());
    SetCall(request_, load_, calls_++);
    return absl::OkStatus();
  }
  absl::Status Call() override {
    const auto response = place_->Call(request_);
    GDN_RETURN_IF_ERROR(response.status());
    response_bytes_ = WireBytes(*response) + static_cast<int64_t>(place_->output().size());
    return ExpectBytes(static_cast<int64_t>(place_->output().size()), load_.tensor_bytes());
  }
  int64_t request_bytes() const override { return WireBytes(request_) + static_cast<int64_t>(input_.size()); }
  int64_t response_bytes() const override { return response_bytes_; }

 private:
  Client client_;
  const Workload load_;
  Request request_;
  std::string input_, output_;
  std::unique_ptr<StepPlace> place_;
  int64_t calls_ = 0;
  int64_t response_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Caller> MakeCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load,
                                   const std::vector<std::string>& sessions, Wire wire) {
  if (load.call == CallKind::kStep) {
    return wire == Wire::kSeparateCalls ? MakeSeparateCaller(std::move(channel), load, sessions)
                                        : MakeWholeStepCaller(std::move(channel), load, sessions);
  }
  if (wire == Wire::kRing && load.call == CallKind::kDecode) {
    return std::make_unique<RingCaller<v1::DecodeRequest>>(channel, load, MakeDecode(load, sessions));
  }
  if (wire == Wire::kRing) {
    return std::make_unique<RingCaller<v1::PrefillRequest>>(channel, load, MakePrefill(load, sessions));
  }
  if (wire == Wire::kSharedMemory) return std::make_unique<SharedMemoryCaller>(std::move(channel), load, sessions);
  if (load.call == CallKind::kDecode) {
    return MakeStepCaller(std::move(channel), load, MakeDecode(load, sessions), wire);
  }
  return MakeStepCaller(std::move(channel), load, MakePrefill(load, sessions), wire);
}

}  // namespace gdn::bench
