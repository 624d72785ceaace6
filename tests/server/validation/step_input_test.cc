#include "server/validation/step_input.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace gdn::step_input_test {
namespace {

constexpr int64_t kFeatures = 4;

CheckedInput DeltaRule() {
  CheckedInput input;
  input.shape.kind = InputKind::kDeltaRule;
  input.shape.delta_rule.max_beta = 1.0f;
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
  EXPECT_TRUE(differs([](CheckedInput& input) { input.shape.delta_rule.max_beta = 2.0f; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.shape.delta_rule.scale = 0.5f; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.shape.delta_rule.use_qk_l2norm = true; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.rows[0].kind = RowKind::kDraft; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.layer = 1; }));
  EXPECT_TRUE(differs([](CheckedInput& input) { input.shape.output_dtype = DType::kBF16; }));
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

// Both numbers come from a client, and either alone may be the greatest of its type.
TEST(CheckedRow, CountsMoreTokensThan32BitsHold) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const CheckedRow row = {
      .kind = RowKind::kPrefill, .tokens = kMost, .accept_before = Acceptance{.accepted_tokens = kMost}};
  EXPECT_EQ(row.counted_tokens(), 2 * int64_t{kMost});
}

// A step of hidden states for a layer of 4 features, with rows of so many tokens and kinds.
v1::StepRequest Step(const std::vector<std::pair<int32_t, v1::StepKind>>& rows, int64_t tokens) {
  v1::StepRequest request;
  for (const auto& [count, kind] : rows) {
    v1::StepRow& row = *request.add_rows();
    row.set_token_count(count);
    row.set_kind(kind);
  }
  v1::Tensor& hidden = *request.mutable_hidden_states()->mutable_hidden_states();
  hidden.set_dtype(v1::DTYPE_F32);
  hidden.add_shape(tokens);
  hidden.add_shape(kFeatures);
  hidden.set_data(std::string(static_cast<size_t>(tokens) * kFeatures * sizeof(float), '\0'));
  return request;
}

constexpr LayerDims kDims{.key_heads = 1,
                          .value_heads = 1,
                          .key_dim = 2,
                          .value_dim = 2,
                          .conv_width = 4,
                          .hidden_size = static_cast<int32_t>(kFeatures)};

TEST(CheckStepInput, PutsEachRowBehindTheOneBefore) {
  v1::StepRequest request = Step({{2, v1::STEP_KIND_PREFILL}, {0, v1::STEP_KIND_DECODE}, {3, v1::STEP_KIND_DRAFT}}, 5);
  request.mutable_rows(2)->mutable_accept_before()->add_path(0);
  request.mutable_rows(2)->mutable_accept_before()->add_path(1);
  const auto input = CheckStepInput(request, /*data=*/nullptr, kDims, {});
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_TRUE(input->mixed);
  EXPECT_EQ(input->tokens, 5);
  ASSERT_EQ(input->rows.size(), 3u);
  EXPECT_EQ(input->rows[0].first, 0);
  EXPECT_EQ(input->rows[1].first, 2);
  EXPECT_EQ(input->rows[2].first, 2);
  EXPECT_EQ(input->rows[0].counted_tokens(), 2);
  EXPECT_EQ(input->rows[2].counted_tokens(), 2) << "the accepted ones, and none of the draft";
  EXPECT_TRUE(input->rows[2].accept_before->path.empty()) << "the first tokens need no path";
}

// The hash of a row names each accepted token.
TEST(CheckStepInput, RefusesAnAcceptanceOfMoreTokensThanADraftCanHave) {
  const StepLimits limits{.max_draft = 8};
  for (const int32_t accepted : {9, std::numeric_limits<int32_t>::max()}) {
    v1::StepRequest request = Step({{1, v1::STEP_KIND_DECODE}}, 1);
    request.mutable_rows(0)->mutable_accept_before()->set_accepted_tokens(accepted);
    const auto input = CheckStepInput(request, /*data=*/nullptr, kDims, limits);
    ASSERT_FALSE(input.ok()) << accepted;
    EXPECT_EQ(ErrorReason(input.status()), reason::kTooManyTokens) << input.status();
  }
}

TEST(CheckStepInput, AddsUpLengthsIn64Bits) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const auto input = CheckStepInput(
      Step({{kMost, v1::STEP_KIND_PREFILL}, {kMost, v1::STEP_KIND_PREFILL}, {6, v1::STEP_KIND_PREFILL}}, 4),
      /*data=*/nullptr, kDims, {});
  EXPECT_EQ(ErrorReason(input.status()), reason::kInvalidTensorShape) << "2^32 + 4 tokens are not 4";
}

}  // namespace
}  // namespace gdn::step_input_test
