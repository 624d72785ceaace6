// Decays by channel (KDA) through the service: whole layers against transformers, the bare rule against float64,
// states, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files/safetensors.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/support/compare.h"

namespace gdn::kda_service_test {
namespace {

constexpr double kTolerance = 1e-5;  // against transformers' float32, and against float64

constexpr const char* kFamilies[] = {"kimi_linear_1", "glm5_next_1", "bailing_hybrid_1"};

GdnServerOptions Options() {
  GdnServerOptions options;
  for (const char* family : kFamilies) options.models.emplace_back(family, GoldenPath(family));
  return options;
}

// tests/golden/core_kda: the rule's tensors of one sequence.
class Core {
 public:
  explicit Core(const std::string& name)
      : file_(SafetensorsFile::Open(GoldenPath("core_kda/" + name + ".safetensors")).value()) {}

  v1::OperatorSpec Spec() const {
    const std::vector<int64_t> q = file_.Tensor("q")->shape;
    const std::vector<int64_t> v = file_.Tensor("v")->shape;
    v1::OperatorSpec spec;
    spec.set_key_heads(static_cast<int32_t>(q[2]));
    spec.set_value_heads(static_cast<int32_t>(v[2]));
    spec.set_key_dim(static_cast<int32_t>(q[3]));
    spec.set_value_dim(static_cast<int32_t>(v[3]));
    spec.set_decay(v1::DECAY_KIND_PER_CHANNEL);
    return spec;
  }
  int64_t tokens() const { return file_.Tensor("q")->shape[1]; }

  // Tokens [first, first + count), led by `leading`.
  v1::DeltaRuleInput Input(int64_t first, int64_t count, const std::vector<int64_t>& leading) const {
    v1::DeltaRuleInput input;
    *input.mutable_q() = Rows("q", first, count, leading);
    *input.mutable_k() = Rows("k", first, count, leading);
    *input.mutable_v() = Rows("v", first, count, leading);
    *input.mutable_g() = Rows("g", first, count, leading);
    *input.mutable_beta() = Rows("beta", first, count, leading);
    return input;
  }
  v1::PrefillRequest Prefill(const std::string& id, int64_t first, int64_t count) const {
    v1::PrefillRequest request;
    request.set_session("sessions/" + id);
    *request.mutable_delta_rule() = Input(first, count, {count});
    return request;
  }
  v1::DecodeRequest Decode(const std::string& id, int64_t token) const {
    v1::DecodeRequest request;
    request.add_sessions("sessions/" + id);
    *request.mutable_delta_rule() = Input(token, 1, {1, 1});
    return request;
  }
  v1::CreateSessionRequest Creation(const std::string& id) const {
    v1::CreateSessionRequest request;
    request.set_session_id(id);
    *request.mutable_operator_() = Spec();
    const std::vector<int64_t> state = file_.Tensor("initial_state")->shape;
    *request.add_initial_states()->mutable_recurrent_state() =
        AsTensor({state.begin() + 1, state.end()}, *file_.Floats("initial_state"));
    return request;
  }
  std::vector<float> Output() const { return *file_.Floats("o64"); }
  std::vector<float> FinalState() const { return *file_.Floats("final_state64"); }

 private:
  v1::Tensor Rows(const std::string& name, int64_t first, int64_t count, std::vector<int64_t> shape) const {
    const std::vector<int64_t> whole = file_.Tensor(name)->shape;
    const std::vector<float> values = *file_.Floats(name);
    shape.insert(shape.end(), whole.begin() + 2, whole.end());
    const auto each = static_cast<int64_t>(values.size()) / whole[1];
    return AsTensor(shape, {values.begin() + first * each, values.begin() + (first + count) * each});
  }

