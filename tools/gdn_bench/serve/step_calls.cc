#include "tools/gdn_bench/serve/step_calls.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "grpcpp/client_context.h"
#include "tools/gdn_bench/serve/rpc_setup.h"

namespace gdn::bench {
namespace {

constexpr std::chrono::minutes kRepeatedCallTimeout{2};  // a load that hangs must end

// The calls of a Caller that have no reply yet. Thread safety: any thread.
class Flight {
 public:
  void Begin() {
    absl::MutexLock lock(&mu_);
    ++open_;
  }
  void End(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    --open_;
    if (status_.ok()) status_ = status;
  }
  // Waits until no call is open. Returns the first error.
  absl::Status Await() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](int* open) { return *open == 0; }, &open_));
    return std::exchange(status_, absl::OkStatus());
  }

 private:
  absl::Mutex mu_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

using AsyncStub = v1::GdnService::StubInterface::async_interface;

// One method with its request, which is sent again and again.
template <typename Request, typename Response>
struct RepeatedCall {
  using Method = void (AsyncStub::*)(grpc::ClientContext*, const Request*, Response*,
                                     std::function<void(grpc::Status)>);

  // `then` runs after the reply, on one of gRPC's threads, before the flight ends.
  void Send(AsyncStub& stub, Method method, Flight& flight, std::function<void()> then = nullptr) {
    context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + kRepeatedCallTimeout);
    response.Clear();
    flight.Begin();
    (stub.*method)(context.get(), &request, &response, [&flight, then = std::move(then)](const grpc::Status& status) {
      if (status.ok() && then != nullptr) then();
      flight.End(StatusFromGrpc(status));
    });
  }
  int64_t request_bytes() const { return static_cast<int64_t>(request.ByteSizeLong()); }
  int64_t response_bytes() const { return static_cast<int64_t>(response.ByteSizeLong()); }

  Request request;
  Response response;
  std::unique_ptr<grpc::ClientContext> context;
};

