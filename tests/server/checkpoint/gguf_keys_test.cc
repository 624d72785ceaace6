// Every key of a GGUF header below the architecture's name is read, of another part of the model, or refused by name.
#include "server/checkpoint/gguf_keys.h"

#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/gguf_architecture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/gguf_writer.h"

namespace gdn::gguf_keys_test {
namespace {

using ::testing::HasSubstr;
using Value = std::variant<uint32_t, float, bool, std::vector<bool>, std::vector<int32_t>, std::string>;
using Header = std::map<std::string, Value>;

absl::StatusOr<GgufConfig> Read(const std::string& architecture, const Header& header) {
  GgufWriter writer;
  writer.Text("general.architecture", architecture);
  for (const auto& [name, value] : header) {
    const std::string key = architecture + "." + name;
    if (const auto* number = std::get_if<uint32_t>(&value)) writer.Int(key, *number);
    if (const auto* number = std::get_if<float>(&value)) writer.Float(key, *number);
    if (const auto* flag = std::get_if<bool>(&value)) writer.Bool(key, *flag);
    if (const auto* flags = std::get_if<std::vector<bool>>(&value)) writer.Bools(key, *flags);
    if (const auto* numbers = std::get_if<std::vector<int32_t>>(&value)) writer.Ints(key, *numbers);
    if (const auto* text = std::get_if<std::string>(&value)) writer.Text(key, *text);
  }
  const std::string bytes = writer.Bytes();
  GDN_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Parse(bytes));
  return ReadGgufConfig(file);
}

// A header that is whole, and for each key that is read a value that must not go unnoticed.
struct Kind {
  const char* architecture;
  bool kda;
  Header header;
  Header others;
};

std::vector<Kind> Kinds() {
  const Header gdn = {{"block_count", 4u},     {"embedding_length", 32u}, {"attention.layer_norm_rms_epsilon", 1e-6f},
                      {"ssm.conv_kernel", 4u}, {"ssm.group_count", 2u},   {"ssm.inner_size", 48u},
                      {"ssm.state_size", 8u},  {"ssm.time_step_rank", 4u}};
  const Header other_gdn = {{"block_count", 8u},
                            {"embedding_length", 64u},
                            {"nextn_predict_layers", 1u},
                            {"full_attention_interval", 2u},
                            {"attention.head_count_kv", std::vector<int32_t>{0, 1, 0, 1}},
                            {"attention.layer_norm_rms_epsilon", 1e-5f},
                            {"attention.recurrent_layers", std::vector<bool>{true, false, true, false}},
                            {"ssm.conv_kernel", 3u},
                            {"ssm.group_count", 4u},
                            {"ssm.inner_size", 96u},
                            {"ssm.state_size", 16u},
                            {"ssm.time_step_rank", 2u},
                            {"ssm.v_head_reordered", false}};
  Header other_next = other_gdn;
  other_next["ssm.v_head_reordered"] = true;
  const Header kda = {{"block_count", 4u},
                      {"embedding_length", 32u},
                      {"attention.head_count", 2u},
                      {"attention.head_count_kv", std::vector<int32_t>{0, 0, 0, 1}},
                      {"attention.layer_norm_rms_epsilon", 1e-6f},
                      {"kda.head_dim", 8u},
                      {"ssm.conv_kernel", 4u}};
  Header bounded = kda;
  bounded["kda.gate_lower_bound"] = -5.0f;
  const Header other_kda = {{"block_count", 8u},
                            {"embedding_length", 64u},
                            {"nextn_predict_layers", 1u},
                            {"attention.head_count", 4u},
                            {"attention.head_count_kv", std::vector<int32_t>{0, 1, 0, 1}},
                            {"attention.layer_norm_rms_epsilon", 1e-5f},
                            {"kda.gate_lower_bound", -4.0f},
                            {"kda.head_dim", 16u},
                            {"kda.safe_gate", false},
                            {"ssm.conv_kernel", 3u}};
  std::vector<Kind> kinds;
  for (const char* name : {"qwen35", "qwen35moe", "qwen4exp"}) kinds.push_back({name, false, gdn, other_gdn});
  kinds.push_back({"qwen3next", false, gdn, other_next});
  for (const char* name : {"kimi-linear", "kimi-k3", "glm5-next"}) kinds.push_back({name, true, kda, other_kda});
  kinds.push_back({"bailingmoe3", true, bounded, other_kda});
  return kinds;
}

bool SameLayers(const ModelConfig& a, const ModelConfig& b) {
  return a.spec == b.spec && a.gdn_layers == b.gdn_layers && a.num_layers == b.num_layers;
}

TEST(GgufKeys, AKeyThatIsReadChangesTheLayersOrIsRefusedByName) {
  for (const Kind& kind : Kinds()) {
    GDN_ASSERT_OK_AND_ASSIGN(const GgufConfig config, Read(kind.architecture, kind.header));
    std::set<std::string> tried;
    for (const auto& [key, value] : kind.others) {
      SCOPED_TRACE(std::string(kind.architecture) + "." + key);
      tried.insert(key);
      Header changed = kind.header;
      changed[key] = value;
      const absl::StatusOr<GgufConfig> read = Read(kind.architecture, changed);
      if (read.ok()) {
        EXPECT_FALSE(SameLayers(read->config, config.config)) << "the key is passed over";
      } else {
        EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
        EXPECT_EQ(ErrorReason(read.status()), reason::kInvalidSpec);
      }
    }
    const auto known = GgufKeysRead(kind.kda);
    EXPECT_EQ(tried, std::set<std::string>(known.begin(), known.end()));
  }
}

// Keys of other parts that the converters of llama.cpp and Ollama write.
TEST(GgufKeys, KeysOfOtherPartsChangeNothing) {
  const Header others = {{"activation.situ_beta", 1.5f},
                         {"attention.causal", true},
                         {"attention.indexer.head_count", 4u},
                         {"attention.key_length", 64u},
                         {"attention.key_length_mla", 64u},
                         {"attention.kv_lora_rank", 64u},
                         {"attention.q_lora_rank", 64u},
                         {"attention.sliding_window", 64u},
                         {"attention.value_length", 64u},
                         {"attn_res.block_size", 4u},
                         {"context_length", 2048u},
                         {"expert_count", 8u},
                         {"expert_feed_forward_length", 64u},
                         {"expert_gating_func", 2u},
                         {"expert_group_count", 2u},
                         {"expert_shared_feed_forward_length", 64u},
                         {"expert_used_count", 2u},
                         {"expert_weights_norm", true},
                         {"expert_weights_scale", 2.5f},
                         {"feed_forward_length", 64u},
                         {"image_token_id", 7u},
                         {"leading_dense_block_count", 1u},
                         {"mrope_sections", std::vector<int32_t>{1, 1, 2, 0}},
                         {"norm_top_k_prob", true},
                         {"rope.dimension_count", 8u},
                         {"rope.dimension_sections", std::vector<int32_t>{1, 1, 2, 0}},
                         {"rope.freq_base", 1e6f},
                         {"rope.mrope_interleaved", true},
                         {"rope.scaling.type", std::string("yarn")},
                         {"vision.block_count", 12u},
                         {"vision.image_mean", 0.5f},
                         {"vocab_size", 128u}};
  for (const Kind& kind : Kinds()) {
    GDN_ASSERT_OK_AND_ASSIGN(const GgufConfig config, Read(kind.architecture, kind.header));
    for (const auto& [key, value] : others) {
      EXPECT_FALSE(ConcernsLinearLayers(key)) << key;
      Header with = kind.header;
      with[key] = value;
      GDN_ASSERT_OK_AND_ASSIGN(const GgufConfig read, Read(kind.architecture, with));
      EXPECT_TRUE(SameLayers(read.config, config.config)) << kind.architecture << "." << key;
    }
  }
}

TEST(GgufKeys, AnUnknownKeyOfLinearLayersIsRefusedByName) {
  const char* const both[] = {"ssm.dt_b_c_rms",        "ssm.gate_scale",
                              "ssm_beta_scale",        "kda.output_gate",
                              "gdn.beta_scale",        "gated_delta_net.allow_neg_eigval",
                              "delta_rule.beta_scale", "linear_attn.norm",
                              "recurrent.state_size",  "wkv.head_size",
                              "shortconv.l_cache",     "full_attention_offset",
                              "attention.linear_gate", "attention.recurrent_interval"};
  const char* const of_kda[] = {"kda.head_dim", "kda.safe_gate", "kda.gate_lower_bound"};
  const char* const of_gdn[] = {"ssm.group_count",        "ssm.inner_size",       "ssm.state_size",
                                "ssm.time_step_rank",     "ssm.v_head_reordered", "attention.recurrent_layers",
                                "full_attention_interval"};
  for (const Kind& kind : Kinds()) {
    std::vector<std::string> unknown(std::begin(both), std::end(both));
    if (kind.kda) {
      unknown.insert(unknown.end(), std::begin(of_gdn), std::end(of_gdn));
    } else {
      unknown.insert(unknown.end(), std::begin(of_kda), std::end(of_kda));
    }
    for (const std::string& key : unknown) {
      Header with = kind.header;
      with[key] = 1u;
      const absl::Status status = Read(kind.architecture, with).status();
      ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, key);
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(kind.architecture) + "." + key));
    }
  }
}

