// Configs of KDA families are read correctly, in the published form and as transformers saves them.
#include <functional>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/model_config.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn::kda_config_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Golden(const std::string& set, const std::string& file = "config.json") {
  return Json::parse(ReadFile(GoldenFolder(set) + "/" + file));
}

LayerDims Dims(int32_t hidden, int32_t heads, int32_t head_dim) {
  return {.key_heads = heads,
          .value_heads = heads,
          .key_dim = head_dim,
          .value_dim = head_dim,
          .conv_width = 4,
          .hidden_size = hidden,
          .decay = DecayKind::kPerChannel};
}

TEST(KdaConfig, PublishedAndSavedConfigsAgree) {
  struct Case {
    const char* set;
    DecayGate gate;
    float lower_bound, epsilon;
    int32_t rank;
  };
  for (const Case& c : {Case{"kimi_linear_1", DecayGate::kSoftplus, 0.0f, 1e-5f, 32},
                        Case{"glm5_next_1", DecayGate::kBoundedSigmoid, -5.0f, 1e-5f, 32},
                        Case{"bailing_hybrid_1", DecayGate::kBoundedSigmoid, -5.0f, 1e-6f, 0}}) {
    GDN_ASSERT_OK_AND_ASSIGN(const auto published, ParseModelConfig(Golden(c.set).dump()));
    GDN_ASSERT_OK_AND_ASSIGN(const auto saved, ParseModelConfig(Golden(c.set, "config.transformers.json").dump()));
    EXPECT_EQ(published.spec, saved.spec) << c.set;
    EXPECT_EQ(published.gdn_layers, saved.gdn_layers) << c.set;
    EXPECT_THAT(published.gdn_layers, ElementsAre(0, 1)) << c.set;
    EXPECT_EQ(published.num_layers, 3) << c.set;
    EXPECT_TRUE(published.family->verified) << c.set;
    EXPECT_EQ(published.spec, (LayerSpec{.dims = Dims(64, 3, 32),
                                         .decay_gate = c.gate,
                                         .decay_lower_bound = c.lower_bound,
                                         .norm_epsilon = c.epsilon,
                                         .output_gate = GateActivation::kSigmoid,
                                         .projections = ProjectionLayout::kSeparate,
                                         .decay_rank = c.rank,
                                         .output_gate_rank = c.rank,
                                         .convolutions = ConvLayout::kSeparate}))
        << c.set;
  }
}

// K3 is known by llama.cpp alone: outer and inner types, a bound, g of full rank.
Json KimiK3() {
  Json json = Golden("kimi_linear_1");
  json["hidden_act"] = "situ";
  json["num_attention_heads"] = 3;
  json["linear_attn_config"]["gate_lower_bound"] = -5.0;
  return {{"model_type", "kimi_k3"}, {"text_config", json}};
}

TEST(KdaConfig, KimiK3HasABoundAndAFullRankGate) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto config, ParseModelConfig(KimiK3().dump()));
  EXPECT_FALSE(config.family->verified);
  EXPECT_EQ(config.spec.decay_gate, DecayGate::kBoundedSigmoid);
  EXPECT_EQ(config.spec.decay_lower_bound, -5.0f);
  EXPECT_EQ(config.spec.decay_rank, 32);
  EXPECT_EQ(config.spec.output_gate_rank, 0);
  EXPECT_THAT(config.gdn_layers, ElementsAre(0, 1));
  Json softplus = KimiK3();
  softplus["text_config"]["linear_attn_config"].erase("gate_lower_bound");
  EXPECT_EQ(ParseModelConfig(softplus.dump())->spec.decay_gate, DecayGate::kSoftplus);
  // A safe gate is the bounded one: with no bound, or a bound without it, one of the two is wrong.
  for (const bool safe : {true, false}) {
    Json json = safe ? softplus : KimiK3();
    json["text_config"]["linear_attn_config"]["safe_gate"] = safe;
    const absl::Status refused = ParseModelConfig(json.dump()).status();
    EXPECT_EQ(ErrorReason(refused), reason::kInvalidSpec) << refused;
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("safe_gate"), HasSubstr("gate_lower_bound")));
  }
}

