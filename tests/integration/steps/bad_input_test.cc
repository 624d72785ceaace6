// Every kind of bad input, over gRPC: the code, the reason, and that no state moved.

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"

namespace gdn::bad_input_test {
namespace {

constexpr int kHidden = 64;  // D of the golden qwen3_next_1
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> Values(size_t count, float value = 0.25f) { return std::vector<float>(count, value); }

// A tensor of that shape.
template <typename... Dims>
v1::Tensor Shaped(Dims... dims) {
  return AsTensor({dims...}, Values((size_t{1} * ... * static_cast<size_t>(dims))));
}

v1::Tensor* Hidden(v1::PrefillRequest& r) { return r.mutable_hidden_states()->mutable_hidden_states(); }
v1::Tensor* Hidden(v1::DecodeRequest& r) { return r.mutable_hidden_states()->mutable_hidden_states(); }

v1::PrefillRequest HiddenPrefill(const std::string& session = "sessions/m1", int64_t tokens = 3) {
  v1::PrefillRequest request;
  request.set_session(session);
  *Hidden(request) = Shaped(tokens, kHidden);
  return request;
}

v1::DecodeRequest HiddenDecode(const std::vector<std::string>& sessions = {"sessions/m1", "sessions/m2"},
                               int64_t tokens = 1) {
  v1::DecodeRequest request;
  for (const std::string& session : sessions) request.add_sessions(session);
  const auto rows = static_cast<int64_t>(sessions.size());
  *Hidden(request) = Shaped(rows, tokens, kHidden);
  return request;
}

v1::Tensor* Hidden(v1::StepRequest& r) { return r.mutable_hidden_states()->mutable_hidden_states(); }

v1::StepRow* AddRow(v1::StepRequest& r, const std::string& session, v1::StepKind kind, int32_t tokens) {
  v1::StepRow* const row = r.add_rows();
  row->set_session(session);
  row->set_kind(kind);
  row->set_token_count(tokens);
  return row;
}

// A decode of one token and a prefill of three.
v1::StepRequest HiddenStep() {
  v1::StepRequest request;
  AddRow(request, "sessions/m1", v1::STEP_KIND_DECODE, 1);
  AddRow(request, "sessions/m2", v1::STEP_KIND_PREFILL, 3);
  *Hidden(request) = Shaped(4, kHidden);
  return request;
}

// The operator session of the fixture has H = 1, HV = 2, K = 4, V = 3.
v1::PrefillRequest OperatorPrefill(int64_t tokens = 2) {
  v1::PrefillRequest request;
  request.set_session("sessions/op");
  v1::DeltaRuleInput* in = request.mutable_delta_rule();
  const auto n = static_cast<size_t>(tokens);
  *in->mutable_q() = Shaped(tokens, 1, 4);
  *in->mutable_k() = Shaped(tokens, 1, 4);
  *in->mutable_v() = Shaped(tokens, 2, 3);
  *in->mutable_g() = AsTensor({tokens, 2}, Values(n * 2, -0.1f));
  *in->mutable_beta() = AsTensor({tokens, 2}, Values(n * 2, 0.5f));
  return request;
}

class BadInput : public testing::Test {
 protected:
  static GdnServerOptions Options() {
    return {
        .models = {{"next", GoldenPath("qwen3_next_1")}},
        .limits = {.max_message_bytes = 64 << 10, .max_draft = 4, .max_batch = 4, .max_stored_reply_bytes = 4 << 10}};
  }

  void SetUp() override {
    for (const char* id : {"m1", "m2"}) {
      ASSERT_TRUE(caller_.Create(id, "next").ok());
      ASSERT_TRUE(caller_.Prefill(HiddenPrefill(std::string("sessions/") + id, 5)).ok());
    }
    v1::OperatorSpec spec;
    spec.set_key_heads(1);
    spec.set_value_heads(2);
    spec.set_key_dim(4);
    spec.set_value_dim(3);
    ASSERT_TRUE(caller_.CreateOperator("op", spec).ok());
    ASSERT_TRUE(caller_.Prefill(OperatorPrefill()).ok());
  }

  // All that the sessions are: their counts and their states' bytes.
  std::string AllFingerprints() const { return caller_.State("m1") + caller_.State("m2") + caller_.State("op"); }

