// Helpers for tests of the service: callers, requests of golden or random tokens, and comparisons of a session's state.
//
// Thread safety: a Caller is safe from any thread; the rest are plain values. Ownership: a Caller borrows its server.
//
//   TestServer server({.models = {{"next", GoldenPath("qwen3_next_1")}}});
//   Caller caller(server);
//   ASSERT_TRUE(caller.Create("a", "next").ok());
//   auto reply = caller.Prefill(PrefillOf("a", /*layer=*/0, GoldenInputs("qwen3_next_1", 0)));
#pragma once

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "tests/integration/support/test_server.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn {

// Largest relative error of a prompt in several calls, compared with a single prefill (promise 1 of the README).
inline constexpr double kSplitTolerance = 1e-5;

// A call's status and its reply.
template <typename Reply>
struct Outcome {
  grpc::Status status;
  Reply reply;

  bool ok() const { return status.ok(); }
  std::string reason() const { return ErrorInfoOf(status).reason(); }
  std::string metadata(const std::string& key) const {
    const google::rpc::ErrorInfo info = ErrorInfoOf(status);
    const auto it = info.metadata().find(key);
    return it == info.metadata().end() ? "(none)" : it->second;
  }
};

// Success if a call was refused for `reason`, with the reason's status code, a message and this metadata.
testing::AssertionResult RefusedAs(const grpc::Status& status, const std::string& reason,
                                   const std::map<std::string, std::string>& metadata = {});
template <typename Reply>
testing::AssertionResult RefusedAs(const Outcome<Reply>& outcome, const std::string& reason,
                                   const std::map<std::string, std::string>& metadata = {}) {
  return RefusedAs(outcome.status, reason, metadata);
}

// Runs a call, and repeats it for up to ten seconds while it fails with SESSION_MOVED.
template <typename Call>
auto SentAgain(const Call& call) {
  auto outcome = call();
  for (int i = 0; i < 1000 && outcome.reason() == "SESSION_MOVED"; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    outcome = call();
  }
  return outcome;
}

// Declares the reply of a call that must succeed; ends the test if it fails.
//
//   ASSERT_REPLY(const auto reply, caller.Decode(request));
#define ASSERT_REPLY(declaration, call) ASSERT_REPLY_INNER_(GDN_MACRO_CONCAT_(outcome_, __LINE__), declaration, call)
#define ASSERT_REPLY_INNER_(outcome, declaration, call)        \
  auto outcome = (call);                                       \
  ASSERT_TRUE(outcome.ok()) << outcome.status.error_message(); \
  declaration = std::move(outcome.reply)

// A call that must be refused. `field`: expected metadata "field", or "index" if it begins with "["; "": not checked.
struct BadCall {
  std::string name;
  std::string reason;
  std::string field;
  std::function<grpc::Status()> call;
};
// Checks that each call is refused, and that the result of everything() does not change.
void ExpectRefused(const std::vector<BadCall>& calls, const std::function<std::string()>& everything);

// A unary method of the stub.
template <typename Request, typename Response>
using UnaryMethod = grpc::Status (v1::GdnService::Stub::*)(grpc::ClientContext*, const Request&, Response*);

// Tokens of one sequence for one layer: [count, features].
struct Tokens {
  int64_t features = 0;
  std::vector<float> values;

  int64_t count() const { return static_cast<int64_t>(values.size()) / features; }
  Tokens Slice(int64_t first, int64_t count) const;
  Tokens Token(int64_t index) const { return Slice(index, 1); }
};

// Return one sequence of a golden set: the prompt, then the decode steps. A set "FOLDER/FILE" is a GGUF file.
Tokens GoldenInputs(const std::string& set, int layer, int sequence = 0);
Tokens GoldenOutputs(const std::string& set, int layer, int sequence = 0);
Tokens RandomTokens(int64_t count, uint64_t seed, int64_t features = 64);

v1::Tensor AsTensor(const std::vector<int64_t>& shape, const std::vector<float>& values,
                    v1::DType dtype = v1::DTYPE_F32);
// Returns the elements of a tensor of any dtype.
std::vector<float> Floats(const v1::Tensor& tensor);

