// Value heads of a qwen35 file lie in the order that its key ssm.v_head_reordered says, and in tiled order without it.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/string_cat.h"
#include "gtest/gtest.h"
#include "server/model/loaded_model.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/server/model/layer_sessions.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/random.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_backend.h"

namespace gdn {
namespace {

constexpr char kGolden[] = "qwen3_5_1";
constexpr int64_t kKeyHeads = 2, kGroup = 2, kHiddenSize = 64;
constexpr double kTolerance = 1e-5;

// Element e of member j of key head i comes to block j H + i. The value heads are the middle one of [outer, HV, inner]
// from `first` on.
void Tile(std::vector<float>& values, int64_t outer, int64_t first, int64_t inner) {
  const std::vector<float> grouped = values;
  for (int64_t block = 0; block < outer * kKeyHeads * kGroup; ++block) {
    const int64_t o = block / (kKeyHeads * kGroup), i = block / kGroup % kKeyHeads, j = block % kGroup;
    const int64_t to = first + (o * kKeyHeads * kGroup + j * kKeyHeads + i) * inner;
    std::copy_n(grouped.begin() + first + block * inner, inner, values.begin() + to);
  }
}

struct Converted {
  const char* of_folder;
  const char* of_file;
  int64_t outer, first, inner;  // where its value heads are
};
constexpr int64_t kKeyRows = 2 * kKeyHeads * 32, kValueDim = 32, kTaps = 4;
constexpr Converted kTensors[] = {
    {"in_proj_qkv.weight", "attn_qkv.weight", 1, kKeyRows* kHiddenSize, kValueDim* kHiddenSize},
    {"in_proj_z.weight", "attn_gate.weight", 1, 0, kValueDim* kHiddenSize},
    {"in_proj_b.weight", "ssm_beta.weight", 1, 0, kHiddenSize},
    {"in_proj_a.weight", "ssm_alpha.weight", 1, 0, kHiddenSize},
    {"conv1d.weight", "ssm_conv1d.weight", 1, kKeyRows* kTaps, kValueDim* kTaps},
    {"A_log", "ssm_a", 1, 0, 1},
    {"dt_bias", "ssm_dt.bias", 1, 0, 1},
    {"norm.weight", "ssm_norm.weight", 0, 0, 0},
    {"out_proj.weight", "ssm_out.weight", kHiddenSize, 0, kValueDim}};

// The golden model in GGUF, its value heads tiled or not, with the key or without.
std::string GgufBytes(bool tiled, std::optional<bool> key) {
  GgufWriter writer;
  writer.Text("general.architecture", "qwen35");
  for (const auto& [name, value] :
       std::map<std::string, uint32_t>{{"block_count", 4},
                                       {"embedding_length", kHiddenSize},
                                       {"full_attention_interval", 4},
                                       {"ssm.conv_kernel", kTaps},
                                       {"ssm.state_size", 32},
                                       {"ssm.group_count", kKeyHeads},
                                       {"ssm.time_step_rank", kKeyHeads * kGroup},
                                       {"ssm.inner_size", kKeyHeads * kGroup * kValueDim}}) {
    writer.Int("qwen35." + name, value);
  }
  writer.Float("qwen35.attention.layer_norm_rms_epsilon", 1e-6f);
  if (key.has_value()) writer.Bool("qwen35.ssm.v_head_reordered", *key);
  const TestCheckpoint golden = TestCheckpoint::Golden(kGolden);
  for (int layer = 0; layer < 3; ++layer) {
    for (const Converted& c : kTensors) {
      const TestTensor& from = golden.tensors.at(StrCat("model.layers.", layer, ".linear_attn.", c.of_folder));
      std::vector<float> values = from.Floats();
      std::vector<int64_t> shape = from.shape;
      if (shape.size() == 3) shape.erase(shape.begin() + 1);
      if (std::string(c.of_file) == "ssm_a") {
        for (float& value : values) value = -std::exp(value);
      }
      if (tiled) Tile(values, c.outer, c.first, c.inner);
      writer.Tensor(StrCat("blk.", layer, ".", c.of_file), shape, GgmlType::kF32,
                    {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    }
  }
  return writer.Bytes();
}

std::vector<float> Outputs(Backend& backend, const std::string& path) {
  const absl::StatusOr<LoadedModel> model = LoadModel(backend, "model", path);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  Random random(31);
  absl::StatusOr<LayerSessions> sessions = LayerSessions::Make(backend, model->layers().at(1), /*sequences=*/1);
  EXPECT_TRUE(sessions.ok()) << sessions.status();
  return *sessions->Prefill(random.Normal(20 * kHiddenSize));
}

TEST(GgufHeadOrder, FollowsTheKeyAndIsTiledWithoutIt) {
  const std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/0);
  const std::vector<float> expected = Outputs(*backend, GoldenFolder(kGolden));
  TempFolder folder;
  const std::string path = folder.path() + "/model.gguf";
  for (const auto& [tiled, key] :
       {std::pair{false, std::optional(false)}, {true, std::optional(true)}, {true, std::optional<bool>()}}) {
    WriteFile(path, GgufBytes(tiled, key));
    EXPECT_LE(RelativeNormError(Outputs(*backend, path), expected), kTolerance)
        << (tiled ? "tiled" : "as in the model") << (key.has_value() ? *key ? ", true" : ", false" : ", no key");
  }
  // The key is needed: the other order is another model.
  WriteFile(path, GgufBytes(/*tiled=*/true, /*key=*/false));
  EXPECT_GT(RelativeNormError(Outputs(*backend, path), expected), 0.1);
}

}  // namespace
}  // namespace gdn