  // The call of a good request that `change` has made bad: a prefill of hidden states or only its tensor, a decode of
  // two rows of them, or the input of a prefill of the operator.
  using Text = const char*;
  BadCall Bad(Text name, Text reason, Text field, const std::function<void(v1::PrefillRequest&)>& change) const {
    return {name, reason, field, [this, r = Changed(HiddenPrefill(), change)] { return caller_.Prefill(r).status; }};
  }
  BadCall Bad(Text name, Text reason, Text field, const std::function<void(v1::Tensor&)>& change) const {
    return Bad(name, reason, field, [&](v1::PrefillRequest& r) { change(*Hidden(r)); });
  }
  BadCall Bad(Text name, Text reason, Text field, const std::function<void(v1::DecodeRequest&)>& change) const {
    return {name, reason, field, [this, r = Changed(HiddenDecode(), change)] { return caller_.Decode(r).status; }};
  }
  BadCall Bad(Text name, Text reason, Text field, const std::function<void(v1::StepRequest&)>& change) const {
    return {name, reason, field, [this, r = Changed(HiddenStep(), change)] { return caller_.Step(r).status; }};
  }
  BadCall Bad(Text name, Text reason, Text field, const std::function<void(v1::DeltaRuleInput&)>& change) const {
    return Bad(name, reason, field, [&](v1::PrefillRequest& r) {
      r = OperatorPrefill();
      change(*r.mutable_delta_rule());
    });
  }
  template <typename Request, typename Change>
  static Request Changed(Request request, Change change) {
    change(request);
    return request;
  }
  std::vector<BadCall> Cases() const;

