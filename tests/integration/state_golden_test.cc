// ExportState against transformers: the materialised state is the one that its cache holds.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/safetensors.h"
#include "tests/integration/service_helpers.h"
#include "tests/support/compare.h"

namespace gdn {
namespace {

constexpr char kSet[] = "qwen3_5_5";
constexpr double kGoldenTolerance = 1e-5;

TEST(StateFileGolden, TheMaterialisedStateIsTransformersFinalState) {
  TestServer server({.models = {{"m", GoldenPath(kSet)}}});
  const Caller caller(server);
  const SafetensorsFile io = SafetensorsFile::Open(GoldenPath(std::string(kSet) + "/io.safetensors")).value();
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "layer." + std::to_string(layer) + ".";
    const Tokens inputs = GoldenInputs(kSet, layer);
    const std::string id = "s" + std::to_string(layer);
    ASSERT_TRUE(caller.Create(id, "m").ok());
    ASSERT_TRUE(caller.Prefill(PrefillOf(id, layer, inputs.Slice(0, 150))).ok());
    ASSERT_TRUE(caller.Decode(DecodeOf({id}, layer, {inputs.Slice(150, 8)})).ok());
    const auto exported = caller.Export(id, /*include_recurrent_state=*/true);
    const SafetensorsFile file = SafetensorsFile::Parse(exported.reply).value();
    std::vector<float> expected = io.Floats(prefix + "recurrent_state").value();
    expected.resize(6 * 48 * 32);  // sequence 0
    EXPECT_LE(RelativeNormError(file.Floats(prefix + "recurrent_state").value(), expected), kGoldenTolerance);
    const std::vector<float> conv = file.Floats(prefix + "conv_state").value();
    const std::vector<float> golden = io.Floats(prefix + "conv_state").value();  // [B, C, 4]
    std::vector<float> newest;
    for (size_t c = 0; c < 384; ++c) newest.insert(newest.end(), &golden[4 * c + 1], &golden[4 * c] + 4);
    EXPECT_LE(RelativeNormError(conv, newest), kGoldenTolerance);
  }
}

}  // namespace
}  // namespace gdn
