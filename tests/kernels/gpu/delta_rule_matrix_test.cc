// The chunked delta rule on matrix units: what the tests of every path (delta_rule_prefill_test.cc) leave open. The
// executor runs some of those with matrix units too. The rows of gdn_parity have the errors against double.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/test_backend.h"

namespace gdn {
namespace {

constexpr double kChunkTolerance = 5e-6;

class DeltaRuleMatrix : public testing::Test {
 protected:
  static absl::StatusOr<std::unique_ptr<Backend>> Make() {
    setenv("GDN_HOST_MATRIX_UNITS", "1", /*overwrite=*/1);
    auto backend = MakeBackend(GpuBackendName() == "host" ? "host32" : "gpu");
    unsetenv("GDN_HOST_MATRIX_UNITS");
    return backend;
  }
  void SetUp() override {
    if (!backend_.ok()) GTEST_SKIP() << backend_.status();
    ASSERT_NE((*backend_)->info().numerics_id.find("-mma"), std::string::npos);
  }
  Backend& backend() { return **backend_; }

 private:
  absl::StatusOr<std::unique_ptr<Backend>> backend_ = Make();
};

TEST_F(DeltaRuleMatrix, GivesTheSameBitsAloneInSegmentsAndInABatch) {
  const LayerDims dims = OperatorDims(1, 2, 100, 20);  // keys in four parts, the last one short; two tiles of columns
  const std::vector<int32_t> lengths = {70, 0, 130};
  Random random(3);
  std::vector<DeltaRuleInputs> parts;
  for (const int32_t length : lengths) parts.push_back(RandomDeltaRuleInputs(dims, length, random));
  DecodeSlots slots(backend(), dims, 3);
  const std::vector<float> packed = slots.Run(DeltaRulePath::kChunk, Concatenate(parts), lengths, {0, 1, 2});
  size_t row = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    DecodeSlots alone(backend(), dims, 1);
    std::vector<float> output;
    for (int64_t t = 0; t < lengths[i]; t += 64) {
      const auto segment = alone.Run(DeltaRulePath::kChunk, Slice(parts[i], t, std::min<int64_t>(t + 64, lengths[i])));
      output.insert(output.end(), segment.begin(), segment.end());
    }
    EXPECT_TRUE(BitEqual(absl::MakeSpan(packed).subspan(row, output.size()), output)) << "sequence " << i;
    EXPECT_TRUE(BitEqual(slots.Base(static_cast<int32_t>(i)), alone.Base(0))) << "sequence " << i;
    row += output.size();
  }
}

TEST_F(DeltaRuleMatrix, AnInfinityOrNotANumberStaysInItsHead) {
  const LayerDims dims = OperatorDims(2, 2, 32, 16);
  Random random(4);
  const DeltaRuleInputs good = RandomDeltaRuleInputs(dims, 70, random);
  DecodeSlots expected(backend(), dims, 1);
  const std::vector<float> output = expected.Run(DeltaRulePath::kChunk, good);
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    DeltaRuleInputs bad = good;
    bad.k[40 * dims.key_features() + 3] = value;  // of head 0
    DecodeSlots slots(backend(), dims, 1);
    const std::vector<float> got = slots.Run(DeltaRulePath::kChunk, bad);
    for (int64_t token = 0; token < 70; ++token) {
      const int64_t at = token * dims.value_features() + dims.value_dim;
      EXPECT_TRUE(BitEqual(absl::MakeConstSpan(got).subspan(at, dims.value_dim),
                           absl::MakeSpan(output).subspan(at, dims.value_dim)))
          << "token " << token;
    }
    const std::vector<float> base = slots.Base(0), whole = expected.Base(0);
    const size_t head = dims.state_elements() / 2;
    EXPECT_FALSE(AllFinite(absl::MakeSpan(base).first(head)));
    EXPECT_TRUE(BitEqual(absl::MakeSpan(base).subspan(head), absl::MakeConstSpan(whole).subspan(head)));
  }
}

// A bias of the units' sums would add up over chunks if they summed into the state.
TEST_F(DeltaRuleMatrix, HasNoBiasThatGrowsWithTheChunks) {
  const LayerDims dims = OperatorDims(1, 1, 16, 16);
  Random random(5);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 1280, random, /*g_low=*/-1e-4f);
  std::vector<double> state(dims.state_elements(), 0.0);
  const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
  DecodeSlots slots(backend(), dims, 1);
  EXPECT_LE(RelativeNormError(slots.Run(DeltaRulePath::kChunk, inputs), expected), kChunkTolerance / 5);
  EXPECT_LE(RelativeNormError(slots.Base(0), state), kChunkTolerance / 5);
}

}  // namespace
}  // namespace gdn