  mutable TestServer server_{Options()};
  const Caller caller_{server_};
};

// NOLINTNEXTLINE(readability-function-size): a table.
std::vector<BadCall> BadInput::Cases() const {
  using PR = v1::PrefillRequest;
  using DR = v1::DecodeRequest;
  using Rule = v1::DeltaRuleInput;
  using Tensor = v1::Tensor;
  return {
      Bad("wrong rank", "INVALID_TENSOR_SHAPE", "hidden_states", [](Tensor& t) { t = Shaped(1, 3, kHidden); }),
      Bad("rank zero", "INVALID_TENSOR_SHAPE", "hidden_states", [](Tensor& t) { t = AsTensor({}, Values(1)); }),
      Bad("wrong dimension", "INVALID_TENSOR_SHAPE", "hidden_states", [](Tensor& t) { t = Shaped(3, 63); }),
      Bad("negative dimension", "INVALID_TENSOR_SHAPE", "hidden_states", [](Tensor& t) { t.set_shape(0, -3); }),
      Bad("no dtype", "INVALID_TENSOR_DTYPE", "hidden_states", [](Tensor& t) { t.set_dtype(v1::DTYPE_UNSPECIFIED); }),
      Bad("unknown dtype", "INVALID_TENSOR_DTYPE", "hidden_states",
          [](Tensor& t) { t.set_dtype(static_cast<v1::DType>(77)); }),
      Bad("unknown output dtype", "INVALID_TENSOR_DTYPE", "output_dtype",
          [](PR& r) { r.set_output_dtype(static_cast<v1::DType>(77)); }),
      Bad("data too short", "INVALID_TENSOR_DATA", "hidden_states", [](Tensor& t) { t.mutable_data()->pop_back(); }),
      Bad("data too long", "INVALID_TENSOR_DATA", "hidden_states", [](Tensor& t) { t.mutable_data()->push_back('x'); }),
      Bad("data of another dtype", "INVALID_TENSOR_DATA", "hidden_states",
          [](Tensor& t) { t.set_dtype(v1::DTYPE_F16); }),
      Bad("shape product overflows", "SHAPE_OVERFLOW", "hidden_states",
          [](Tensor& t) { t.set_shape(0, int64_t{1} << 62); }),
      Bad("byte count overflows", "SHAPE_OVERFLOW", "hidden_states",
          [](Tensor& t) { t.set_shape(0, int64_t{1} << 56); }),
      Bad("NaN", "NON_FINITE_INPUT", "[1, 7]",
          [](Tensor& t) {
            auto values = Values(3 * kHidden);
            values[kHidden + 7] = kNaN;
            t = AsTensor({3, kHidden}, values);
          }),
      Bad("infinity in the second row", "NON_FINITE_INPUT", "[1, 0, 63]",
          [](DR& r) {
            auto values = Values(2 * kHidden);
            values[kHidden + 63] = -kInf;
            *Hidden(r) = AsTensor({2, 1, kHidden}, values);
          }),
      Bad("no input", "INPUT_MISSING", "", [](PR& r) { r.clear_input(); }),
      Bad("decode without input", "INPUT_MISSING", "", [](DR& r) { r.clear_input(); }),
      Bad("mixed input kinds", "INPUT_KIND_MISMATCH", "",
          [](PR& r) {
            v1::ProjectedInput* in = r.mutable_projected();  // D = 64, HV = 4, V = 32, C = 256
            *in->mutable_mixed_qkv() = Shaped(1, 256);
            *in->mutable_z() = Shaped(1, 128);
            *in->mutable_b() = Shaped(1, 4);
            *in->mutable_a() = Shaped(1, 4);
          }),
      Bad("hidden states to an operator session", "INPUT_NEEDS_MODEL", "", [](PR& r) { r.set_session("sessions/op"); }),
      Bad("unknown session", "SESSION_NOT_FOUND", "", [](PR& r) { r.set_session("sessions/nobody"); }),
      Bad("unknown session in a batch", "SESSION_NOT_FOUND", "", [](DR& r) { r.set_sessions(1, "sessions/nobody"); }),
      Bad("session without prefix", "INVALID_NAME", "session", [](PR& r) { r.set_session("m1"); }),
      Bad("session with a slash", "INVALID_NAME", "session", [](PR& r) { r.set_session("sessions/a/b"); }),
      Bad("empty session", "INVALID_NAME", "session", [](PR& r) { r.clear_session(); }),
      Bad("full-attention layer", "LAYER_NOT_GDN", "", [](PR& r) { r.set_layer(3); }),
      Bad("layer out of range", "LAYER_NOT_GDN", "", [](DR& r) { r.set_layer(400); }),
      Bad("negative layer", "LAYER_NOT_GDN", "", [](PR& r) { r.set_layer(-1); }),
      Bad("duplicate session in a batch", "DUPLICATE_SESSION", "", [](DR& r) { r.set_sessions(1, "sessions/m1"); }),
      Bad("sessions of different specs", "MIXED_SESSIONS", "", [](DR& r) { r.set_sessions(1, "sessions/op"); }),
      Bad("empty batch", "BATCH_TOO_LARGE", "", [](DR& r) { r.clear_sessions(); }),
      Bad("batch over the limit", "BATCH_TOO_LARGE", "",
          [](DR& r) { r = HiddenDecode(std::vector<std::string>(5, "sessions/m1")); }),
      Bad("batch and tensor disagree", "INVALID_TENSOR_SHAPE", "hidden_states",
          [](DR& r) { *Hidden(r) = Shaped(3, 1, kHidden); }),
      Bad("decode of no tokens", "TOO_MANY_TOKENS", "",
          [](DR& r) {
            *Hidden(r) = AsTensor({2, 0, kHidden}, {});
          }),
      Bad("decode of more than max_draft", "TOO_MANY_TOKENS", "", [](DR& r) { r = HiddenDecode({"sessions/m1"}, 5); }),
      Bad("lengths of another size", "INVALID_LENGTHS", "lengths", [](DR& r) { r.add_lengths(1); }),
      Bad("length over T", "INVALID_LENGTHS", "lengths", [](DR& r) { r.add_lengths(1), r.add_lengths(2); }),
      Bad("negative length", "INVALID_LENGTHS", "lengths", [](DR& r) { r.add_lengths(-1), r.add_lengths(1); }),
      Bad("expected counts of another size", "INVALID_LENGTHS", "expected_token_counts",
          [](DR& r) { r.add_expected_token_counts(5); }),
      Bad("token count mismatch", "TOKEN_COUNT_MISMATCH", "", [](PR& r) { r.set_expected_token_count(4); }),
      Bad("token count mismatch of one row", "TOKEN_COUNT_MISMATCH", "",
          [](DR& r) { r.add_expected_token_counts(5), r.add_expected_token_counts(6); }),
      Bad("epochs of another size", "INVALID_LENGTHS", "session_epochs", [](DR& r) { r.add_session_epochs(1); }),
      Bad("another epoch", "EPOCH_MISMATCH", "", [](PR& r) { r.set_session_epoch(2); }),
      Bad("another epoch of one row", "EPOCH_MISMATCH", "",
          [](DR& r) { r.add_session_epochs(1), r.add_session_epochs(0); }),
      Bad("request id with a space", "INVALID_NAME", "request_id", [](PR& r) { r.set_request_id("a b"); }),
      Bad("request id too long", "INVALID_NAME", "request_id", [](PR& r) { r.set_request_id(std::string(65, 'a')); }),
      Bad("message over the limit", "MESSAGE_TOO_LARGE", "", [](PR& r) { r = HiddenPrefill("sessions/m1", 300); }),
      Bad("q of a wrong head count", "INVALID_TENSOR_SHAPE", "q", [](Rule& in) { *in.mutable_q() = Shaped(2, 2, 4); }),
      Bad("k of another length than q", "INVALID_TENSOR_SHAPE", "k",
          [](Rule& in) { *in.mutable_k() = Shaped(3, 1, 4); }),
      Bad("v missing", "INVALID_TENSOR_DTYPE", "v", [](Rule& in) { in.clear_v(); }),
      Bad("v of another dtype than q", "INVALID_TENSOR_DTYPE", "v",
          [](Rule& in) {
            v1::Tensor* v = in.mutable_v();
            v->set_dtype(v1::DTYPE_BF16);
            v->set_data(std::string(24, '\0'));
          }),
      Bad("g above zero", "VALUE_OUT_OF_RANGE", "[1, 1]",
          [](Rule& in) {
            *in.mutable_g() = AsTensor({2, 2}, {-1.0f, 0.0f, -1.0f, 0.001f});
          }),
      Bad("beta above one", "VALUE_OUT_OF_RANGE", "[0, 1]",
          [](Rule& in) {
            *in.mutable_beta() = AsTensor({2, 2}, {0.5f, 1.5f, 0.0f, 1.0f});
          }),
      Bad("beta below zero", "VALUE_OUT_OF_RANGE", "[1, 0]",
          [](Rule& in) {
            *in.mutable_beta() = AsTensor({2, 2}, {0.5f, 0.5f, -0.1f, 1.0f});
          }),
      Bad("beta above two where two is allowed", "VALUE_OUT_OF_RANGE", "[1, 0]",
          [](Rule& in) {
            in.set_allow_beta_to_two(true);
            *in.mutable_beta() = AsTensor({2, 2}, {2.0f, 1.5f, 2.5f, 1.0f});
          }),
      Bad("scale that is not finite", "VALUE_OUT_OF_RANGE", "scale", [](Rule& in) { in.set_scale(kInf); }),
  };
}

TEST_F(BadInput, IsRefusedWithItsReasonAndMovesNoState) {
  const std::vector<BadCall> cases = Cases();
  ASSERT_GE(cases.size(), 30u);
  ExpectRefused(cases, [this] { return AllFingerprints(); });
}

// Fields of a Step that no client would send: negative, huge, absurd. All are refused before anything is allocated.
TEST_F(BadInput, OfAStepIsRefusedWithItsReasonAndMovesNoState) {
  using SR = v1::StepRequest;
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  ASSERT_TRUE(caller_.Create("m3", "next").ok());
  const auto row = [](SR& r, int i) { return r.mutable_rows(i); };
  const auto accept = [&](SR& r, int i) { return row(r, i)->mutable_accept_before(); };
  const auto draft = [](SR& r, const std::vector<int32_t>& parents, int32_t tokens) {
    r.clear_rows();
    AddRow(r, "sessions/m1", v1::STEP_KIND_DRAFT, tokens)->mutable_draft_parents()->Add(parents.begin(), parents.end());
    *Hidden(r) = Shaped(tokens, kHidden);
  };
  std::vector<BadCall> cases = {
      Bad("unknown session", "SESSION_NOT_FOUND", "", [&](SR& r) { row(r, 1)->set_session("sessions/nobody"); }),
      Bad("session without prefix", "INVALID_NAME", "session", [&](SR& r) { row(r, 0)->set_session("m1"); }),
      Bad("empty session", "INVALID_NAME", "session", [&](SR& r) { row(r, 0)->clear_session(); }),
      Bad("sessions of different specs", "MIXED_SESSIONS", "", [&](SR& r) { row(r, 1)->set_session("sessions/op"); }),
      Bad("a session twice", "DUPLICATE_SESSION", "", [&](SR& r) { row(r, 1)->set_session("sessions/m1"); }),
      Bad("rows over the limit", "BATCH_TOO_LARGE", "",
          [](SR& r) {
            for (int i = 0; i < 3; ++i) AddRow(r, "sessions/x" + std::to_string(i), v1::STEP_KIND_DECODE, 0);
          }),
      Bad("full-attention layer", "LAYER_NOT_GDN", "", [](SR& r) { r.set_layer(3); }),
      Bad("negative layer", "LAYER_NOT_GDN", "", [](SR& r) { r.set_layer(std::numeric_limits<int32_t>::min()); }),
      Bad("message over the limit", "MESSAGE_TOO_LARGE", "",
          [&](SR& r) {
            row(r, 1)->set_token_count(300);
            *Hidden(r) = Shaped(301, kHidden);
          }),
      Bad("decode over max_draft", "TOO_MANY_TOKENS", "",
          [&](SR& r) {
            row(r, 0)->set_token_count(5);
            *Hidden(r) = Shaped(8, kHidden);
          }),
      Bad("negative kind", "VALUE_OUT_OF_RANGE", "rows[1].kind",
          [&](SR& r) { row(r, 1)->set_kind(static_cast<v1::StepKind>(-1)); }),
      Bad("least length", "INVALID_LENGTHS", "rows[1].token_count",
          [&](SR& r) { row(r, 1)->set_token_count(std::numeric_limits<int32_t>::min()); }),
      Bad("lengths whose 32-bit sum is right", "INVALID_TENSOR_SHAPE", "hidden_states",
          [&](SR& r) {
            r.clear_rows();
            AddRow(r, "sessions/m1", v1::STEP_KIND_PREFILL, kMost);
            AddRow(r, "sessions/m2", v1::STEP_KIND_PREFILL, kMost);
            AddRow(r, "sessions/m3", v1::STEP_KIND_PREFILL, 6);  // 2^32 + 4
          }),
      Bad("a shape of as many tokens", "INVALID_TENSOR_DATA", "hidden_states",
          [&](SR& r) {
            row(r, 1)->set_token_count(kMost);
            Hidden(r)->set_shape(0, int64_t{kMost} + 1);
          }),
      Bad("tensor of decodes", "INVALID_TENSOR_SHAPE", "hidden_states",
          [](SR& r) { *Hidden(r) = Shaped(4, 1, kHidden); }),
      Bad("value that is no number in the second row", "NON_FINITE_INPUT", "",
          [](SR& r) {
            std::vector<float> values = Values(size_t{4} * kHidden);
            values.back() = kNaN;
            *Hidden(r) = AsTensor({4, kHidden}, values);
          }),
      Bad("request id with a space", "INVALID_NAME", "request_id", [](SR& r) { r.set_request_id("a b"); }),
      Bad("another token count", "TOKEN_COUNT_MISMATCH", "", [&](SR& r) { row(r, 1)->set_expected_token_count(4); }),
      Bad("least token count", "TOKEN_COUNT_MISMATCH", "",
          [&](SR& r) { row(r, 1)->set_expected_token_count(std::numeric_limits<int64_t>::min()); }),
      Bad("another epoch", "EPOCH_MISMATCH", "", [&](SR& r) { row(r, 1)->set_session_epoch(-7); }),
      Bad("parents of a prefill", "INVALID_LENGTHS", "rows[1].draft_parents",
          [&](SR& r) {
            for (int i = -1; i < 2; ++i) row(r, 1)->add_draft_parents(i);
          }),
      Bad("a parent below -1", "VALUE_OUT_OF_RANGE", "",
          [&](SR& r) {
            draft(r, {-1, -2, 0}, 3);
          }),
      Bad("a parent behind its token", "VALUE_OUT_OF_RANGE", "",
          [&](SR& r) {
            draft(r, {-1, 1, 0}, 3);
          }),
      Bad("the greatest parent", "VALUE_OUT_OF_RANGE", "",
          [&](SR& r) {
            draft(r, {-1, kMost, 0}, 3);
          }),
      Bad("the least parent", "VALUE_OUT_OF_RANGE", "",
          [&](SR& r) {
            draft(r, {std::numeric_limits<int32_t>::min(), 0, 0}, 3);
          }),
      Bad("negative acceptance", "TOO_MANY_TOKENS", "", [&](SR& r) { accept(r, 0)->set_accepted_tokens(-1); }),
      Bad("least acceptance", "TOO_MANY_TOKENS", "",
          [&](SR& r) { accept(r, 0)->set_accepted_tokens(std::numeric_limits<int32_t>::min()); }),
      Bad("an acceptance over max_draft", "TOO_MANY_TOKENS", "", [&](SR& r) { accept(r, 0)->set_accepted_tokens(5); }),
      Bad("the greatest acceptance", "TOO_MANY_TOKENS", "", [&](SR& r) { accept(r, 0)->set_accepted_tokens(kMost); }),
      Bad("a path and a number", "INVALID_LENGTHS", "path",
          [&](SR& r) {
            accept(r, 1)->set_accepted_tokens(1);
            accept(r, 1)->add_path(0);
          }),
      Bad("a long path", "TOO_MANY_TOKENS", "",
          [&](SR& r) {
            for (int i = 0; i < 5; ++i) accept(r, 1)->add_path(i);
          }),
  };
  ExpectRefused(cases, [this] { return AllFingerprints(); });

  // Paths that a pending draft does not have, each as a step of its own and as the second row of one.
  SR pending;
  draft(pending, {-1, 0, 0}, 3);
  ASSERT_TRUE(caller_.Step(pending).ok());
  cases.clear();
  const std::vector<std::vector<int32_t>> paths = {
      {-1}, {1}, {0, 3}, {0, kMost}, {std::numeric_limits<int32_t>::min()}, {0, 0}, {0, 1, 2}, {2, 0}};
  for (const std::vector<int32_t>& path : paths) {
    for (const v1::StepKind kind : {v1::STEP_KIND_DECODE, v1::STEP_KIND_DRAFT, v1::STEP_KIND_PREFILL}) {
      SR request;
      AddRow(request, "sessions/m2", v1::STEP_KIND_DECODE, 1);
      AddRow(request, "sessions/m1", kind, 1)->mutable_accept_before()->mutable_path()->Add(path.begin(), path.end());
      *Hidden(request) = Shaped(2, kHidden);
      cases.push_back({"path " + testing::PrintToString(path), "VALUE_OUT_OF_RANGE", "",
                       [this, request] { return caller_.Step(request).status; }});
    }
  }
  ExpectRefused(cases, [this] { return AllFingerprints(); });
}

// A retry's hash names each accepted token, so an absurd number must be refused before it.
TEST_F(BadInput, OfAnAcceptanceIsRefusedBeforeItsIdIsLookedAt) {
  v1::StepRequest request = HiddenStep();
  request.set_request_id("id");
  request.mutable_rows(1)->mutable_accept_before()->set_accepted_tokens(std::numeric_limits<int32_t>::max());
  EXPECT_TRUE(RefusedAs(caller_.Step(request), "TOO_MANY_TOKENS"));
  request.mutable_rows(1)->clear_accept_before();
  EXPECT_TRUE(caller_.Step(request).ok());
}

// The same step right after shows that the refusals above were not for another cause.
TEST_F(BadInput, IsNotSeenWhereThereIsNone) {
  EXPECT_TRUE(caller_.Prefill(HiddenPrefill()).ok());
  EXPECT_TRUE(caller_.Decode(HiddenDecode()).ok());
  EXPECT_TRUE(caller_.Step(HiddenStep()).ok());
  EXPECT_TRUE(caller_.Prefill(OperatorPrefill()).ok());
}

// Reflection serves what the program has linked in; a file without messages is easily dropped.
TEST(Reflection, KnowsTheServiceAndItsMethods) {
  const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("gdn.v1.GdnService");
  ASSERT_NE(service, nullptr);
  EXPECT_NE(service->FindMethodByName("StreamDecode"), nullptr);
  EXPECT_NE(service->FindMethodByName("StreamStep"), nullptr);
}

}  // namespace
}  // namespace gdn::bad_input_test
