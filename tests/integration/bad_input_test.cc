// Every kind of bad input, over gRPC: the code, the reason, and that no state moved.

#include <google/protobuf/descriptor.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/service_helpers.h"

namespace gdn {
namespace {

constexpr int kHidden = 64;  // D of the golden qwen3_next_1
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> Values(size_t count, float value = 0.25f) { return std::vector<float>(count, value); }

v1::PrefillRequest HiddenPrefill(const std::string& session = "sessions/m1", int64_t tokens = 3) {
  v1::PrefillRequest request;
  request.set_session(session);
  *request.mutable_hidden_states()->mutable_hidden_states() =
      MakeTensor({tokens, kHidden}, Values(static_cast<size_t>(tokens * kHidden)));
  return request;
}

v1::DecodeRequest HiddenDecode(const std::vector<std::string>& sessions = {"sessions/m1", "sessions/m2"},
                               int64_t tokens = 1) {
  v1::DecodeRequest request;
  for (const std::string& session : sessions) request.add_sessions(session);
  const auto rows = static_cast<int64_t>(sessions.size());
  *request.mutable_hidden_states()->mutable_hidden_states() =
      MakeTensor({rows, tokens, kHidden}, Values(static_cast<size_t>(rows * tokens * kHidden)));
  return request;
}

// The operator session of the fixture has H = 1, HV = 2, K = 4, V = 3.
v1::PrefillRequest OperatorPrefill(int64_t tokens = 2) {
  v1::PrefillRequest request;
  request.set_session("sessions/op");
  v1::DeltaRuleInput* in = request.mutable_delta_rule();
  const auto n = static_cast<size_t>(tokens);
  *in->mutable_q() = MakeTensor({tokens, 1, 4}, Values(n * 4));
  *in->mutable_k() = MakeTensor({tokens, 1, 4}, Values(n * 4));
  *in->mutable_v() = MakeTensor({tokens, 2, 3}, Values(n * 6));
  *in->mutable_g() = MakeTensor({tokens, 2}, Values(n * 2, -0.1f));
  *in->mutable_beta() = MakeTensor({tokens, 2}, Values(n * 2, 0.5f));
  return request;
}

class BadInput : public testing::Test {
 protected:
  static TestServerOptions Options() {
    TestServerOptions options;
    options.models = {{"next", GoldenPath("qwen3_next_1")}};
    options.limits = {.max_message_bytes = 64 << 10, .max_draft = 4, .max_batch = 4, .max_stored_reply_bytes = 4 << 10};
    return options;
  }

  BadInput() : server_(Options()) {
    for (const char* id : {"m1", "m2"}) {
      v1::CreateSessionRequest request;
      request.set_session_id(id);
      request.set_model("models/next");
      EXPECT_TRUE(Create(request).ok());
      EXPECT_TRUE(Prefill(HiddenPrefill(std::string("sessions/") + id, 5)).ok());
    }
    v1::CreateSessionRequest request;
    request.set_session_id("op");
    v1::OperatorSpec* spec = request.mutable_operator_();
    spec->set_key_heads(1);
    spec->set_value_heads(2);
    spec->set_key_dim(4);
    spec->set_value_dim(3);
    EXPECT_TRUE(Create(request).ok());
    EXPECT_TRUE(Prefill(OperatorPrefill()).ok());
  }

  grpc::Status Create(const v1::CreateSessionRequest& request) {
    grpc::ClientContext context;
    v1::CreateSessionResponse response;
    return server_.stub().CreateSession(&context, request, &response);
  }
  grpc::Status Prefill(const v1::PrefillRequest& request) {
    grpc::ClientContext context;
    v1::PrefillResponse response;
    return server_.stub().Prefill(&context, request, &response);
  }
  grpc::Status Decode(const v1::DecodeRequest& request) {
    grpc::ClientContext context;
    v1::DecodeResponse response;
    return server_.stub().Decode(&context, request, &response);
  }

  // All that a session is: its counts and its state's bytes.
  std::string Fingerprint(const std::string& id) { return Caller(server_).State(id); }
  std::string AllFingerprints() { return Fingerprint("m1") + Fingerprint("m2") + Fingerprint("op"); }

