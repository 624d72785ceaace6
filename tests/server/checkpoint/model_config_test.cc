#include "server/checkpoint/model_config.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn::model_config_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Valid() {
  return {{"model_type", "qwen3_next"},
          {"hidden_size", 2048},
          {"num_hidden_layers", 4},
          {"linear_num_key_heads", 16},
          {"linear_num_value_heads", 32},
          {"linear_key_head_dim", 128},
          {"linear_value_head_dim", 64},
          {"linear_conv_kernel_dim", 4},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"layer_types", {"linear_attention", "full_attention", "linear_attention", "full_attention"}}};
}

TEST(ModelConfig, ReadsEveryField) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto config, ParseModelConfig(Valid().dump()));
  EXPECT_EQ(config.model_type, "qwen3_next");
  EXPECT_EQ(
      config.spec.dims,
      (LayerDims{
          .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 64, .conv_width = 4, .hidden_size = 2048}));
  EXPECT_EQ(config.num_layers, 4);
  EXPECT_THAT(config.gdn_layers, ElementsAre(0, 2));
  EXPECT_EQ(config.spec.norm_epsilon, 1e-5f);
  EXPECT_EQ(config.spec.projections, ProjectionLayout::kInterleaved);
}

TEST(ModelConfig, EveryFamilyHasItsLayout) {
  for (const char* family : {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}) {
    Json json = Valid();
    json["model_type"] = family;
    GDN_ASSERT_OK_AND_ASSIGN(const auto config, ParseModelConfig(json.dump()));
    EXPECT_EQ(config.model_type, family);
    EXPECT_EQ(config.spec.projections, ProjectionLayout::kFlat);
  }
}

TEST(ModelConfig, TextConfigMayBeNested) {
  Json text = Valid();
  text["model_type"] = "qwen3_5_moe_text";
  // The outer hidden_size is another part's; the text's own goes first.
  const Json json = {{"model_type", "qwen3_5_moe"}, {"hidden_size", 99}, {"text_config", text}};
  GDN_ASSERT_OK_AND_ASSIGN(const auto config, ParseModelConfig(json.dump()));
  EXPECT_EQ(config.model_type, "qwen3_5_moe");
  EXPECT_EQ(config.spec.dims.hidden_size, 2048);
}

TEST(ModelConfig, LayersFollowTheIntervalWithoutLayerTypes) {
  Json json = Valid();
  json.erase("layer_types");
  json["num_hidden_layers"] = 7;
  EXPECT_THAT(ParseModelConfig(json.dump())->gdn_layers, ElementsAre(0, 1, 2, 4, 5, 6));  // 4, as transformers assumes
  json["full_attention_interval"] = 3;
  EXPECT_THAT(ParseModelConfig(json.dump())->gdn_layers, ElementsAre(0, 1, 3, 4, 6));
  json["layer_types"] = nullptr;
  EXPECT_THAT(ParseModelConfig(json.dump())->gdn_layers, ElementsAre(0, 1, 3, 4, 6));
  json["full_attention_interval"] = 2;
  json["layer_types"] = Json::array();
  for (int i = 0; i < 7; ++i) json["layer_types"].push_back(i < 5 ? "full_attention" : "linear_attention");
  EXPECT_THAT(ParseModelConfig(json.dump())->gdn_layers, ElementsAre(5, 6));  // layer_types goes before the interval
}

TEST(ModelConfig, GoldenConfigsAreRead) {
  for (const char* name : {"qwen3_next_1", "qwen3_next_5", "qwen3_5_1", "qwen3_5_5"}) {
    const auto config = ParseModelConfig(ReadFile(GoldenFolder(name) + "/config.json"));
    ASSERT_TRUE(config.ok()) << name << ": " << config.status();
    EXPECT_THAT(config->gdn_layers, ElementsAre(0, 1, 2)) << name;
  }
}

// The config that transformers writes when it saves the model describes the same layers.
TEST(ModelConfig, PublishedAndSavedConfigsAgree) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto published,
                           ParseModelConfig(ReadFile(GoldenFolder("qwen4_exp_1") + "/config.json")));
  GDN_ASSERT_OK_AND_ASSIGN(const auto saved,
                           ParseModelConfig(ReadFile(GoldenFolder("qwen4_exp_1") + "/config.transformers.json")));
  EXPECT_EQ(published.spec, saved.spec);
  EXPECT_EQ(published.gdn_layers, saved.gdn_layers);
  EXPECT_EQ(published.spec.output_gate, GateActivation::kSigmoid);
}