  SafetensorsFile file_;
};

class KdaService : public ::testing::Test {
 protected:
  TestServer server_{Options()};
  const Caller caller_{server_};
};

TEST_F(KdaService, LayersAreThoseOfTransformers) {
  for (const std::string family : kFamilies) {
    for (const int layer : {0, 1}) {
      const std::string id = family + std::to_string(layer);
      ASSERT_TRUE(caller_.Create(id, family).ok());
      const Tokens inputs = GoldenInputs(family, layer);
      const Tokens outputs = GoldenOutputs(family, layer);
      constexpr int64_t kPrompt = 37;
      ASSERT_REPLY(const auto prompt, caller_.Prefill(PrefillOf(id, layer, inputs.Slice(0, kPrompt))));
      EXPECT_LE(RelativeNormError(Floats(prompt.output()), outputs.Slice(0, kPrompt).values), kTolerance) << id;
      for (int64_t token = kPrompt; token < inputs.count(); ++token) {
        ASSERT_REPLY(const auto step, caller_.Decode(DecodeOf({id}, layer, {inputs.Token(token)})));
        EXPECT_LE(RelativeNormError(Floats(step.output()), outputs.Token(token).values), kTolerance) << id;
      }
    }
  }
}

TEST_F(KdaService, ModelsSayThatTheirDecaysAreByChannel) {
  v1::ListModelsResponse models;
  const auto context = caller_.NewContext();
  ASSERT_TRUE(server_.stub().ListModels(context.get(), {}, &models).ok());
  ASSERT_EQ(models.models_size(), 3);
  for (const v1::Model& model : models.models()) {
    EXPECT_EQ(model.dims().decay(), v1::DECAY_KIND_PER_CHANNEL) << model.name();
    EXPECT_EQ(model.dims().key_dim(), 32) << model.name();
  }
}

// a has an element for each head and channel; the layer is the rest of the same one.
TEST_F(KdaService, ProjectedInputsBringADecayForEachChannel) {
  ASSERT_TRUE(caller_.Create("p", "kimi_linear_1").ok());
  v1::PrefillRequest request;
  request.set_session("sessions/p");
  v1::ProjectedInput* in = request.mutable_projected();  // D = 64, H = HV = 3, K = V = 32
  *in->mutable_mixed_qkv() = AsTensor({5, 288}, std::vector<float>(size_t{5} * 288, 0.5f));
  *in->mutable_z() = AsTensor({5, 96}, std::vector<float>(size_t{5} * 96, 0.5f));
  *in->mutable_b() = AsTensor({5, 3}, std::vector<float>(15, 0.5f));
  *in->mutable_a() = AsTensor({5, 3}, std::vector<float>(15, 0.5f));
  EXPECT_TRUE(RefusedAs(caller_.Prefill(request), "INVALID_TENSOR_SHAPE", {{"field", "a"}, {"expected", "[5, 96]"}}));
  *in->mutable_a() = AsTensor({5, 96}, std::vector<float>(size_t{5} * 96, 0.5f));
  ASSERT_REPLY(const auto reply, caller_.Prefill(request));
  EXPECT_EQ(reply.token_count(), 5);
  EXPECT_EQ(reply.output().shape(1), 96);
}

TEST_F(KdaService, ABareRuleTakesGWithAKAxis) {
  for (const char* name : {"b1_t31_h2_hv4_k64_v64_g5.0", "b1_t40_h1_hv3_k48_v32_g20.0"}) {
    const Core core(name);
    const std::string id = "o" + std::to_string(core.tokens());
    ASSERT_REPLY(const auto session, caller_.Create(core.Creation(id)));
    EXPECT_EQ(session.operator_().decay(), v1::DECAY_KIND_PER_CHANNEL);
    const int64_t prompt = core.tokens() - 6;
    ASSERT_REPLY(const auto prefilled, caller_.Prefill(core.Prefill(id, 0, prompt)));
    std::vector<float> output = Floats(prefilled.output());
    for (int64_t token = prompt; token < core.tokens(); ++token) {
      ASSERT_REPLY(const auto step, caller_.Decode(core.Decode(id, token)));
      const std::vector<float> one = Floats(step.output());
      output.insert(output.end(), one.begin(), one.end());
    }
    EXPECT_LE(RelativeNormError(output, core.Output()), kTolerance) << name;
    ASSERT_REPLY(const std::string file, caller_.Export(id, /*include_recurrent_state=*/true));
    const auto state = SafetensorsFile::Parse(file);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_LE(RelativeNormError(*state->Floats("layer.0.recurrent_state"), core.FinalState()), kTolerance) << name;
    EXPECT_EQ(state->Tensor("layer.0.log_g")->shape.size(), 3u);
  }
}

TEST_F(KdaService, AnExportedStateGoesOnWithTheSameBitsAndOnlyAsWhatItIs) {
  const Core core("b1_t31_h2_hv4_k64_v64_g5.0");
  ASSERT_TRUE(caller_.Create(core.Creation("a")).ok());
  ASSERT_TRUE(caller_.Prefill(core.Prefill("a", 0, 20)).ok());
  for (int64_t token = 20; token < 25; ++token) ASSERT_TRUE(caller_.Decode(core.Decode("a", token)).ok());
  ASSERT_REPLY(const std::string file, caller_.Export("a"));
  v1::ImportStateRequest::Target target;
  target.set_session_id("b");
  *target.mutable_operator_() = core.Spec();
  ASSERT_TRUE(caller_.Import(target, file).ok());
  EXPECT_EQ(caller_.State("b"), caller_.State("a"));
  for (int64_t token = 25; token < 31; ++token) {
    ASSERT_REPLY(const auto a, caller_.Decode(core.Decode("a", token)));
    ASSERT_REPLY(const auto b, caller_.Decode(core.Decode("b", token)));
    EXPECT_EQ(a.output().data(), b.output().data()) << token;
  }
  target.set_session_id("c");
  target.mutable_operator_()->set_decay(v1::DECAY_KIND_PER_HEAD);
  EXPECT_TRUE(RefusedAs(caller_.Import(target, file), "STATE_MISMATCH", {{"field", "dims"}}));
}

TEST_F(KdaService, TheOtherShapeOfGAndUnknownKindsAreRefused) {
  const Core core("b1_t31_h2_hv4_k64_v64_g5.0");
  ASSERT_TRUE(caller_.Create(core.Creation("channels")).ok());
  v1::CreateSessionRequest heads = core.Creation("heads");
  heads.mutable_operator_()->clear_decay();
  ASSERT_TRUE(caller_.Create(heads).ok());
  const auto everything = [&] { return caller_.State("channels") + caller_.State("heads"); };

  v1::PrefillRequest flat = core.Prefill("channels", 0, 4);
  *flat.mutable_delta_rule()->mutable_g() = AsTensor({4, 4}, std::vector<float>(16, -0.5f));
  v1::PrefillRequest positive = core.Prefill("channels", 0, 4);
  std::vector<float> g(size_t{4} * 4 * 64, -0.5f);
  g[64 + 3] = 0.5f;
  *positive.mutable_delta_rule()->mutable_g() = AsTensor({4, 4, 64}, g);
  v1::CreateSessionRequest unknown = core.Creation("unknown");
  unknown.mutable_operator_()->set_decay(static_cast<v1::DecayKind>(7));
  // Another session of that id is another spec.
  v1::CreateSessionRequest other = core.Creation("channels");
  other.mutable_operator_()->clear_decay();
  ExpectRefused({{"g by head", "INVALID_TENSOR_SHAPE", "g", [&] { return caller_.Prefill(flat).status; }},
                 {"g by channel", "INVALID_TENSOR_SHAPE", "g",
                  [&] { return caller_.Prefill(core.Prefill("heads", 0, 4)).status; }},
                 {"g above 0", "VALUE_OUT_OF_RANGE", "[0, 1, 3]", [&] { return caller_.Prefill(positive).status; }},
                 {"an unknown kind", "INVALID_SPEC", "decay", [&] { return caller_.Create(unknown).status; }},
                 {"another kind", "SESSION_EXISTS", "", [&] { return caller_.Create(other).status; }}},
                everything);
  // Rows of both kinds are no batch.
  v1::DecodeRequest both = core.Decode("channels", 0);
  both.add_sessions("sessions/heads");
  *both.mutable_delta_rule() = core.Input(0, 2, {2, 1});
  EXPECT_FALSE(caller_.Decode(both).ok());
}

}  // namespace
}  // namespace gdn::kda_service_test
