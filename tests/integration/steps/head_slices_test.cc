// Servers of some value heads each: what they give adds up to what one server of all heads gives.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/integration/support/slice_servers.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn::head_slices_test {
namespace {

// Relative norm error of the sum of partial outputs against the whole server's.
constexpr double kSumTolerance = 1e-5;

struct ModelCase {
  std::string name;
  std::function<std::string(const TempFolder&)> path;  // may write the checkpoint there
  std::vector<HeadSlice> slices;
};

// A golden checkpoint with more heads, and random weights.
std::string WriteWide(const TempFolder& folder, const std::string& golden, int64_t key_heads, int64_t value_heads) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden(golden);
  auto& config = checkpoint.config;
  config["linear_num_key_heads"] = key_heads;
  config["linear_num_value_heads"] = value_heads;
  const int64_t hidden = config["hidden_size"], key_dim = config["linear_key_head_dim"];
  const int64_t value_dim = config["linear_value_head_dim"], width = config["linear_conv_kernel_dim"];
  const int64_t values = value_heads * value_dim, channels = 2 * key_heads * key_dim + values;
  Random random(11);
  for (auto& [name, tensor] : checkpoint.tensors) {
    const auto is = [&name = name](const char* end) { return name.ends_with(std::string("linear_attn.") + end); };
    std::vector<int64_t> shape;
    if (is("in_proj_qkvz.weight")) shape = {channels + values, hidden};
    if (is("in_proj_ba.weight")) shape = {2 * value_heads, hidden};
    if (is("in_proj_qkv.weight")) shape = {channels, hidden};
    if (is("in_proj_z.weight")) shape = {values, hidden};
    if (is("in_proj_b.weight") || is("in_proj_a.weight")) shape = {value_heads, hidden};
    if (is("conv1d.weight")) shape = {channels, 1, width};
    if (is("A_log") || is("dt_bias")) shape = {value_heads};
    if (is("out_proj.weight")) shape = {hidden, values};
    if (shape.empty()) continue;
    tensor = TestTensor::Filled(DType::kF32, shape, 0.0f);
    const auto count = static_cast<int64_t>(tensor.data.size() / sizeof(float));
    const std::vector<float> weights = random.Normal(count, shape.size() == 1 ? 1.0f : 0.125f);
    tensor.data.assign(reinterpret_cast<const char*>(weights.data()), tensor.data.size());
  }
  checkpoint.Write(folder.path());
  return folder.path();
}

std::function<std::string(const TempFolder&)> Golden(const std::string& name) {
  return [name](const TempFolder&) { return GoldenPath(name); };
}
std::function<std::string(const TempFolder&)> Wide(const std::string& golden) {
  return [golden](const TempFolder& folder) { return WriteWide(folder, golden, /*key_heads=*/4, /*value_heads=*/8); };
}

// Not alike, and not in order.
const std::vector<HeadSlice> kThree = {
    {.first = 2, .count = 4, .total = 8}, {.first = 0, .count = 2, .total = 8}, {.first = 6, .count = 2, .total = 8}};

class HeadSliceServers : public ::testing::TestWithParam<ModelCase> {};