TEST(ModelConfig, RefusesBadFieldsByNameValueAndExpectation) {
  struct Case {
    std::string field;  // in the config and in the message
    Json value;         // null: the field is removed
    std::string found;
    std::string expected;
  };
  const Case cases[] = {
      {"model_type", nullptr, "missing", "qwen3_5_moe_text"},
      {"model_type", "llama", "\"llama\"", "one of qwen3_next"},
      {"model_type", 3, "3", "one of"},
      {"hidden_act", "gelu", "\"gelu\"", "\"silu\""},
      {"hidden_act", nullptr, "missing", "\"silu\""},
      {"hidden_size", nullptr, "missing", "[1, 1048576]"},
      {"hidden_size", 0, "is 0", "[1, 1048576]"},
      {"hidden_size", -64, "is -64", "[1, 1048576]"},
      {"hidden_size", 64.5, "is 64.5", "an integer"},
      {"hidden_size", "64", "\"64\"", "an integer"},
      {"hidden_size", 18446744073709551615u, "18446744073709551615", "[1, 1048576]"},
      {"linear_num_key_heads", nullptr, "missing", "[1, 1024]"},
      {"linear_num_key_heads", Json::array({1}), "[1]", "an integer"},
      {"linear_num_value_heads", 1025, "1025", "[1, 1024]"},
      {"linear_num_value_heads", 33, "33", "a multiple of linear_num_key_heads"},
      {"linear_key_head_dim", true, "true", "[1, 1024]"},
      {"linear_value_head_dim", 4096, "4096", "[1, 1024]"},
      {"linear_conv_kernel_dim", 1, "is 1", "[2, 64]"},
      {"linear_conv_kernel_dim", nullptr, "missing", "[2, 64]"},
      {"num_hidden_layers", 0, "is 0", "[1, 4096]"},
      {"num_hidden_layers", 1000000000, "1000000000", "[1, 4096]"},
      {"num_hidden_layers", 5, "4 entries", "5 layers"},
      {"rms_norm_eps", nullptr, "missing", "above 0"},
      {"rms_norm_eps", 0, "is 0", "above 0"},
      {"rms_norm_eps", -1e-6, "-1e-06", "above 0"},
      {"rms_norm_eps", 5, "is 5", "below 1"},
      {"rms_norm_eps", "1e-6", "\"1e-6\"", "a number"},
      {"layer_types", "linear_attention", "linear_attention", "a list"},
      {"layer_types", Json::array({"linear_attention", "sliding_attention", "full_attention", "full_attention"}),
       "\"sliding_attention\"", "linear_attention"},
      {"layer_types", Json::array({"full_attention", "full_attention", "full_attention", "full_attention"}),
       "without a Gated DeltaNet layer", "at least one"},
      {"text_config", "x", "\"x\"", "an object"},
  };
  for (const Case& c : cases) {
    Json json = Valid();
    if (c.value.is_null()) {
      json.erase(c.field);
    } else {
      json[c.field] = c.value;
    }
    const absl::Status status = ParseModelConfig(json.dump()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field << " " << c.value;
    EXPECT_EQ(ErrorReason(status), reason::kInvalidSpec);
    const std::string message(status.message());
    // A wrong count of layers is reported at the list that has it.
    EXPECT_THAT(message, HasSubstr(c.found == "4 entries" ? "layer_types" : c.field)) << c.value;
    EXPECT_THAT(message, HasSubstr(c.found)) << c.field;
    EXPECT_THAT(message, HasSubstr(c.expected)) << c.field;
  }
}

TEST(ModelConfig, RefusesABadInterval) {
  for (const Json& value : {Json(0), Json(1), Json(-4), Json("4"), Json(2.5)}) {
    Json json = Valid();
    json.erase("layer_types");
    json["full_attention_interval"] = value;
    const absl::Status status = ParseModelConfig(json.dump()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << value;
    EXPECT_THAT(std::string(status.message()), HasSubstr("full_attention_interval"));
  }
}

TEST(ModelConfig, RefusesAnUnknownNestedModelType) {
  Json json = Valid();
  json["text_config"] = {{"model_type", "qwen2"}};
  EXPECT_THAT(std::string(ParseModelConfig(json.dump()).status().message()), HasSubstr("text_config.model_type"));
}

Json Of(const std::string& model_type) {
  Json json = Valid();
  json["model_type"] = model_type;
  return json;
}

TEST(ModelConfig, Qwen4ExpSaysItsOutputGate) {
  for (const char* type : {"qwen4_exp", "qwen4_exp_text"}) {
    Json json = Of(type);
    EXPECT_EQ(ParseModelConfig(json.dump())->spec.output_gate, GateActivation::kSilu);  // hidden_act
    json["output_gate_type"] = "sigmoid";
    EXPECT_EQ(ParseModelConfig(json.dump())->spec.output_gate, GateActivation::kSigmoid);
    json["output_gate_type"] = "silu";
    EXPECT_EQ(ParseModelConfig(json.dump())->spec.output_gate, GateActivation::kSilu);
    json["layer_types"][1] = "indexed_attention";
    EXPECT_THAT(ParseModelConfig(json.dump())->gdn_layers, ElementsAre(0, 2));
  }
}

TEST(ModelConfig, OlmoHybridsAbsentFieldsAreWhatTransformersTakes) {
  const Json json = {{"model_type", "olmo_hybrid"}, {"hidden_size", 3840},  {"num_hidden_layers", 8},
                     {"num_attention_heads", 30},   {"rms_norm_eps", 1e-6}, {"hidden_act", "silu"}};
  GDN_ASSERT_OK_AND_ASSIGN(const auto config, ParseModelConfig(json.dump()));
  EXPECT_EQ(
      config.spec.dims,
      (LayerDims{
          .key_heads = 30, .value_heads = 30, .key_dim = 96, .value_dim = 192, .conv_width = 4, .hidden_size = 3840}));
  EXPECT_THAT(config.gdn_layers, ElementsAre(0, 1, 2, 4, 5, 6));
  EXPECT_EQ(config.spec.norm_epsilon, 1e-5f);
  EXPECT_EQ(config.spec.beta_scale, 2.0f);
  EXPECT_EQ(config.spec.projections, ProjectionLayout::kSeparate);
  EXPECT_EQ(config.spec.convolutions, ConvLayout::kSeparate);
}

TEST(ModelConfig, OlmoHybridReadsItsFields) {
  Json json = Of("olmo_hybrid");
  json["linear_allow_neg_eigval"] = false;
  GDN_ASSERT_OK_AND_ASSIGN(const auto config, ParseModelConfig(json.dump()));
  EXPECT_EQ(config.spec.beta_scale, 1.0f);
  EXPECT_EQ(config.spec.norm_epsilon, 1e-5f);
  EXPECT_EQ(config.spec.dims.key_dim, 128);
  EXPECT_EQ(config.spec.dims.value_dim, 64);
}

TEST(ModelConfig, GigaChatHasAnotherNormAndGate) {
  Json json = Of("gigachat3_5");
  json["output_gate_type"] = "sigmoid";
  GDN_ASSERT_OK_AND_ASSIGN(const auto config, ParseModelConfig(json.dump()));
  EXPECT_FALSE(config.family->verified);
  EXPECT_EQ(config.spec.projections, ProjectionLayout::kInterleaved);
  EXPECT_EQ(config.spec.norm_weight, NormWeight::kOnePlus);
  EXPECT_EQ(config.spec.output_gate, GateActivation::kSigmoid);
  EXPECT_EQ(config.spec.output_gate_scale, 2.0f);
  json["linear_sigmoid_gate_scale"] = 1.5;
  EXPECT_EQ(ParseModelConfig(json.dump())->spec.output_gate_scale, 1.5f);
  json.erase("layer_types");
  json["full_attention_layers"] = {3, 1};
  EXPECT_THAT(ParseModelConfig(json.dump())->gdn_layers, ElementsAre(0, 2));
  for (const Json& layers : {Json({0, 1, 2, 3}), Json({4}), Json({1, 1}), Json({-1}), Json("1"), Json({1.5})}) {
    json["full_attention_layers"] = layers;
    EXPECT_THAT(std::string(ParseModelConfig(json.dump()).status().message()), HasSubstr("full_attention_layers"));
  }
  json.erase("full_attention_layers");
  EXPECT_THAT(std::string(ParseModelConfig(json.dump()).status().message()), HasSubstr("'layer_types' is missing"));
}

// Each would make the layer another one than the family's.
TEST(ModelConfig, WhatAFamilyDoesNotHaveIsRefusedByName) {
  struct Case {
    std::string model_type;
    std::string field;
    Json value;
    std::string expected;
  };
  const Case cases[] = {
      {"qwen4_exp_text", "output_gate_type", "tanh", "\"silu\" or \"sigmoid\""},
      {"qwen4_exp_text", "output_gate_type", 3, "\"silu\" or \"sigmoid\""},
      {"qwen3_next", "output_gate_type", "sigmoid", "expected \"silu\""},
      {"qwen3_5", "output_gate_type", "sigmoid", "expected \"silu\""},
      {"gigachat3_5", "output_gate_type", "silu", "expected \"sigmoid\""},
      {"gigachat3_5", "linear_sigmoid_gate_scale", 0, "above 0"},
      {"gigachat3_5", "full_attention_interval", 4, "gigachat3_5"},
      {"olmo_hybrid", "output_gate_type", "silu", "olmo_hybrid"},
      {"olmo_hybrid", "full_attention_interval", 4, "olmo_hybrid"},
      {"olmo_hybrid", "linear_allow_neg_eigval", "yes", "true or false"},
      {"qwen3_5", "linear_allow_neg_eigval", true, "qwen3_5"},
      {"qwen3_5", "linear_sigmoid_gate_scale", 2.0, "qwen3_5"},
      {"qwen3_next", "linear_attn_config", Json{{"kda_layers", {1}}}, "qwen3_next"},
      {"qwen3_next", "linear_lower_bound", -5.0, "qwen3_next"},
      {"qwen3_next", "kda_safe_gate", true, "qwen3_next"},
      {"qwen3_next", "gdn_mode", "x", "qwen3_next"},
      {"qwen3_5", "layer_group_size", 4, "qwen3_5"},
      {"olmo_hybrid", "short_conv_kernel_size", 4, "olmo_hybrid"},
      {"kimi_k2", "model_type", "kimi_k2", "one of qwen3_next"},
  };
  for (const Case& c : cases) {
    Json json = Of(c.model_type);
    json[c.field] = c.value;
    const absl::Status status = ParseModelConfig(json.dump()).status();
    EXPECT_EQ(ErrorReason(status), reason::kInvalidSpec) << c.model_type << " " << c.field;
    EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("'" + c.field + "'"), HasSubstr(c.expected)))
        << c.model_type;
  }
}