// Make requests with hidden_states.
v1::PrefillRequest PrefillOf(const std::string& id, int layer, const Tokens& tokens, v1::DType dtype = v1::DTYPE_F32);
// Row i has the tokens rows[i]. Shorter rows are padded with 1e6, which tests would notice, and `lengths` is set.
v1::DecodeRequest DecodeOf(const std::vector<std::string>& ids, int layer, const std::vector<Tokens>& rows,
                           v1::DType dtype = v1::DTYPE_F32);
// Sets a decode's sessions and, if they differ, the rows' lengths. Row i has lengths[i] tokens. Returns the longest.
int64_t SetRows(const std::vector<std::string>& ids, const std::vector<int64_t>& lengths, v1::DecodeRequest& request);
// Makes a request that accepts the first accepted[i] tokens of session i's draft.
v1::AcceptTokensRequest AcceptOf(const std::vector<std::string>& ids, const std::vector<int>& accepted);
v1::ForkSessionRequest ForkOf(const std::string& id, const std::vector<std::string>& children);
// Makes a delta_rule input whose tensors have the leading dimensions `leading`; their product must be inputs.tokens.
v1::DeltaRuleInput DeltaRuleOf(const DeltaRuleInputs& inputs, const std::vector<int64_t>& leading);
// Makes a projected input of random values for the dims of set 1 (H = 2, HV = 4, K = V = 32).
v1::ProjectedInput RandomProjected(const std::vector<int64_t>& leading, uint64_t seed);
// H = 2, HV = 4, K = 16, V = 24.
v1::OperatorSpec SmallOperator(int layer_count = 1);
LayerDims SmallOperatorDims();

// Returns the request with this request_id.
template <typename Request>
Request WithId(Request request, const std::string& request_id) {
  request.set_request_id(request_id);
  return request;
}

// Sends the messages one after the other, each after the reply to the last one, and ends the stream. Returns one reply
// for each message. The test fails if the stream does.
template <typename Request, typename Response>
std::vector<Response> Converse(grpc::ClientReaderWriter<Request, Response>& stream,
                               const std::vector<Request>& messages) {
  std::vector<Response> replies(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) EXPECT_TRUE(stream.Write(messages[i]) && stream.Read(&replies[i])) << i;
  stream.WritesDone();
  EXPECT_TRUE(stream.Finish().ok());
  return replies;
}
v1::StreamDecodeRequest StreamStep(const v1::DecodeRequest& step);
// Returns the Step that does what a decode does whose rows have the same length.
v1::StepRequest AsStep(const v1::DecodeRequest& decode);
v1::StreamPrefillRequest StreamSegment(const v1::PrefillRequest& segment);

// Returns the bytes of row `row` of a [B, ..] tensor.
std::string RowBytes(const v1::Tensor& tensor, int64_t row);

// Makes calls of one principal. Each method waits for the reply. The environment's GDN_TEST_TRANSPORT says how steps
// and acceptances travel that have no context of their own: "ring", or "shared" for tensors in shared memory.
class ServiceCaller {
 public:
  explicit ServiceCaller(TestServer& server, std::string authorization = "");

  std::unique_ptr<grpc::ClientContext> NewContext() const;