absl::Status CheckOutput(const v1::Tensor& output, const v1::Tensor& input) {
  if (output.data().size() == input.data().size()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a call of ", input.data().size(), " bytes was answered with ", output.data().size()));
}

template <typename Request>
v1::Tensor& HiddenStates(Request& request) {
  return *request.mutable_hidden_states()->mutable_hidden_states();
}

template <typename Request>
void SetStep(Request& request, const Workload& load, int64_t number) {
  request.set_layer(static_cast<int32_t>(number % load.layers));
  if (load.request_ids) request.set_request_id(absl::StrCat("call-", number));
}

class StepCaller final : public Caller {
 public:
  StepCaller(const std::shared_ptr<grpc::Channel>& channel, const Workload& load,
             const std::vector<std::string>& sessions)
      : stub_(v1::GdnService::NewStub(channel)), load_(load) {
    for (int i = 0; i < load.rows(); ++i) {
      v1::StepRow& row = *step_.request.add_rows();
      row.set_session(sessions[static_cast<size_t>(i)]);
      if (i < load.decodes()) {
        row.set_kind(v1::STEP_KIND_DECODE);
        row.set_token_count(load.tokens);
      } else if (i < load.decodes() + load.drafts) {
        row.set_kind(v1::STEP_KIND_DRAFT);
        row.set_token_count(load.draft_tokens);
      } else {
        row.set_kind(v1::STEP_KIND_PREFILL);
        row.set_token_count(load.prefill_tokens);
      }
    }
    HiddenStates(step_.request) = RandomTensor({load.tokens_per_call(), load.hidden}, -1, 1, load.dtype);
  }

  absl::Status Call() override {
    SetStep(step_.request, load_, calls_);
    for (v1::StepRow& row : *step_.request.mutable_rows()) {
      if (row.kind() != v1::STEP_KIND_DRAFT) continue;
      row.mutable_accept_before()->set_accepted_tokens(calls_ < load_.layers ? 0 : load_.draft_tokens);
    }
    ++calls_;
    step_.Send(*stub_->async(), &AsyncStub::Step, flight_);
    GDN_RETURN_IF_ERROR(flight_.Await());
    return CheckOutput(step_.response.output(), HiddenStates(step_.request));
  }
  int64_t request_bytes() const override { return step_.request_bytes(); }
  int64_t response_bytes() const override { return step_.response_bytes(); }

 private:
  const std::unique_ptr<v1::GdnService::Stub> stub_;
  const Workload load_;
  RepeatedCall<v1::StepRequest, v1::StepResponse> step_;
  Flight flight_;
  int64_t calls_ = 0;
};

class SeparateCaller final : public Caller {
 public:
  SeparateCaller(const std::shared_ptr<grpc::Channel>& channel, const Workload& load,
                 const std::vector<std::string>& sessions)
      : stub_(v1::GdnService::NewStub(channel)), load_(load) {
    const auto drafts = sessions.begin() + load.decodes();
    const auto prefill = drafts + load.drafts;
    for (auto name = sessions.begin(); name != drafts; ++name) decode_.request.add_sessions(*name);
    for (auto name = drafts; name != prefill; ++name) {
      draft_.request.add_sessions(*name);
      accept_.request.add_acceptances()->set_session(*name);
    }
    draft_.request.set_draft(true);
    if (load.decodes() > 0) SetInput(decode_.request, {load.decodes(), load.tokens});
    if (load.drafts > 0) SetInput(draft_.request, {load.drafts, load.draft_tokens});
    if (load.prefill_tokens == 0) return;
    prefill_.request.set_session(*prefill);
    SetInput(prefill_.request, {load.prefill_tokens});
  }

  absl::Status Call() override {
    SetStep(decode_.request, load_, calls_);
    SetStep(draft_.request, load_, calls_);
    SetStep(prefill_.request, load_, calls_);
    if (load_.request_ids) accept_.request.set_request_id(absl::StrCat("accept-", calls_));
    for (v1::DraftAcceptance& acceptance : *accept_.request.mutable_acceptances()) {
      acceptance.set_accepted_tokens(calls_ == 0 ? 0 : load_.draft_tokens);  // of the last call's layer
    }
    ++calls_;
    AsyncStub& stub = *stub_->async();
    if (load_.prefill_tokens > 0) prefill_.Send(stub, &AsyncStub::Prefill, flight_);
    if (load_.drafts > 0) {
      accept_.Send(stub, &AsyncStub::AcceptTokens, flight_,
                   [this, &stub] { draft_.Send(stub, &AsyncStub::Decode, flight_); });
    }
    if (load_.decodes() > 0) decode_.Send(stub, &AsyncStub::Decode, flight_);
    GDN_RETURN_IF_ERROR(flight_.Await());
    if (load_.decodes() > 0) GDN_RETURN_IF_ERROR(CheckCall(decode_));
    if (load_.drafts > 0) GDN_RETURN_IF_ERROR(CheckCall(draft_));
    return load_.prefill_tokens > 0 ? CheckCall(prefill_) : absl::OkStatus();
  }
  int64_t request_bytes() const override {
    return (load_.decodes() > 0 ? decode_.request_bytes() : 0) +
           (load_.drafts > 0 ? accept_.request_bytes() + draft_.request_bytes() : 0) +
           (load_.prefill_tokens > 0 ? prefill_.request_bytes() : 0);
  }
  int64_t response_bytes() const override {
    return decode_.response_bytes() + accept_.response_bytes() + draft_.response_bytes() + prefill_.response_bytes();
  }

 private:
  template <typename Request>
  void SetInput(Request& request, std::vector<int64_t> shape) const {
    shape.push_back(load_.hidden);
    HiddenStates(request) = RandomTensor(shape, -1, 1, load_.dtype);
  }
  template <typename Request, typename Response>
  static absl::Status CheckCall(RepeatedCall<Request, Response>& call) {
    return CheckOutput(call.response.output(), HiddenStates(call.request));
  }

  const std::unique_ptr<v1::GdnService::Stub> stub_;
  const Workload load_;
  RepeatedCall<v1::DecodeRequest, v1::DecodeResponse> decode_, draft_;
  RepeatedCall<v1::AcceptTokensRequest, v1::AcceptTokensResponse> accept_;
  RepeatedCall<v1::PrefillRequest, v1::PrefillResponse> prefill_;
  Flight flight_;
  int64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<Caller> MakeWholeStepCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load,
                                            const std::vector<std::string>& sessions) {
  return std::make_unique<StepCaller>(channel, load, sessions);
}

std::unique_ptr<Caller> MakeSeparateCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load,
                                           const std::vector<std::string>& sessions) {
  return std::make_unique<SeparateCaller>(channel, load, sessions);
}

}  // namespace gdn::bench