// Which of them transformers takes is written in its configuration class; here they have to agree.
TEST(KdaConfig, GlmsBoundIsFoundWhereverItStands) {
  const auto bound_of = [](const std::function<void(Json&)>& change) -> absl::StatusOr<float> {
    Json json = Golden("glm5_next_1");
    change(json["text_config"]);
    const auto config = ParseModelConfig(json.dump());
    if (!config.ok()) return config.status();
    EXPECT_EQ(config->spec.decay_gate == DecayGate::kSoftplus, config->spec.decay_lower_bound == 0.0f);
    return config->spec.decay_lower_bound;
  };
  const auto nested = [](Json& c) -> Json& { return c["linear_attn_config"]; };
  EXPECT_EQ(*bound_of([&](Json& c) { nested(c)["gate_lower_bound"] = -2.5; }), -2.5f);
  EXPECT_EQ(*bound_of([&](Json& c) { nested(c).erase("gate_lower_bound"); }), -5.0f);
  EXPECT_EQ(*bound_of([&](Json& c) { nested(c)["gate_lower_bound"] = nullptr; }), -5.0f);  // safe_gate is true
  EXPECT_EQ(*bound_of([&](Json& c) {
    nested(c) = {{"head_dim", 32}, {"num_heads", 3}, {"short_conv_kernel_size", 4}, {"safe_gate", false}};
    nested(c)["gate_lower_bound"] = nullptr;
  }),
            0.0f);
  const auto flat = [&](Json& c) {
    c.erase("linear_attn_config");
    c["linear_head_dim"] = 32;
    c["linear_num_heads"] = 3;
    c["linear_conv_kernel_dim"] = 4;
  };
  EXPECT_EQ(*bound_of(flat), -5.0f);
  EXPECT_EQ(*bound_of([&](Json& c) {
    flat(c);
    c["linear_lower_bound"] = nullptr;
  }),
            0.0f);
  EXPECT_EQ(*bound_of([&](Json& c) {
    flat(c);
    c["linear_lower_bound"] = -7;
  }),
            -7.0f);
}

TEST(KdaConfig, GlmsLayersFollowTheIntervalWhereNothingElseSays) {
  Json json = Golden("glm5_next_1");
  json["text_config"].erase("layer_types");
  json["text_config"]["num_hidden_layers"] = 6;
  EXPECT_THAT(ParseModelConfig(json.dump())->gdn_layers, ElementsAre(0, 1, 2, 4, 5));
  json["text_config"]["linear_attn_config"]["kda_layers"] = {0, 3, 5};  // from 0
  EXPECT_THAT(ParseModelConfig(json.dump())->gdn_layers, ElementsAre(0, 3, 5));
}

TEST(KdaConfig, KimisListsCountFromOne) {
  Json json = Golden("kimi_linear_1");
  json["num_hidden_layers"] = 5;
  json["linear_attn_config"]["kda_layers"] = {5, 1, 3};
  json["linear_attn_config"]["full_attn_layers"] = {2, 4};
  EXPECT_THAT(ParseModelConfig(json.dump())->gdn_layers, ElementsAre(0, 2, 4));
  json["linear_attn_config"].erase("kda_layers");
  EXPECT_THAT(ParseModelConfig(json.dump())->gdn_layers, ElementsAre(0, 2, 4));
}

TEST(KdaConfig, BailingsHeadDimIsDoubtfulWhereTransformersMayHaveReplacedIt) {
  EXPECT_TRUE(ParseModelConfig(Golden("bailing_hybrid_1").dump())->head_dim_by_norm);
  const Json saved = Golden("bailing_hybrid_1", "config.transformers.json");
  ASSERT_NE(saved["head_dim"], saved["linear_head_dim"]);
  EXPECT_FALSE(ParseModelConfig(saved.dump())->head_dim_by_norm);
}

TEST(KdaConfig, BailingWithoutTheSafeGateHasASoftplus) {
  Json json = Golden("bailing_hybrid_1");
  json["kda_safe_gate"] = false;
  GDN_ASSERT_OK_AND_ASSIGN(const auto config, ParseModelConfig(json.dump()));
  EXPECT_EQ(config.spec.decay_gate, DecayGate::kSoftplus);
  EXPECT_EQ(config.spec.decay_lower_bound, 0.0f);
  json.erase("kda_safe_gate");
  json.erase("kda_lower_bound");
  EXPECT_EQ(ParseModelConfig(json.dump())->spec.decay_lower_bound, -5.0f);
}