  TestServer server_;
};

struct Case {
  std::string name;
  std::function<v1::PrefillRequest()> prefill;
  std::function<v1::DecodeRequest()> decode;
  grpc::StatusCode code;
  std::string reason;
  std::string field;  // expected metadata "field" or "index" content, "" = not looked at
};

template <typename Change>
std::function<v1::PrefillRequest()> P(Change change) {
  return [change] {
    v1::PrefillRequest request = HiddenPrefill();
    change(request);
    return request;
  };
}
template <typename Change>
std::function<v1::PrefillRequest()> Op(Change change) {
  return [change] {
    v1::PrefillRequest request = OperatorPrefill();
    change(request);
    return request;
  };
}
template <typename Change>
std::function<v1::DecodeRequest()> D(Change change) {
  return [change] {
    v1::DecodeRequest request = HiddenDecode();
    change(request);
    return request;
  };
}

v1::Tensor* Hidden(v1::PrefillRequest& r) { return r.mutable_hidden_states()->mutable_hidden_states(); }
v1::Tensor* Hidden(v1::DecodeRequest& r) { return r.mutable_hidden_states()->mutable_hidden_states(); }

const auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
const auto kPrecondition = grpc::StatusCode::FAILED_PRECONDITION;

std::vector<Case> Cases() {
  using PR = v1::PrefillRequest;
  using DR = v1::DecodeRequest;
  return {
      {"wrong rank", P([](PR& r) {
         *Hidden(r) = MakeTensor({1, 3, kHidden}, Values(3 * kHidden));
       }),
       nullptr, kInvalid, "INVALID_TENSOR_SHAPE", "hidden_states"},
      {"rank zero", P([](PR& r) { *Hidden(r) = MakeTensor({}, Values(1)); }), nullptr, kInvalid, "INVALID_TENSOR_SHAPE",
       "hidden_states"},
      {"wrong dimension", P([](PR& r) {
         *Hidden(r) = MakeTensor({3, 63}, Values(3 * 63));
       }),
       nullptr, kInvalid, "INVALID_TENSOR_SHAPE", "hidden_states"},
      {"negative dimension", P([](PR& r) { Hidden(r)->set_shape(0, -3); }), nullptr, kInvalid, "INVALID_TENSOR_SHAPE",
       "hidden_states"},
      {"no dtype", P([](PR& r) { Hidden(r)->set_dtype(v1::DTYPE_UNSPECIFIED); }), nullptr, kInvalid,
       "INVALID_TENSOR_DTYPE", "hidden_states"},
      {"unknown dtype", P([](PR& r) { Hidden(r)->set_dtype(static_cast<v1::DType>(77)); }), nullptr, kInvalid,
       "INVALID_TENSOR_DTYPE", "hidden_states"},
      {"unknown output dtype", P([](PR& r) { r.set_output_dtype(static_cast<v1::DType>(77)); }), nullptr, kInvalid,
       "INVALID_TENSOR_DTYPE", "output_dtype"},
      {"data too short", P([](PR& r) { Hidden(r)->mutable_data()->pop_back(); }), nullptr, kInvalid,
       "INVALID_TENSOR_DATA", "hidden_states"},
      {"data too long", P([](PR& r) { Hidden(r)->mutable_data()->push_back('x'); }), nullptr, kInvalid,
       "INVALID_TENSOR_DATA", "hidden_states"},
      {"data of another dtype", P([](PR& r) { Hidden(r)->set_dtype(v1::DTYPE_F16); }), nullptr, kInvalid,
       "INVALID_TENSOR_DATA", "hidden_states"},
      {"shape product overflows", P([](PR& r) { Hidden(r)->set_shape(0, int64_t{1} << 62); }), nullptr, kInvalid,
       "SHAPE_OVERFLOW", "hidden_states"},
      {"byte count overflows", P([](PR& r) { Hidden(r)->set_shape(0, int64_t{1} << 56); }), nullptr, kInvalid,
       "SHAPE_OVERFLOW", "hidden_states"},
      {"NaN", P([](PR& r) {
         auto values = Values(3 * kHidden);
         values[kHidden + 7] = kNaN;
         *Hidden(r) = MakeTensor({3, kHidden}, values);
       }),
       nullptr, kInvalid, "NON_FINITE_INPUT", "[1, 7]"},
      {"infinity in the second row", nullptr, D([](DR& r) {
         auto values = Values(2 * kHidden);
         values[kHidden + 63] = -kInf;
         *Hidden(r) = MakeTensor({2, 1, kHidden}, values);
       }),
       kInvalid, "NON_FINITE_INPUT", "[1, 0, 63]"},
      {"no input", P([](PR& r) { r.clear_input(); }), nullptr, kInvalid, "INPUT_MISSING", ""},
      {"decode without input", nullptr, D([](DR& r) { r.clear_input(); }), kInvalid, "INPUT_MISSING", ""},
      {"mixed input kinds", P([](PR& r) {
         v1::ProjectedInput* in = r.mutable_projected();  // D = 64, HV = 4, V = 32, C = 256
         *in->mutable_mixed_qkv() = MakeTensor({1, 256}, Values(256));
         *in->mutable_z() = MakeTensor({1, 128}, Values(128));
         *in->mutable_b() = MakeTensor({1, 4}, Values(4));
         *in->mutable_a() = MakeTensor({1, 4}, Values(4));
       }),
       nullptr, kPrecondition, "INPUT_KIND_MISMATCH", ""},
      {"hidden states to an operator session", P([](PR& r) { r.set_session("sessions/op"); }), nullptr, kPrecondition,
       "INPUT_NEEDS_MODEL", ""},
      {"unknown session", P([](PR& r) { r.set_session("sessions/nobody"); }), nullptr, grpc::StatusCode::NOT_FOUND,
       "SESSION_NOT_FOUND", ""},
      {"unknown session in a batch", nullptr, D([](DR& r) { r.set_sessions(1, "sessions/nobody"); }),
       grpc::StatusCode::NOT_FOUND, "SESSION_NOT_FOUND", ""},
      {"session without prefix", P([](PR& r) { r.set_session("m1"); }), nullptr, kInvalid, "INVALID_NAME", "session"},
      {"session with a slash", P([](PR& r) { r.set_session("sessions/a/b"); }), nullptr, kInvalid, "INVALID_NAME",
       "session"},
      {"empty session", P([](PR& r) { r.clear_session(); }), nullptr, kInvalid, "INVALID_NAME", "session"},
      {"full-attention layer", P([](PR& r) { r.set_layer(3); }), nullptr, kInvalid, "LAYER_NOT_GDN", ""},
      {"layer out of range", nullptr, D([](DR& r) { r.set_layer(400); }), kInvalid, "LAYER_NOT_GDN", ""},
      {"negative layer", P([](PR& r) { r.set_layer(-1); }), nullptr, kInvalid, "LAYER_NOT_GDN", ""},
      {"duplicate session in a batch", nullptr, D([](DR& r) { r.set_sessions(1, "sessions/m1"); }), kInvalid,
       "DUPLICATE_SESSION", ""},
      {"sessions of different specs", nullptr, D([](DR& r) { r.set_sessions(1, "sessions/op"); }), kInvalid,
       "MIXED_SESSIONS", ""},
      {"empty batch", nullptr, D([](DR& r) { r.clear_sessions(); }), kInvalid, "BATCH_TOO_LARGE", ""},
      {"batch over the limit", nullptr, [] { return HiddenDecode(std::vector<std::string>(5, "sessions/m1")); },
       kInvalid, "BATCH_TOO_LARGE", ""},
      {"batch and tensor disagree", nullptr, D([](DR& r) {
         *Hidden(r) = MakeTensor({3, 1, kHidden}, Values(3 * kHidden));
       }),
       kInvalid, "INVALID_TENSOR_SHAPE", "hidden_states"},
      {"decode of no tokens", nullptr, D([](DR& r) {
         *Hidden(r) = MakeTensor({2, 0, kHidden}, {});
       }),
       kInvalid, "TOO_MANY_TOKENS", ""},
      {"decode of more than max_draft", nullptr, [] { return HiddenDecode({"sessions/m1"}, 5); }, kInvalid,
       "TOO_MANY_TOKENS", ""},
      {"lengths of another size", nullptr, D([](DR& r) { r.add_lengths(1); }), kInvalid, "INVALID_LENGTHS", "lengths"},
      {"length over T", nullptr, D([](DR& r) { r.add_lengths(1), r.add_lengths(2); }), kInvalid, "INVALID_LENGTHS",
       "lengths"},
      {"negative length", nullptr, D([](DR& r) { r.add_lengths(-1), r.add_lengths(1); }), kInvalid, "INVALID_LENGTHS",
       "lengths"},
      {"expected counts of another size", nullptr, D([](DR& r) { r.add_expected_token_counts(5); }), kInvalid,
       "INVALID_LENGTHS", "expected_token_counts"},
      {"token count mismatch", P([](PR& r) { r.set_expected_token_count(4); }), nullptr, grpc::StatusCode::ABORTED,
       "TOKEN_COUNT_MISMATCH", ""},
      {"token count mismatch of one row", nullptr,
       D([](DR& r) { r.add_expected_token_counts(5), r.add_expected_token_counts(6); }), grpc::StatusCode::ABORTED,
       "TOKEN_COUNT_MISMATCH", ""},
      {"epochs of another size", nullptr, D([](DR& r) { r.add_session_epochs(1); }), kInvalid, "INVALID_LENGTHS",
       "session_epochs"},
      {"another epoch", P([](PR& r) { r.set_session_epoch(2); }), nullptr, grpc::StatusCode::ABORTED, "EPOCH_MISMATCH",
       ""},
      {"another epoch of one row", nullptr, D([](DR& r) { r.add_session_epochs(1), r.add_session_epochs(0); }),
       grpc::StatusCode::ABORTED, "EPOCH_MISMATCH", ""},
      {"request id with a space", P([](PR& r) { r.set_request_id("a b"); }), nullptr, kInvalid, "INVALID_NAME",
       "request_id"},
      {"request id too long", P([](PR& r) { r.set_request_id(std::string(65, 'a')); }), nullptr, kInvalid,
       "INVALID_NAME", "request_id"},
      {"reply too large to keep",
       [] {
         v1::PrefillRequest r = HiddenPrefill("sessions/m1", 17);  // 17 * 64 * 4 bytes > 4 KiB
         r.set_request_id("big");
         return r;
       },
       nullptr, kInvalid, "REPLY_TOO_LARGE_TO_STORE", ""},
      {"message over the limit", [] { return HiddenPrefill("sessions/m1", 300); }, nullptr,
       grpc::StatusCode::RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE", ""},
      {"q of a wrong head count", Op([](PR& r) {
         *r.mutable_delta_rule()->mutable_q() = MakeTensor({2, 2, 4}, Values(16));
       }),
       nullptr, kInvalid, "INVALID_TENSOR_SHAPE", "q"},
      {"k of another length than q", Op([](PR& r) {
         *r.mutable_delta_rule()->mutable_k() = MakeTensor({3, 1, 4}, Values(12));
       }),
       nullptr, kInvalid, "INVALID_TENSOR_SHAPE", "k"},
      {"v missing", Op([](PR& r) { r.mutable_delta_rule()->clear_v(); }), nullptr, kInvalid, "INVALID_TENSOR_DTYPE",
       "v"},
      {"v of another dtype than q", Op([](PR& r) {
         v1::Tensor* v = r.mutable_delta_rule()->mutable_v();
         v->set_dtype(v1::DTYPE_BF16);
         v->set_data(std::string(24, '\0'));
       }),
       nullptr, kInvalid, "INVALID_TENSOR_DTYPE", "v"},
      {"g above zero", Op([](PR& r) {
         *r.mutable_delta_rule()->mutable_g() = MakeTensor({2, 2}, {-1.0f, 0.0f, -1.0f, 0.001f});
       }),
       nullptr, kInvalid, "VALUE_OUT_OF_RANGE", "[1, 1]"},
      {"beta above one", Op([](PR& r) {
         *r.mutable_delta_rule()->mutable_beta() = MakeTensor({2, 2}, {0.5f, 1.5f, 0.0f, 1.0f});
       }),
       nullptr, kInvalid, "VALUE_OUT_OF_RANGE", "[0, 1]"},
      {"beta below zero", Op([](PR& r) {
         *r.mutable_delta_rule()->mutable_beta() = MakeTensor({2, 2}, {0.5f, 0.5f, -0.1f, 1.0f});
       }),
       nullptr, kInvalid, "VALUE_OUT_OF_RANGE", "[1, 0]"},
      {"beta above two where two is allowed", Op([](PR& r) {
         r.mutable_delta_rule()->set_allow_beta_to_two(true);
         *r.mutable_delta_rule()->mutable_beta() = MakeTensor({2, 2}, {2.0f, 1.5f, 2.5f, 1.0f});
       }),
       nullptr, kInvalid, "VALUE_OUT_OF_RANGE", "[1, 0]"},
      {"scale that is not finite", Op([](PR& r) { r.mutable_delta_rule()->set_scale(kInf); }), nullptr, kInvalid,
       "VALUE_OUT_OF_RANGE", "scale"},
  };
}

TEST_F(BadInput, IsRefusedWithItsReasonAndMovesNoState) {
  const std::string before = AllFingerprints();
  const std::vector<Case> cases = Cases();
  ASSERT_GE(cases.size(), 30u);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const grpc::Status status = c.prefill ? Prefill(c.prefill()) : Decode(c.decode());
    EXPECT_EQ(status.error_code(), c.code) << status.error_message();
    EXPECT_FALSE(status.error_message().empty());
    const google::rpc::ErrorInfo info = ErrorInfoOf(status);
    EXPECT_EQ(info.reason(), c.reason) << status.error_message();
    EXPECT_EQ(info.domain(), "gdn.v1");
    if (!c.field.empty()) {
      const auto& metadata = info.metadata();
      const std::string key = c.field[0] == '[' ? "index" : "field";
      ASSERT_EQ(metadata.count(key), 1u) << status.error_message();
      EXPECT_EQ(metadata.at(key), c.field);
    }
    EXPECT_EQ(AllFingerprints(), before);
  }
}

// The same step right after shows that the refusals above were not for another cause.
TEST_F(BadInput, IsNotSeenWhereThereIsNone) {
  EXPECT_TRUE(Prefill(HiddenPrefill()).ok());
  EXPECT_TRUE(Decode(HiddenDecode()).ok());
  EXPECT_TRUE(Prefill(OperatorPrefill()).ok());
}

TEST_F(BadInput, NonFiniteValuesPassWhereTheyAreAllowedAndStayInTheirSession) {
  v1::DecodeRequest request = HiddenDecode();
  auto values = Values(2 * kHidden);
  values[0] = kNaN;
  *Hidden(request) = MakeTensor({2, 1, kHidden}, values);
  request.set_allow_non_finite(true);
  grpc::ClientContext context;
  v1::DecodeResponse response;
  ASSERT_TRUE(server_.stub().Decode(&context, request, &response).ok());
  const std::vector<float> output = TensorFloats(response.output());
  EXPECT_TRUE(std::isnan(output[0]));
  for (size_t i = kHidden; i < output.size(); ++i) EXPECT_TRUE(std::isfinite(output[i])) << i;
}

TEST_F(BadInput, RequestIdIsAnsweredFromTheStoreAndRefusedForAnotherPayload) {
  v1::PrefillRequest request = HiddenPrefill();
  request.set_request_id("step-1");
  grpc::ClientContext first_context;
  v1::PrefillResponse first;
  ASSERT_TRUE(server_.stub().Prefill(&first_context, request, &first).ok());
  const std::string after_first = AllFingerprints();
  grpc::ClientContext second_context;
  v1::PrefillResponse second;
  ASSERT_TRUE(server_.stub().Prefill(&second_context, request, &second).ok());
  EXPECT_EQ(second.SerializeAsString(), first.SerializeAsString());
  EXPECT_EQ(AllFingerprints(), after_first);

  v1::PrefillRequest other = HiddenPrefill("sessions/m1", 2);
  other.set_request_id("step-1");
  const grpc::Status status = Prefill(other);
  EXPECT_EQ(status.error_code(), kInvalid);
  EXPECT_EQ(ErrorInfoOf(status).reason(), "REQUEST_ID_REUSED");
  EXPECT_EQ(AllFingerprints(), after_first);
}

TEST_F(BadInput, BusySessionIsRefusedAndTheRunningStepIsNotDisturbed) {
  const std::string before = Fingerprint("m2");
  EngineBlocker blocker(server_.batcher());
  grpc::Status running;
  std::thread other([&] { running = Prefill(HiddenPrefill("sessions/m1", 2)); });
  EXPECT_TRUE(WaitForCalls(server_, "m1", /*layer=*/0, /*calls=*/1));
  const grpc::Status status = Decode(HiddenDecode());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ErrorInfoOf(status).reason(), "SESSION_BUSY");
  EXPECT_EQ(ErrorInfoOf(status).metadata().at("session"), "sessions/m1");
  blocker.Release();
  other.join();
  EXPECT_TRUE(running.ok()) << running.error_message();
  EXPECT_EQ(Caller(server_).TokenCount("m1", 0), 7);
  EXPECT_EQ(Fingerprint("m2"), before);
}

// Reflection serves what the program has linked in; a file without messages is easily dropped.
TEST(Reflection, KnowsTheServiceAndItsMethods) {
  const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("gdn.v1.GdnService");
  ASSERT_NE(service, nullptr);
  EXPECT_NE(service->FindMethodByName("StreamDecode"), nullptr);
}

}  // namespace
}  // namespace gdn
