// Drafts and forks through a whole layer: outputs, logs and convolution columns.

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/layer/accept_draft.h"
#include "kernels/slot_access.h"
#include "tests/kernels/layer_problem.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::layer_draft_test {
namespace {

constexpr int32_t kMaxDraft = 8;

LayerProblemOptions SmallLayer() {
  return {.dims = {.key_heads = 1, .value_heads = 2, .key_dim = 8, .value_dim = 8, .conv_width = 4, .hidden_size = 12},
          .max_draft = kMaxDraft};
}

void ExpectSameState(Backend& backend, const StatePoolView& pool, const Rows& a, const Rows& b) {
  ASSERT_EQ(a.log_length, b.log_length);
  ASSERT_EQ(a.token_count, b.token_count);
  EXPECT_TRUE(BitEqual(*ReadSlot(backend, pool, a.slot, a.log_length, a.token_count),
                       *ReadSlot(backend, pool, b.slot, b.log_length, b.token_count)));
}

// Keeps the first `accepted` of the `tokens` that the row has just drafted.
void Accept(Backend& backend, const StatePoolView& pool, int64_t tokens, int64_t accepted, Rows& row) {
  row.token_count -= tokens - accepted;
  row.log_length -= static_cast<int32_t>(tokens - accepted);
  ASSERT_EQ(FoldAccepted(backend, {.pool = pool, .count = 1, .slots = &row.slot, .log_lengths = &row.log_length}),
            absl::OkStatus());
}

class LayerDraft : public BackendTest {
 protected:
  // test(options), also of a layer whose decays go by channel where the backend computes such.
  void OnEveryLayer(const std::function<void(const LayerProblemOptions&)>& test) {
    for (const LayerDims& dims : WithChannelDecays({SmallLayer().dims})) {
      SCOPED_TRACE(LayerDimsToString(dims));
      LayerProblemOptions options = dims.decays_by_channel() ? ChannelLayerOptions() : SmallLayer();
      options.dims = dims;
      options.max_draft = kMaxDraft;
      test(options);
    }
  }
};
GDN_ON_EVERY_BACKEND(LayerDraft);

TEST_P(LayerDraft, EveryAcceptedPartOfEveryDraftIsAsIfTheRestHadNeverBeen) {
  OnEveryLayer([this](const LayerProblemOptions& options) {
    LayerProblem problem(options, /*slots=*/2);
    GdnLayerRunner runner(backend());
    const int64_t width = problem.hidden_size();
    std::vector<Rows> plain = {{.slot = 0}};
    std::vector<Rows> speculating = {{.slot = 1}};
    // Between 0 and 36 tokens are accepted at each length, so drafts begin at every phase of the log.
    for (int64_t tokens = 1; tokens <= kMaxDraft; ++tokens) {
      for (int64_t accepted = 0; accepted <= tokens; ++accepted) {
        SCOPED_TRACE(std::to_string(accepted) + " of " + std::to_string(tokens));
        const std::vector<float> x = problem.Inputs(tokens);
        speculating[0].x = x;
        const std::vector<float> drafted = problem.Decode(runner, speculating, /*draft=*/true);
        Accept(backend(), problem.pool().view(), tokens, accepted, speculating[0]);
        plain[0].x = SliceRows(x, width, 0, accepted);
        EXPECT_TRUE(BitEqual(problem.Decode(runner, plain), SliceRows(drafted, width, 0, accepted)));
        ExpectSameState(backend(), problem.pool().view(), speculating[0], plain[0]);
        // Another token than the draft's.
        speculating[0].x = plain[0].x = problem.Inputs(1);
        EXPECT_TRUE(BitEqual(problem.Decode(runner, speculating), problem.Decode(runner, plain)));
      }
    }
    EXPECT_GT(plain[0].token_count, 100);
  });
}

TEST_P(LayerDraft, AForkOverASharedBaseHasTheBitsOfItsParent) {
  OnEveryLayer([this](const LayerProblemOptions& options) {
    LayerProblem problem(options, /*slots=*/3);
    GdnLayerRunner runner(backend());
    const StatePoolView& pool = problem.pool().view();
    std::vector<Rows> parent = {{.slot = 0, .x = problem.Inputs(19)}};
    problem.Prefill(runner, parent);
    parent[0].token_count = 19;
    // Slot 2 has log and columns of its own over the base of slot 0, slot 1 is a copy.
    ASSERT_TRUE(backend().Copy(pool.slot(1), pool.slot(0), static_cast<size_t>(pool.layout.slot_bytes())).ok());
    ASSERT_TRUE(backend()
                    .Copy(pool.slot(2) + pool.layout.log_k_offset(), pool.slot(0) + pool.layout.log_k_offset(),
                          static_cast<size_t>(pool.layout.slot_bytes()) - pool.layout.log_k_offset() * sizeof(float))
                    .ok());
    std::vector<Rows> copy = {{.slot = 1, .token_count = 19}};
    Rows fork{.slot = 2, .token_count = 19};
    int32_t base_slot = 0;
    for (const int64_t tokens : {7, 8, 5, 3}) {  // folds in the third call
      copy[0].x = fork.x = problem.Inputs(tokens);
      PackedRows packed({fork}, problem.weights(), pool);
      packed.step.base_slots = &base_slot;
      ASSERT_EQ(runner.Decode(packed.step, packed.log_lengths.data()), absl::OkStatus());
      EXPECT_TRUE(BitEqual(packed.y, problem.Decode(runner, copy)));
      if (packed.log_lengths[0] < fork.log_length) base_slot = fork.slot;
      fork.log_length = packed.log_lengths[0];
      fork.token_count += tokens;
    }
    EXPECT_EQ(base_slot, fork.slot);
    ExpectSameState(backend(), pool, fork, copy[0]);
  });
}

TEST_P(LayerDraft, BasesAndDraftsAreCheckedBeforeAnythingIsTouched) {
  LayerProblem problem(SmallLayer(), /*slots=*/2);
  GdnLayerRunner runner(backend());
  const std::vector<Rows> rows = {{.slot = 0, .x = problem.Inputs(2)}, {.slot = 1, .x = problem.Inputs(1)}};
  PackedRows packed(rows, problem.weights(), problem.pool().view());
  int32_t bases[] = {0, 0};
  packed.step.base_slots = bases;
  EXPECT_THAT(runner.Decode(packed.step, packed.log_lengths.data()), IsInvalid("base_slots[1] = 0"));
  bases[1] = 1;
  EXPECT_THAT(runner.Prefill(packed.step), IsInvalid(""));
  packed.step.base_slots = nullptr;
  packed.step.draft = true;
  EXPECT_THAT(runner.Prefill(packed.step), IsInvalid(""));
  EXPECT_THAT(packed.y, testing::Each(-7.0f));
  EXPECT_THAT(problem.pool().slot(0), testing::Each(0.0f));
}

}  // namespace
}  // namespace gdn::layer_draft_test
