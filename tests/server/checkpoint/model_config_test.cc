#include "server/checkpoint/model_config.h"

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn {
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

TEST(ModelConfig, RefusesWhatIsNotAJsonObject) {
  for (const char* text : {"", "{", "[]", "3", "null", "{\"model_type\": \"qwen3_next\"", "\xff"}) {
    const absl::Status status = ParseModelConfig(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("not a JSON object")) << text;
  }
}

TEST(ModelConfig, LongValuesAreCutInMessages) {
  Json json = Valid();
  json["hidden_act"] = std::string(10000, 'x');
  EXPECT_LT(ParseModelConfig(json.dump()).status().message().size(), 400u);
}

}  // namespace
}  // namespace gdn
