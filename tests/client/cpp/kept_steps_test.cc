#include "client/cpp/kept_steps.h"

#include <optional>

#include "gtest/gtest.h"

namespace gdn::kept_steps_test {
namespace {

SessionStep Prefill(int64_t tokens) {
  v1::PrefillRequest request;
  request.set_layer(3);
  request.mutable_delta_rule()->mutable_q()->add_shape(tokens);
  return request;
}

SessionStep Decode(int64_t tokens, bool draft = false) {
  v1::DecodeRequest request;
  request.set_layer(3);
  request.set_draft(draft);
  request.mutable_projected()->mutable_mixed_qkv()->add_shape(1);
  request.mutable_projected()->mutable_mixed_qkv()->add_shape(tokens);
  return request;
}

KeptStep Kept(SessionStep request, int64_t before, int64_t tokens) {
  return {.request = std::move(request), .before = before, .tokens = tokens};
}

TEST(SessionStep, TellsItsLayerTokensAndWhetherItIsADraft) {
  EXPECT_EQ(StepLayer(Prefill(5)), 3);
  EXPECT_EQ(StepTokens(Prefill(5)), 5);
  EXPECT_FALSE(IsDraft(Prefill(5)));
  EXPECT_EQ(StepTokens(Decode(4)), 4);
  EXPECT_TRUE(IsDraft(Decode(4, true)));
  SessionStep shorter = Decode(4);
  std::get<v1::DecodeRequest>(shorter).add_lengths(2);
  EXPECT_EQ(StepTokens(shorter), 2);
  EXPECT_EQ(StepTokens(v1::PrefillRequest()), 0);
  EXPECT_EQ(StepTokens(v1::DecodeRequest()), 0);
}

TEST(LayerSteps, KnowsTheCallBoundariesThatItKeeps) {
  LayerSteps layer(3, 10);
  layer.Add(Kept(Prefill(5), 10, 5));
  layer.Add(Kept(Decode(1), 15, 1));
  layer.Add(Kept(Prefill(0), 16, 0));
  EXPECT_EQ(layer.token_count(), 16);
  EXPECT_EQ(layer.steps().size(), 2u);
  EXPECT_EQ(layer.StepAt(10), 0u);
  EXPECT_EQ(layer.StepAt(15), 1u);
  EXPECT_EQ(layer.StepAt(16), 2u);
  for (const int64_t none : {0, 9, 11, 14, 17}) EXPECT_EQ(layer.StepAt(none), std::nullopt) << none;
}

TEST(LayerSteps, TrimsWholeStepsOnly) {
  LayerSteps layer(3, 0);
  layer.Add(Kept(Prefill(5), 0, 5));
  layer.Add(Kept(Decode(3), 5, 3));
  layer.Trim(4);
  EXPECT_EQ(layer.begin(), 0);
  layer.Trim(7);
  EXPECT_EQ(layer.begin(), 5);
  EXPECT_EQ(layer.StepAt(0), std::nullopt);
  EXPECT_EQ(layer.StepAt(5), 0u);
  EXPECT_GT(layer.bytes(), 0);
  layer.Trim(8);
  EXPECT_EQ(layer.bytes(), 0);
  EXPECT_EQ(layer.StepAt(8), 0u);
}

TEST(LayerSteps, KeepsADraftApartUntilItIsAccepted) {
  LayerSteps layer(3, 5);
  layer.AcceptDraft({.first_tokens = 2});
  EXPECT_EQ(layer.token_count(), 5);
  layer.AddDraft(Kept(Decode(4, true), 5, 0));
  EXPECT_GT(layer.bytes(), 0);
  EXPECT_EQ(layer.token_count(), 5);
  layer.AcceptDraft({.first_tokens = 3});
  EXPECT_FALSE(layer.draft().has_value());
  EXPECT_EQ(layer.token_count(), 8);
  EXPECT_EQ(layer.steps()[0].tokens, 3);
  layer.AddDraft(Kept(Decode(4, true), 8, 0));
  const int64_t bytes = layer.bytes();
  layer.AcceptDraft({.first_tokens = 0});
  EXPECT_EQ(layer.token_count(), 8);
  EXPECT_LT(layer.bytes(), bytes);
  EXPECT_EQ(layer.steps().size(), 1u);
}

}  // namespace
}  // namespace gdn::kept_steps_test
