// A qwen35 file as llama.cpp's and Ollama's converters write it, of a golden model, computes what that model computes.
// Value heads lie in the order that the key ssm.v_head_reordered says, and in tiled order without it.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
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

namespace gdn::gguf_head_order_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

// How a converter writes the golden model.
struct Spelling {
  bool tiled = false;
  std::optional<bool> key = {};  // ssm.v_head_reordered
  bool short_dt = false;         // "ssm_dt", as older files of Ollama's have it, for "ssm_dt.bias"
  bool joined_ba = false;        // "ssm_ba.weight": for each key head the rows of b, then those of a
};

std::string Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// For each key head its rows of `b`, then those of `a`.
std::vector<float> JoinByKeyHead(const std::vector<float>& b, const std::vector<float>& a) {
  constexpr int64_t kEach = kGroup * kHiddenSize;
  std::vector<float> joined;
  for (int64_t i = 0; i < kKeyHeads; ++i) {
    joined.insert(joined.end(), b.begin() + i * kEach, b.begin() + (i + 1) * kEach);
    joined.insert(joined.end(), a.begin() + i * kEach, a.begin() + (i + 1) * kEach);
  }
  return joined;
}

// The golden model in GGUF.
std::string GgufBytes(const Spelling& spelling) {
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
  if (spelling.key.has_value()) writer.Bool("qwen35.ssm.v_head_reordered", *spelling.key);
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
      if (spelling.tiled) Tile(values, c.outer, c.first, c.inner);
      std::string name = c.of_file;
      if (spelling.short_dt && name == "ssm_dt.bias") name = "ssm_dt";
      if (spelling.joined_ba && name == "ssm_alpha.weight") continue;
      if (spelling.joined_ba && name == "ssm_beta.weight") {
        const std::string a = StrCat("model.layers.", layer, ".linear_attn.in_proj_a.weight");
        values = JoinByKeyHead(values, golden.tensors.at(a).Floats());
        shape[0] *= 2;
        name = "ssm_ba.weight";
      }
      writer.Tensor(StrCat("blk.", layer, ".", name), shape, GgmlType::kF32, Bytes(values));
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

// The relative error of the served file's outputs.
class GgufSpellings : public ::testing::Test {
 protected:
  double ErrorOf(const Spelling& spelling) {
    WriteFile(path_, GgufBytes(spelling));
    return RelativeNormError(Outputs(*backend_, path_), expected_);
  }
  absl::Status Refusal(const Spelling& spelling) {
    WriteFile(path_, GgufBytes(spelling));
    return LoadModel(*backend_, "model", path_).status();
  }

 private:
  const std::unique_ptr<Backend> backend_ = MakeTestBackend(/*threads=*/0);
  const std::vector<float> expected_ = Outputs(*backend_, GoldenFolder(kGolden));
  TempFolder folder_;
  const std::string path_ = folder_.path() + "/model.gguf";
};

TEST_F(GgufSpellings, TheOrderOfValueHeadsFollowsTheKeyAndIsTiledWithoutIt) {
  EXPECT_LE(ErrorOf({.tiled = false, .key = false}), kTolerance);
  EXPECT_LE(ErrorOf({.tiled = true, .key = true}), kTolerance);
  EXPECT_LE(ErrorOf({.tiled = true}), kTolerance);
  // The key is needed: the other order is another model.
  EXPECT_GT(ErrorOf({.tiled = true, .key = false}), 0.1);
}

TEST_F(GgufSpellings, DtBiasMayBeSpelledWithoutItsSuffix) {
  EXPECT_LE(ErrorOf({.tiled = true, .key = true, .short_dt = true}), kTolerance);
  EXPECT_LE(ErrorOf({.tiled = false, .key = false, .short_dt = true}), kTolerance);
}

// Ollama converts Qwen3-Next to qwen35moe: b and a stay one tensor, and the heads stay in the model's order.
TEST_F(GgufSpellings, AJoinedBaMeansTheModelsOrderOfHeads) {
  EXPECT_LE(ErrorOf({.tiled = false, .joined_ba = true}), kTolerance);
  EXPECT_LE(ErrorOf({.tiled = false, .key = false, .joined_ba = true}), kTolerance);
  EXPECT_LE(ErrorOf({.tiled = false, .key = false, .short_dt = true, .joined_ba = true}), kTolerance);
}

TEST_F(GgufSpellings, AJoinedBaWhoseOrderIsNotKnownIsRefusedByName) {
  // No converter tiles the rows of a joined tensor.
  const absl::Status tiled = Refusal({.tiled = true, .key = true, .joined_ba = true});
  ExpectError(tiled, absl::StatusCode::kInvalidArgument, reason::kInvalidSpec);
  EXPECT_THAT(std::string(tiled.message()), AllOf(HasSubstr("qwen35.ssm.v_head_reordered"), HasSubstr("is true"),
                                                  HasSubstr("ssm_ba.weight"), HasSubstr("convert")));
  // Converters that spell the bias in short have written all rows of b before all rows of a, too.
  const absl::Status ambiguous = Refusal({.short_dt = true, .joined_ba = true});
  ExpectError(ambiguous, absl::StatusCode::kInvalidArgument, reason::kInvalidSpec);
  EXPECT_THAT(std::string(ambiguous.message()),
              AllOf(HasSubstr("blk.0.ssm_ba.weight"), HasSubstr("blk.0.ssm_dt"), HasSubstr("convert")));
}

}  // namespace
}  // namespace gdn::gguf_head_order_test
