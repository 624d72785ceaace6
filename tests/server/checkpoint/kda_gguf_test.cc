// KDA layers in GGUF: files that are made of the golden checkpoints as llama.cpp's converters would make them.
#include <cmath>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/gguf_checkpoint.h"
#include "tests/server/checkpoint/kda_gguf.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn::kda_gguf_test {
namespace {

using ::testing::HasSubstr;

struct Opened {
  std::string bytes;
  absl::StatusOr<Checkpoint> checkpoint;
};

std::unique_ptr<Opened> Open(const KdaGguf& file) {
  auto opened = std::make_unique<Opened>(Opened{file.Bytes(), absl::UnknownError("")});
  auto parsed = GgufFile::Parse(opened->bytes);
  opened->checkpoint = parsed.ok() ? ReadGguf(*std::move(parsed)) : parsed.status();
  return opened;
}

std::vector<float> Values(const Checkpoint& checkpoint, size_t layer, LayerTensor tensor) {
  const StoredTensor& stored = checkpoint.layers[layer].tensors.at(tensor);
  std::vector<float> values(static_cast<size_t>(stored.ElementCount()));
  DecodeTensor(stored, values.data());
  return values;
}

struct Case {
  const char* golden;
  const char* architecture;
};
constexpr Case kCases[] = {
    {"kimi_linear_1", "kimi-linear"}, {"glm5_next_1", "glm5-next"}, {"bailing_hybrid_1", "bailingmoe3"}};

TEST(KdaGguf, HasTheLayersOfTheCheckpointThatItIsMadeOf) {
  for (const Case& c : kCases) {
    GDN_ASSERT_OK_AND_ASSIGN(const auto folder, OpenCheckpoint(GoldenFolder(c.golden)));
    const auto opened = Open(KdaGguf::Of(c.golden));
    ASSERT_TRUE(opened->checkpoint.ok()) << opened->checkpoint.status();
    const Checkpoint& file = *opened->checkpoint;
    LayerSpec expected = folder.config.spec;
    expected.a_log = ALogConvention::kNegativeExp;
    EXPECT_EQ(file.config.spec, expected) << c.golden;
    EXPECT_EQ(file.config.gdn_layers, folder.config.gdn_layers);
    EXPECT_EQ(file.config.num_layers, folder.config.num_layers);
    EXPECT_FALSE(file.config.family->verified);  // the files are this test's, and not llama.cpp's
    for (size_t layer = 0; layer < folder.layers.size(); ++layer) {
      for (const auto& [tensor, stored] : folder.layers[layer].tensors) {
        std::vector<float> want = Values(folder, layer, tensor);
        if (tensor == LayerTensor::kALog) {
          for (float& value : want) value = -std::exp(value);
        }
        EXPECT_EQ(Values(file, layer, tensor), want) << c.golden << " " << static_cast<int>(tensor);
        EXPECT_EQ(file.layers[layer].tensors.at(tensor).shape, stored.shape) << c.golden;
      }
    }
  }
}

TEST(KdaGguf, KimiK3HasOneMatrixForItsGate) {
  KdaGguf file = KdaGguf::Of("kimi_linear_1");
  file.architecture = "kimi-k3";
  file.lower_bound = -5.0f;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    file.tensors[block + "ssm_g.weight"] = {{96, 64}, std::vector<float>(size_t{96} * 64, 0.5f)};
    file.tensors.erase(block + "ssm_g_a.weight");
    file.tensors.erase(block + "ssm_g_b.weight");
  }
  const auto opened = Open(file);
  ASSERT_TRUE(opened->checkpoint.ok()) << opened->checkpoint.status();
  const LayerSpec& spec = opened->checkpoint->config.spec;
  EXPECT_EQ(spec.decay_rank, 32);
  EXPECT_EQ(spec.output_gate_rank, 0);
  EXPECT_EQ(spec.decay_gate, DecayGate::kBoundedSigmoid);
  file.lower_bound.reset();
  EXPECT_EQ(Open(file)->checkpoint->config.spec.decay_gate, DecayGate::kSoftplus);
}