TEST(ModelConfig, FieldsThatSayNothingNewAreTaken) {
  Json json = Of("qwen3_5");
  json["output_gate_type"] = "swish";  // another name of silu
  json["linear_attn_config"] = nullptr;
  json["attention_bias"] = true;  // of other layers
  EXPECT_TRUE(ParseModelConfig(json.dump()).ok()) << ParseModelConfig(json.dump()).status();
  json = Of("olmo_hybrid");
  json["linear_a_log_min"] = 0.0;
  json["linear_dt_init_floor"] = 1e-4;
  EXPECT_TRUE(ParseModelConfig(json.dump()).ok()) << ParseModelConfig(json.dump()).status();
}

TEST(ModelConfig, ANestedPartOfAnotherFamilyIsRefused) {
  Json json = Of("qwen3_5");
  json["text_config"] = {{"model_type", "qwen4_exp_text"}};
  EXPECT_THAT(std::string(ParseModelConfig(json.dump()).status().message()),
              testing::AllOf(HasSubstr("text_config.model_type"), HasSubstr("qwen3_5_text")));
}

TEST(ModelConfig, Fp8IsReadInItsOneForm) {
  Json json = Of("qwen3_next");
  json["quantization_config"] = {
      {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}, {"modules_to_not_convert", {"x"}}};
  EXPECT_TRUE(ParseModelConfig(json.dump()).ok()) << ParseModelConfig(json.dump()).status();
  json["quantization_config"]["weight_block_size"] = {64, 64};
  EXPECT_THAT(std::string(ParseModelConfig(json.dump()).status().message()),
              testing::AllOf(HasSubstr("quantization_config.weight_block_size"), HasSubstr("[64,64]"),
                             HasSubstr("[128, 128]")));
  json["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e5m2"}};
  EXPECT_THAT(std::string(ParseModelConfig(json.dump()).status().message()), HasSubstr("quantization_config.fmt"));
  json["quantization_config"] = "fp8";
  EXPECT_THAT(std::string(ParseModelConfig(json.dump()).status().message()), HasSubstr("quantization_config"));
  // With another method the layers may be unquantised. Their tensors show it, not the config.
  json["quantization_config"] = {{"quant_method", "compressed-tensors"}};
  EXPECT_TRUE(ParseModelConfig(json.dump()).ok());
}