TEST(GgufKeys, BlocksWithoutHeadsForKeysAreLinearAndMayNotContradictTheList) {
  Kind kind = Kinds().front();
  kind.header["attention.head_count_kv"] = std::vector<int32_t>{2, 0, 0, 2};
  GDN_ASSERT_OK_AND_ASSIGN(const GgufConfig by_heads, Read(kind.architecture, kind.header));
  EXPECT_EQ(by_heads.config.gdn_layers, (std::vector<int32_t>{1, 2}));
  kind.header["attention.recurrent_layers"] = std::vector<bool>{false, true, true, false};
  GDN_ASSERT_OK_AND_ASSIGN(const GgufConfig agreed, Read(kind.architecture, kind.header));
  EXPECT_EQ(agreed.config.gdn_layers, by_heads.config.gdn_layers);
  kind.header["attention.recurrent_layers"] = std::vector<bool>{true, true, true, false};
  const absl::Status status = Read(kind.architecture, kind.header).status();
  ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidSpec);
  EXPECT_THAT(std::string(status.message()), HasSubstr("recurrent_layers"));
  // The same number of heads in each block says nothing of layers.
  kind.header.erase("attention.recurrent_layers");
  kind.header["attention.head_count_kv"] = std::vector<int32_t>{2, 2, 2, 2};
  GDN_ASSERT_OK_AND_ASSIGN(const GgufConfig by_interval, Read(kind.architecture, kind.header));
  EXPECT_EQ(by_interval.config.gdn_layers, (std::vector<int32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace gdn::gguf_keys_test