TEST(KdaGguf, BlocksOfPredictionAreAttention) {
  KdaGguf file = KdaGguf::Of("glm5_next_1");
  file.ints["block_count"] = 4;
  file.ints["nextn_predict_layers"] = 1;
  file.head_count_kv = {0, 0, 1, 1};
  const auto opened = Open(file);
  ASSERT_TRUE(opened->checkpoint.ok()) << opened->checkpoint.status();
  EXPECT_EQ(opened->checkpoint->config.num_layers, 3);
}

TEST(KdaGguf, WhatCannotBeServedIsRefusedByName) {
  struct Bad {
    const char* golden;
    std::function<void(KdaGguf&)> change;
    std::vector<std::string> message;
  };
  const auto negate = [](const char* tensor) {
    return [tensor](KdaGguf& f) {
      for (float& value : f.tensors.at(tensor).values) value = -value;
    };
  };
  const Bad cases[] = {
      {"kimi_linear_1", [](KdaGguf& f) { f.lower_bound = -5.0f; }, {"kimi-linear.kda.gate_lower_bound", "no bound"}},
      {"glm5_next_1", [](KdaGguf& f) { f.lower_bound = 0.0f; }, {"glm5-next.kda.gate_lower_bound", "below 0"}},
      {"bailing_hybrid_1",
       [](KdaGguf& f) { f.lower_bound.reset(); },
       {"'bailingmoe3.kda.gate_lower_bound' is missing"}},
      {"glm5_next_1",
       [](KdaGguf& f) {
         f.lower_bound.reset();
         f.safe_gate = true;
       },
       {"glm5-next.kda.safe_gate", "is true without kda.gate_lower_bound"}},
      {"bailing_hybrid_1", [](KdaGguf& f) { f.safe_gate = false; }, {"bailingmoe3.kda.safe_gate", "is false"}},
      {"kimi_linear_1", [](KdaGguf& f) { f.ints.erase("kda.head_dim"); }, {"'kimi-linear.kda.head_dim' is missing"}},
      {"kimi_linear_1",
       [](KdaGguf& f) {
         f.head_count_kv = {0, 0};
       },
       {"attention.head_count_kv", "has 2 values"}},
      {"kimi_linear_1",
       [](KdaGguf& f) {
         f.head_count_kv = {1, 1, 1};
       },
       {"attention.head_count_kv", "no Gated DeltaNet layer"}},
      {"kimi_linear_1", negate("blk.1.ssm_a"), {"'blk.1.ssm_a'", "not above 0"}},
      {"bailing_hybrid_1", negate("blk.1.ssm_a"), {"'blk.1.ssm_a'", "exp(A_log), which is not below 0"}},
      {"kimi_linear_1",
       [](KdaGguf& f) { f.tensors.erase("blk.1.ssm_f_b.weight"); },
       {"'blk.1.ssm_f_b.weight' is missing", "[96, 32]"}},
      {"kimi_linear_1",
       [](KdaGguf& f) { f.tensors["blk.0.attn_qkv.weight"] = f.tensors.at("blk.0.attn_q.weight"); },
       {"'blk.0.attn_qkv.weight'", "not part of a kimi-linear layer"}},
      {"kimi_linear_1",
       [](KdaGguf& f) {
         f.tensors["blk.0.attn_q.bias"] = {{96}, std::vector<float>(96)};
       },
       {"'blk.0.attn_q.bias'"}},
      {"kimi_linear_1",
       [](KdaGguf& f) { f.tensors["blk.2.ssm_a"] = f.tensors.at("blk.1.ssm_a"); },
       {"'blk.2.ssm_a'", "by the file's keys its block is not linear"}},
  };
  for (const Bad& bad : cases) {
    KdaGguf file = KdaGguf::Of(bad.golden);
    bad.change(file);
    const absl::Status status = Open(file)->checkpoint.status();
    EXPECT_FALSE(status.ok()) << bad.golden << " " << bad.message[0];
    for (const std::string& part : bad.message) EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

}  // namespace
}  // namespace gdn::kda_gguf_test