// Each would make other layers than the family's, or is said twice and differently.
TEST(KdaConfig, WhatContradictsOrIsNotKnownIsRefusedByName) {
  struct Case {
    const char* set;
    std::function<void(Json&)> change;
    std::vector<std::string> message;
  };
  const auto kimi = [](const char* field, Json value) {
    return [field, value](Json& c) { c["linear_attn_config"][field] = value; };
  };
  const auto glm = [](const char* field, Json value) {
    return [field, value](Json& c) { c["text_config"]["linear_attn_config"][field] = value; };
  };
  const auto set = [](const char* field, Json value) { return [field, value](Json& c) { c[field] = value; }; };
  const Case cases[] = {
      {"kimi_linear_1", kimi("gate_lower_bound", -5.0), {"'linear_attn_config.gate_lower_bound' is -5.0", "none"}},
      {"kimi_linear_1", kimi("head_dim", 0), {"'linear_attn_config.head_dim' is 0", "[1, 1024]"}},
      {"kimi_linear_1", kimi("num_heads", nullptr), {"'linear_num_heads' is missing"}},
      {"kimi_linear_1", kimi("kda_layers", {0, 1}), {"'linear_attn_config.kda_layers'", "1 to 3"}},
      {"kimi_linear_1", kimi("kda_layers", {1, 4}), {"'linear_attn_config.kda_layers'", "1 to 3"}},
      {"kimi_linear_1", kimi("kda_layers", {1, 1, 2}), {"'linear_attn_config.kda_layers'"}},
      {"kimi_linear_1", kimi("kda_layers", {1}), {"'linear_attn_config.kda_layers'", "layer 2 of 3"}},
      {"kimi_linear_1", kimi("full_attn_layers", {2, 3}), {"'linear_attn_config.full_attn_layers'", "each in one"}},
      {"kimi_linear_1", kimi("full_attn_layers", "3"), {"'linear_attn_config.full_attn_layers'", "a list"}},
      {"kimi_linear_1", set("linear_attn_config", 3), {"'linear_attn_config' is 3", "an object"}},
      {"kimi_linear_1", set("linear_attn_config", nullptr), {"'linear_num_heads' is missing"}},
      {"kimi_linear_1", set("linear_head_dim", 16), {"'linear_head_dim' is 16", "32, as linear_attn_config.head_dim"}},
      {"kimi_linear_1",
       set("layer_types", {"linear_attention", "full_attention", "full_attention"}),
       {"'layer_types'", "other fields"}},
      {"kimi_linear_1", set("linear_lower_bound", -5.0), {"'linear_lower_bound'", "kimi_linear"}},
      {"kimi_linear_1", set("hidden_act", "gelu"), {"'hidden_act'", "\"silu\""}},
      {"glm5_next_1", glm("gate_lower_bound", 5.0), {"'linear_attn_config.gate_lower_bound' is 5.0", "below 0"}},
      {"glm5_next_1", glm("gate_lower_bound", "x"), {"'linear_attn_config.gate_lower_bound'", "a number"}},
      {"glm5_next_1", glm("safe_gate", false), {"'linear_attn_config.safe_gate' is false"}},
      {"glm5_next_1", glm("safe_gate", 1), {"'linear_attn_config.safe_gate' is 1", "true or false"}},
      {"glm5_next_1", glm("kda_layers", {0}), {"'layer_types'", "other fields"}},
      {"glm5_next_1",
       [](Json& c) { c["text_config"]["linear_lower_bound"] = -4.0; },
       {"'linear_lower_bound' is -4", "-5"}},
      {"glm5_next_1",
       [](Json& c) { c["text_config"]["linear_lower_bound"] = nullptr; },
       {"'linear_lower_bound' is null", "-5"}},
      {"bailing_hybrid_1", set("no_kda_lora", false), {"'no_kda_lora' is false", "full rank"}},
      {"bailing_hybrid_1", set("linear_attention", "lightning"), {"'linear_attention' is \"lightning\"", "\"kda\""}},
      {"bailing_hybrid_1", set("linear_num_heads", 4), {"'num_attention_heads' is 3", "4, as linear_num_heads"}},
      {"bailing_hybrid_1", set("kda_lower_bound", 0), {"'kda_lower_bound' is 0", "below 0"}},
      {"bailing_hybrid_1", set("layer_group_size", 2), {"'layer_group_size' is 2", "divisor of num_hidden_layers, 3"}},
      {"bailing_hybrid_1", set("layer_group_size", nullptr), {"'layer_group_size' is missing"}},
      {"bailing_hybrid_1",
       set("layer_types", {"linear_attention", "full_attention", "full_attention"}),
       {"'layer_types'", "other fields"}},
      {"bailing_hybrid_1", set("linear_silu", true), {"'linear_silu'", "bailing_hybrid"}},
  };
  for (const Case& c : cases) {
    Json json = Golden(c.set);
    c.change(json);
    const absl::Status status = ParseModelConfig(json.dump()).status();
    EXPECT_EQ(ErrorReason(status), reason::kInvalidSpec) << c.set << " " << c.message[0];
    for (const std::string& part : c.message) EXPECT_THAT(std::string(status.message()), HasSubstr(part)) << c.set;
  }
  Json k3 = KimiK3();
  k3["text_config"]["num_attention_heads"] = 4;
  EXPECT_THAT(std::string(ParseModelConfig(k3.dump()).status().message()),
              AllOf(HasSubstr("'num_attention_heads' is 4"), HasSubstr("3, as the linear layers have")));
}

}  // namespace
}  // namespace gdn::kda_config_test
