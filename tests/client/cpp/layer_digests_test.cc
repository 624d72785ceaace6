// A client's own weights against the digests of a real server.
#include "client/cpp/layer_digests.h"

#include <string>
#include <vector>

#include "base/files/safetensors.h"
#include "base/string_cat.h"
#include "client/cpp/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/support/test_server.h"
#include "tests/support/assert_ok.h"

namespace gdn::layer_digests_test {
namespace {

using ::testing::HasSubstr;

// One layer's tensors in a checkpoint. `prefix`: the beginning of the layer's names.
std::vector<OwnTensor> TensorsBelow(const SafetensorsFile& file, const std::string& prefix) {
  std::vector<OwnTensor> tensors;
  for (const auto& [name, entry] : file.entries()) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view below = std::string_view(name).substr(prefix.size());
    tensors.push_back({below, entry.dtype, entry.shape, file.Bytes(name).value()});
  }
  return tensors;
}

class LayerDigests : public ::testing::TestWithParam<std::string> {
 protected:
  LayerDigests()
      : server_({.models = {{"m", GoldenPath(GetParam())}}}),
        client_(server_.channel()),
        file_(SafetensorsFile::Open(GoldenPath(GetParam()) + "/model.safetensors").value()),
        model_(client_.GetModel("models/m").value()) {}

  std::vector<OwnTensor> TensorsOf(int32_t layer) const {
    for (const char* prefix : {"model.layers.", "model.language_model.layers."}) {
      std::vector<OwnTensor> tensors = TensorsBelow(file_, StrCat(prefix, layer, ".linear_attn."));
      if (!tensors.empty()) return tensors;
    }
    return {};
  }

  TestServer server_;
  Client client_;
  const SafetensorsFile file_;
  v1::Model model_;
};

TEST_P(LayerDigests, AreThoseOfTheCheckpointsTensors) {
  ASSERT_EQ(model_.layer_digests_size(), model_.gdn_layers_size());
  for (const int32_t layer : model_.gdn_layers()) {
    GDN_ASSERT_OK_AND_ASSIGN(const LayerMatch match, CompareLayer(model_, layer, TensorsOf(layer)));
    EXPECT_EQ(match, LayerMatch::kEqual) << layer;
  }
}

TEST_P(LayerDigests, DifferIfOneElementDoes) {
  const std::vector<OwnTensor> tensors = TensorsOf(model_.gdn_layers(0));
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<OwnTensor> changed = tensors;
    std::string data(tensors[i].data);
    data.back() ^= 1;
    changed[i].data = data;
    GDN_ASSERT_OK_AND_ASSIGN(const LayerMatch match, CompareLayer(model_, model_.gdn_layers(0), changed));
    EXPECT_EQ(match, LayerMatch::kDifferent) << tensors[i].name;
  }
  GDN_ASSERT_OK_AND_ASSIGN(const LayerMatch other, CompareLayer(model_, model_.gdn_layers(1), tensors));
  EXPECT_EQ(other, LayerMatch::kDifferent) << "the index belongs to the digest";
}

TEST_P(LayerDigests, CannotBeComparedInAnotherFormat) {
  const int32_t layer = model_.gdn_layers(0);
  std::vector<OwnTensor> tensors = TensorsOf(layer);
  for (OwnTensor& tensor : tensors) {
    const std::string_view before = tensor.format;
    if (tensor.name.ends_with("_scale_inv")) continue;
    tensor.format = "F16";
    GDN_ASSERT_OK_AND_ASSIGN(const LayerMatch match, CompareLayer(model_, layer, tensors));
    EXPECT_EQ(match, LayerMatch::kNotComparable) << tensor.name;
    tensor.format = before;
  }
  model_.mutable_layer_digests(0)->set_has_adapter(true);
  GDN_ASSERT_OK_AND_ASSIGN(const LayerMatch match, CompareLayer(model_, layer, tensors));
  EXPECT_EQ(match, LayerMatch::kNotComparable);
}

TEST_P(LayerDigests, NeedAllTensorsAndAServedLayer) {
  const int32_t layer = model_.gdn_layers(0);
  const std::vector<OwnTensor> tensors = TensorsOf(layer);
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<OwnTensor> rest = tensors;
    rest.erase(rest.begin() + static_cast<ptrdiff_t>(i));
    const absl::Status status = CompareLayer(model_, layer, rest).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(StrCat("'", tensors[i].name, "'")));
  }
  EXPECT_EQ(CompareLayer(model_, 99, tensors).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CompareLayer(v1::Model(), layer, tensors).status().code(), absl::StatusCode::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(Golden, LayerDigests,
                         ::testing::Values("qwen3_5_1", "qwen3_next_5", "fp8_qwen3_5_1", "olmo_hybrid_1"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace gdn::layer_digests_test
