#include "server/validation/step_input.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace gdn::step_input_test {
namespace {

CheckedInput DeltaRule() {
  CheckedInput input;
  input.kind = InputKind::kDeltaRule;
  input.rows = {{.tokens = 1}};
  input.tokens = 1;
  return input;
}

// A retry with another of these would get the first call's stored reply, which other kernels or other inputs made.
TEST(HashRow, TellsApartWhateverAReplyFollowsFrom) {
  const CheckedInput first = DeltaRule();
  const auto differs = [&](auto change) {
    CheckedInput other = DeltaRule();
    change(other);
    return HashRow(other, other.rows[0]) != HashRow(first, first.rows[0]);
  };
  EXPECT_FALSE(differs([](CheckedInput& /*input*/) {}));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.max_beta = 2.0f; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.scale = 0.5f; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.use_qk_l2norm = true; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.rows[0].kind = RowKind::kDraft; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.layer = 1; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.output_dtype = DType::kBF16; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.rows[0].tokens = 2; }));
  EXPECT_TRUE(differs([](CheckedInput& input) {
    input.mixed = true;
    input.rows[0].kind = RowKind::kPrefill;
  }));
  EXPECT_FALSE(differs([](CheckedInput& input) { input.allow_non_finite = true; }));
}

TEST(HashRow, TellsAcceptancesAndTreesApart) {
  const std::vector<int32_t> parents = {-1, 0, 0};
  const auto hash = [](std::optional<Acceptance> accept, absl::Span<const int32_t> tree = {}) {
    CheckedInput input = DeltaRule();
    input.rows[0].accept_before = std::move(accept);
    input.rows[0].parents = tree;
    return HashRow(input, input.rows[0]);
  };
  const std::vector<Hash128> all = {hash({}),
                                    hash(Acceptance{}),
                                    hash(Acceptance{.accepted_tokens = 1}),
                                    hash(Acceptance{.accepted_tokens = 2}),
                                    hash(Acceptance{.accepted_tokens = 2, .path = {0, 2}}),
                                    hash(Acceptance{.accepted_tokens = 1, .path = {2}}),
                                    hash({}, parents),
                                    hash(Acceptance{}, parents)};
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " and " << j;
  }
}

}  // namespace
}  // namespace gdn::step_input_test