TEST(ModelConfig, TransformedWeightsAreRefused) {
  Json json = Of("qwen3_next");
  json["quantization_config"] = {{"quant_method", "compressed-tensors"}, {"transform_config", Json::object()}};
  EXPECT_TRUE(ParseModelConfig(json.dump()).ok());
  json["quantization_config"]["transform_config"]["config_groups"] = {{"R4", {{"type", "hadamard"}}}};
  EXPECT_THAT(std::string(ParseModelConfig(json.dump()).status().message()),
              testing::AllOf(HasSubstr("quantization_config.transform_config"), HasSubstr("hadamard")));
}

// Fields by which configs and later models may say that linear layers compute something else.
TEST(ModelConfig, AnUnknownFieldOfLinearLayersIsRefusedByName) {
  for (const char* family : {"qwen3_next", "qwen3_5"}) {
    for (const char* field : {"linear_beta_scale", "linear_allow_neg_eigval",
                              "gdn_norm",          "kda_safe_gate",
                              "delta_rule",        "gated_delta_norm",
                              "deltanet_gate",     "recurrent_dtype",
                              "ssm_gate",          "output_gate_scale",
                              "short_conv_bias",   "full_attention_offset",
                              "allow_neg_eigval",  "conv_bias",
                              "expand_v",          "gate_lower_bound",
                              "lower_bound",       "safe_gate",
                              "use_conv_bias",     "use_output_gate",
                              "use_short_conv"}) {
      Json json = Of(family);
      json[field] = true;
      const absl::Status status = ParseModelConfig(json.dump()).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
      EXPECT_THAT(std::string(status.message()), HasSubstr(field));
    }
    Json json = Of(family);  // what published configs have of other parts
    for (const char* field : {"attention_bias", "attn_output_gate", "mamba_ssm_dtype", "mlp_only_layers",
                              "mtp_num_hidden_layers", "norm_topk_prob", "partial_rotary_factor", "use_cache"}) {
      json[field] = true;
      EXPECT_TRUE(ParseModelConfig(json.dump()).ok()) << field << ": " << ParseModelConfig(json.dump()).status();
    }
  }
}

