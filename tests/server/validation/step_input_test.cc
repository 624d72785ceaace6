#include "server/validation/step_input.h"

#include <gtest/gtest.h>

namespace gdn::step_input_test {
namespace {

CheckedInput DeltaRule() {
  CheckedInput input;
  input.kind = InputKind::kDeltaRule;
  input.lengths = {1};
  input.tokens = 1;
  return input;
}

// A retry with another of these would get the first call's stored reply, which other kernels or other inputs made.
TEST(HashRow, TellsApartWhateverAReplyFollowsFrom) {
  const CheckedInput first = DeltaRule();
  const auto differs = [&](auto change) {
    CheckedInput other = DeltaRule();
    change(other);
    return HashRow(other, 0) != HashRow(first, 0);
  };
  EXPECT_EQ(HashRow(first, 0), HashRow(DeltaRule(), 0));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.max_beta = 2.0f; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.scale = 0.5f; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.use_qk_l2norm = true; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.draft = true; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.layer = 1; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.output_dtype = DType::kBF16; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.lengths = {2}; }));
  EXPECT_FALSE(differs([](CheckedInput& input) { input.allow_non_finite = true; }));
}

}  // namespace
}  // namespace gdn::step_input_test
