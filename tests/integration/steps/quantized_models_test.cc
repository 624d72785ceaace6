// Models with quantised weights, served: what GetModel tells of them, and whose states they take. Products of rounded
// operands, served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>
#include <string>

#include "tests/integration/support/service_helpers.h"
#include "tests/support/compare.h"
#include "tests/support/test_backend.h"

namespace gdn::quantized_models_test {
namespace {

v1::Model ModelOf(TestServer& server, const std::string& name) {
  grpc::ClientContext context;
  v1::GetModelRequest request;
  request.set_name("models/" + name);
  v1::GetModelResponse response;
  const grpc::Status status = server.stub().GetModel(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.model();
}

TEST(QuantizedModels, TakeTheMemoryOfTheirFile) {
  // Besides the layers, the files have only one small block of attention and the keys.
  constexpr double kMostOfItsFile = 1.05;
  const std::string q4_k = GoldenPath("gguf_qwen35_k_1/q4_k.gguf");
  TestServer server({.models = {{"k", q4_k}, {"f32", GoldenPath("qwen3_5_1")}}});
  const v1::Model model = ModelOf(server, "k");
  if (!server.server().backend().info().TakesWeights(WeightFormat::kQ4_K)) GTEST_SKIP() << "widens Q4_K";
  EXPECT_THAT(model.weight_formats(), testing::Contains("Q4_K"));
  EXPECT_GT(model.weight_bytes(), 0);
  EXPECT_LE(static_cast<double>(model.weight_bytes()),
            kMostOfItsFile * static_cast<double>(std::filesystem::file_size(q4_k)));
  EXPECT_EQ(model.weight_dtype(), v1::DTYPE_F32);
  EXPECT_THAT(ModelOf(server, "f32").weight_formats(), testing::ElementsAre("F32"));
}

// A prompt and decoded tokens of each layer, against float64 arithmetic on weights that another implementation decoded.
TEST(QuantizedModels, EveryTypeOfGgufFilesIsServedAsItWasRecorded) {
  constexpr double kTolerance = 1e-5;
  for (const std::string file : {"blocks32", "blocks256", "iq3_s"}) {
    const std::string set = "gguf_qwen35_types_1/" + file;
    TestServer server({.models = {{"m", GoldenPath(set + ".gguf")}}});
    if (!server.server().backend().info().TakesWeights(WeightFormat::kIQ3_S)) GTEST_SKIP() << "widens IQ3_S";
    const Caller caller(server);
    ASSERT_TRUE(caller.Create("a", "m").ok());
    for (const int layer : {0, 1}) {
      const Tokens inputs = GoldenInputs(set, layer);
      const Tokens expected = GoldenOutputs(set, layer);
      constexpr int64_t kPrompt = 37;
      ASSERT_REPLY(const auto prefill, caller.Prefill(PrefillOf("a", layer, inputs.Slice(0, kPrompt))));
      EXPECT_LE(RelativeNormError(Floats(prefill.output()), expected.Slice(0, kPrompt).values), kTolerance) << set;
      for (int64_t i = kPrompt; i < inputs.count(); ++i) {
        ASSERT_REPLY(const auto decode, caller.Decode(DecodeOf({"a"}, layer, {inputs.Token(i)})));
        EXPECT_LE(RelativeNormError(Floats(decode.output()), expected.Token(i).values), kTolerance) << set << " " << i;
      }
    }
  }
}

// Products of rounded operands, served.
struct RoundedCase {
  std::string backend, set;
  ProductMath math;
  double tolerance;  // of a prompt's outputs
};
std::ostream& operator<<(std::ostream& out, const RoundedCase& c) {
  return out << ProductMathName(c.math) << " on " << c.backend;
}

class RoundedProducts : public testing::TestWithParam<RoundedCase> {};
INSTANTIATE_TEST_SUITE_P(On, RoundedProducts,
                         testing::Values(RoundedCase{TestBackendName(), "gguf_qwen35_k_1/q4_k", ProductMath::kInt8,
                                                     0.03},
                                         RoundedCase{WithOneGpu({}).front(), "qwen3_5_1", ProductMath::kHalf, 2e-3}));

// Companions change no bit of them either.
TEST_P(RoundedProducts, ASessionHasTheBitsThatItHasAlone) {
  const RoundedCase& c = GetParam();
  const bool is_file = c.math == ProductMath::kInt8;
  TestServer server({.models = {{"m", GoldenPath(is_file ? c.set + ".gguf" : c.set)}}},
                    *MakeBackend(c.backend, c.math));
  const Caller caller(server);
  ASSERT_THAT(caller.Info().reply.numerics_id(), testing::HasSubstr(std::string(NumericsSuffixOf(c.math))));
  constexpr int64_t kPrompt = 5;
  const Tokens inputs = GoldenInputs(c.set, 0);
  const std::vector<std::string> ids = {"a", "b", "c", "alone"};
  for (const std::string& id : ids) {
    ASSERT_TRUE(caller.Create(id, "m").ok());
    ASSERT_REPLY(const auto prefill, caller.Prefill(PrefillOf(id, /*layer=*/0, inputs.Slice(0, kPrompt))));
    const double error = RelativeNormError(Floats(prefill.output()), GoldenOutputs(c.set, 0).Slice(0, kPrompt).values);
    EXPECT_LE(error, c.tolerance);
    EXPECT_GE(error, 1e-5) << "nothing was rounded";
  }
  for (int64_t i = kPrompt; i < kPrompt + 3; ++i) {
    const Tokens token = inputs.Token(i);
    Tokens other = token;
    for (float& one : other.values) one *= 3.0f;
    ASSERT_REPLY(const auto together, caller.Decode(DecodeOf({"a", "b", "c"}, /*layer=*/0, {token, other, other})));
    ASSERT_REPLY(const auto alone, caller.Decode(DecodeOf({"alone"}, /*layer=*/0, {token})));
    const std::vector<float> all = Floats(together.output());
    EXPECT_TRUE(BitEqual(absl::MakeConstSpan(all).first(token.values.size()), Floats(alone.output()))) << i;
  }
}

TEST(QuantizedModels, StatesOfAnotherFormOfTheModelAreRefused) {
  const std::string folder = GoldenPath("qwen3_5_1");
  TestServer server({.models = {{"folder", folder}, {"gguf", GoldenPath("gguf_qwen35_1/q8_0.gguf")}}});
  if (!server.server().backend().info().TakesWeights(WeightFormat::kQ8_0)) GTEST_SKIP() << "takes no Q8_0";
  TestServer quantising({.models = {{"folder", folder}}, .load = {.quantize_q8_0 = true}});
  EXPECT_THAT(ModelOf(quantising, "folder").weight_formats(), testing::Contains("Q8_0"));
  EXPECT_NE(ModelOf(quantising, "folder").fingerprint(), ModelOf(server, "folder").fingerprint());

  const Caller caller(server);
  const Caller other(quantising);
  ASSERT_TRUE(caller.Create("a", "folder").ok());
  ASSERT_TRUE(caller.Prefill(PrefillOf("a", /*layer=*/0, GoldenInputs("qwen3_5_1", 0).Slice(0, 5))).ok());
  ASSERT_REPLY(const std::string file, caller.Export("a"));
  EXPECT_TRUE(RefusedAs(caller.Import("b", "gguf", file), "STATE_MISMATCH", {{"field", "model_fingerprint"}}));
  EXPECT_TRUE(RefusedAs(other.Import("b", "folder", file), "STATE_MISMATCH", {{"field", "model_fingerprint"}}));
  EXPECT_TRUE(caller.Import("b", "folder", file).ok());
}

}  // namespace
}  // namespace gdn::quantized_models_test