  Outcome<v1::Session> Create(const v1::CreateSessionRequest& request) const;
  Outcome<v1::Session> Create(const std::string& id, const std::string& model) const;
  Outcome<v1::Session> CreateOperator(const std::string& id, const v1::OperatorSpec& spec) const;
  Outcome<v1::Session> Get(const std::string& id) const;
  Outcome<v1::ListSessionsResponse> List(int page_size, const std::string& page_token = "") const;
  // Lists the sessions of every caller.
  Outcome<v1::ListSessionsResponse> ListAll(int page_size, const std::string& page_token = "") const;
  Outcome<v1::DeleteSessionResponse> Delete(const std::string& id, const std::string& subject = "") const;
  Outcome<v1::Session> Evict(const std::string& id, v1::StateTier tier = v1::STATE_TIER_UNSPECIFIED,
                             const std::string& subject = "") const;
  Outcome<v1::GetMetricsResponse> Metrics() const;
  Outcome<v1::DrainProgress> Drain(bool wait) const;
  Outcome<v1::GetServerInfoResponse> Info() const;
  Outcome<v1::PrefillResponse> Prefill(const v1::PrefillRequest& request) const;
  Outcome<v1::PrefillResponse> Prefill(grpc::ClientContext& context, const v1::PrefillRequest& request) const;
  Outcome<v1::DecodeResponse> Decode(const v1::DecodeRequest& request) const;
  Outcome<v1::DecodeResponse> Decode(grpc::ClientContext& context, const v1::DecodeRequest& request) const;
  Outcome<v1::StepResponse> Step(const v1::StepRequest& request) const;
  Outcome<v1::StepResponse> Step(grpc::ClientContext& context, const v1::StepRequest& request) const;
  Outcome<std::string> Export(const v1::ExportStateRequest& request) const;
  Outcome<std::string> Export(const std::string& id, bool include_recurrent_state = false) const;
  // Sends the messages; with `end`, also ends the writes.
  Outcome<v1::Session> Import(const std::vector<v1::ImportStateRequest>& messages, bool end = true) const;
  Outcome<v1::Session> Import(const v1::ImportStateRequest::Target& target, const std::string& file) const;
  Outcome<v1::Session> Import(const std::string& id, const std::string& model, const std::string& file) const;
  Outcome<v1::ForkSessionResponse> Fork(const v1::ForkSessionRequest& request) const;
  Outcome<v1::ForkSessionResponse> Fork(const std::string& id, const std::vector<std::string>& children) const;
  Outcome<v1::AcceptTokensResponse> Accept(const v1::AcceptTokensRequest& request) const;
  // Accepts the first `accepted` tokens of one session's draft.
  Outcome<v1::AcceptTokensResponse> Accept(const std::string& id, int32_t accepted) const;
  Outcome<v1::Checkpoint> Checkpoint(const std::string& id, const std::string& checkpoint_id = "") const;
  Outcome<v1::ListCheckpointsResponse> Checkpoints(const std::string& id) const;
  Outcome<v1::DeleteCheckpointResponse> DeleteCheckpoint(const std::string& id, const std::string& checkpoint_id) const;
  Outcome<v1::Session> Restore(const std::string& id, const std::string& checkpoint_id = "") const;
  Outcome<v1::PrefetchSessionsResponse> Prefetch(const std::vector<std::string>& ids) const;

  // Returns the tokens that the layer has seen; -1 if there is no such session or layer.
  int64_t TokenCount(const std::string& id, int layer) const;
  // Returns everything that determines the session's next outputs, as text to compare: every layer's counts, log, draft
  // and kind, and shapes and digests of the exported state tensors. Stored replies, epoch and times are left out. On an
  // error, returns "" and fails the test.
  std::string State(const std::string& id) const;

  TestServer& server() const { return server_; }

 private:
  class Transport;

  template <typename Request, typename Response>
  Outcome<Response> Send(UnaryMethod<Request, Response> method, const Request& request) const;

  TestServer& server_;
  const std::string authorization_;
  const std::shared_ptr<Transport> transport_;  // shared by copies
};
// The server has a gdn::Caller of its own, so the class needs another name.
using Caller = ServiceCaller;

// Calls a unary method of the stub; Caller has shorter forms of some. The second form makes the context.
template <typename Request, typename Response>
Outcome<Response> Call(const Caller& caller, UnaryMethod<Request, Response> method, const Request& request,
                       grpc::ClientContext& context) {
  Outcome<Response> outcome;
  outcome.status = (caller.server().stub().*method)(&context, request, &outcome.reply);
  return outcome;
}
template <typename Request, typename Response>
Outcome<Response> Call(const Caller& caller, UnaryMethod<Request, Response> method, const Request& request) {
  return Call(caller, method, request, *caller.NewContext());
}

// Polls until `condition` is true. If that takes too long, returns false and fails the test with `what`.
bool WaitUntil(const std::function<bool()>& condition, const char* what);

// Waits until `calls` calls of the anonymous caller wait for the step in flight of (session, layer), including the one
// that computes it. If that takes too long, returns false and fails the test.
bool WaitForCalls(TestServer& server, const std::string& id, int layer, int calls);
// Waits until `steps` steps are in the engine's queue. If that takes too long, returns false and fails the test.
bool WaitForQueuedSteps(TestServer& server, size_t steps);

// Returns the status of grpc.health.v1.Health.Check: 1 SERVING, 2 NOT_SERVING; -1 if the call failed.
int HealthOf(TestServer& server, const std::string& service = "");

// Cancels the call and waits until the server must have noticed: it makes a later call on the same connection, and
// waits a little longer.
void CancelAndSettle(const Caller& caller, grpc::ClientContext& context);

}  // namespace gdn