TEST_P(HeadSliceServers, GiveTheSumThatOneServerGives) {
  const TempFolder folder;
  const std::string path = GetParam().path(folder);
  TestServer whole({.models = {{"m", path}}});
  Client whole_client(whole.channel());
  SliceServers servers(path, GetParam().slices);
  GDN_ASSERT_OK_AND_ASSIGN(auto sliced, servers.Create("s"));
  GDN_ASSERT_OK_AND_ASSIGN(auto one, DurableSession::Create(whole_client, SliceServers::RequestOf("s")));
  ASSERT_EQ(sliced->size(), static_cast<int>(GetParam().slices.size()));
  GDN_ASSERT_OK_AND_ASSIGN(const v1::Model model, whole_client.GetModel("models/m"));
  const Tokens inputs = RandomTokens(480, /*seed=*/3, model.dims().hidden_size());
  int64_t at = 0;
  double worst = 0;
  const auto compare = [&](const v1::Tensor& sum, const v1::Tensor& expected) {
    const double error = RelativeNormError(Floats(sum), Floats(expected));
    EXPECT_LE(error, kSumTolerance) << "from token " << at;
    EXPECT_EQ(sum.dtype(), v1::DTYPE_F32);
    worst = std::max(worst, error);
  };
  const auto prefill = [&](int layer, int64_t tokens) {
    const v1::PrefillRequest request = PrefillOf("s", layer, inputs.Slice(at, tokens));
    GDN_ASSERT_OK_AND_ASSIGN(const auto sum, sliced->Prefill(request));
    GDN_ASSERT_OK_AND_ASSIGN(const auto expected, one->Prefill(request));
    compare(sum.output(), expected.output());
    EXPECT_EQ(sum.token_count(), expected.token_count());
  };
  const auto decode = [&](int layer, int64_t tokens, bool draft = false) {
    v1::DecodeRequest request = DecodeOf({"s"}, layer, {inputs.Slice(at, tokens)});
    request.set_draft(draft);
    GDN_ASSERT_OK_AND_ASSIGN(const auto sum, sliced->Decode(request));
    GDN_ASSERT_OK_AND_ASSIGN(const auto expected, one->Decode(request));
    compare(sum.output(), expected.output());
  };
  for (int layer = 0; layer < 2; ++layer) {
    at = 0;
    prefill(layer, 37);
    for (at = 37; at < 57; ++at) decode(layer, 1);  // over a fold of the log
    decode(layer, 4, /*draft=*/true);
    GDN_ASSERT_OK_AND_ASSIGN(const auto counts, sliced->AcceptTokens(2));
    ASSERT_TRUE(one->AcceptTokens(2).ok());
    EXPECT_EQ(counts.layers(layer).token_count(), 59);
    at = 59;
    decode(layer, 3);
    at = 62;
    prefill(layer, 40);
    at = 102;
    prefill(layer, 300);  // long enough for the matrices' other kernels
    at = 402;
    decode(layer, 1);
  }
  // The states are one session's, by heads.
  const auto exported = Caller(whole).Export("s");
  ASSERT_TRUE(exported.ok());
  const double state_error = WorstStateError(JoinFiles(servers.Export("s")), exported.reply);
  EXPECT_LE(state_error, kSumTolerance);
  std::printf("%s: worst relative error %.1e of outputs, %.1e of states\n", GetParam().name.c_str(), worst,
              state_error);
}

INSTANTIATE_TEST_SUITE_P(
    Models, HeadSliceServers,
    ::testing::Values(ModelCase{"qwen3_next_by_two", Golden("qwen3_next_1"), kHalves},
                      ModelCase{"qwen3_next_by_three", Wide("qwen3_next_1"), kThree},
                      ModelCase{"qwen3_5_by_two", Golden("qwen3_5_1"), kHalves},
                      ModelCase{"qwen3_5_by_three", Wide("qwen3_5_1"), kThree},
                      ModelCase{"olmo_hybrid_by_two",
                                Golden("olmo_hybrid_1"),
                                {{.first = 0, .count = 2, .total = 3}, {.first = 2, .count = 1, .total = 3}}},
                      ModelCase{"olmo_hybrid_by_three",
                                Golden("olmo_hybrid_1"),
                                {{.first = 0, .count = 1, .total = 3},
                                 {.first = 1, .count = 1, .total = 3},
                                 {.first = 2, .count = 1, .total = 3}}},
                      ModelCase{"gguf_tiled_by_two", Golden("gguf_qwen35_1/q8_0.gguf"), kHalves},
                      ModelCase{"gguf_split_by_two", Golden("gguf_qwen3next_1/q8_0.gguf"), kHalves},
                      ModelCase{"fp8_by_two", Golden("fp8_qwen3_5_1"), kHalves}),
    [](const auto& test_info) { return test_info.param.name; });

}  // namespace
}  // namespace gdn::head_slices_test