TEST(ModelConfig, RefusesWhatIsNotAJsonObject) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "the config is not JSON: it is empty"},
           {"{", "the config is not JSON: line 1, column 2: "},
           {"[]", "the config is a JSON array, not an object"},
           {"3", "the config is a JSON number, not an object"},
           {"null", "the config is a JSON null, not an object"},
           {"{\"model_type\": \"qwen3_next\"", "unexpected end of input"},
           {"\xff", "the config is not JSON: line 1, column 1: "},
           {"{\n  \"a\": 1, // of mine\n}", "line 2, column 11: a comment, which JSON does not have"},
           {std::string("\xff\xfe{\0}\0", 6), "it is UTF-16 or UTF-32 text, expected UTF-8"},
           {"version https://git-lfs.github.com/spec/v1\n", "run 'git lfs pull'"}}) {
    const absl::Status status = ParseModelConfig(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words)) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected a Hugging Face config.json")) << text;
  }
}

TEST(ModelConfig, ReadsTheNumbersWithoutDigitsThatPythonWrites) {
  std::string text = Valid().dump();
  text.insert(1, R"("initializer_range": NaN, "rope_scaling": {"factor": Infinity, "low": -Infinity},)");
  EXPECT_TRUE(ParseModelConfig(text).ok()) << ParseModelConfig(text).status();
  Json json = Valid();
  json["rms_norm_eps"] = "SET";
  text = json.dump();
  text.replace(text.find("\"SET\""), 5, "NaN");
  EXPECT_THAT(std::string(ParseModelConfig(text).status().message()), HasSubstr("rms_norm_eps"));
}

TEST(ModelConfig, LongValuesAreCutInMessages) {
  Json json = Valid();
  json["hidden_act"] = std::string(10000, 'x');
  EXPECT_LT(ParseModelConfig(json.dump()).status().message().size(), 400u);
}

}  // namespace
}  // namespace gdn::model_config_test
