// Drafts: tokens that may yet be dropped, and FoldAccepted for those that are not.

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/layer/accept_draft.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::decode_draft_test {
namespace {

using ::testing::ElementsAre;

// One sequence decoded token by token, and what a slot held after each. Slot t is the state after t tokens.
class Plain {
 public:
  static constexpr int32_t kTokens = kLogCapacity - 1 + 24;  // the longest draft on the longest log

  Plain(DecodeSlots& slots, Random& random)
      : inputs_(RandomDeltaRuleInputs(slots.pool().layout.dims(), kTokens, random)) {
    const LayerDims& dims = inputs_.dims;
    slots.SetBase(0, random.Normal(dims.state_elements()));
    Log log;
    for (int32_t t = 0; t < kTokens; ++t) {
      log.slot = log.base_slot = t + 1;
      slots.Copy(t + 1, t);
      const std::vector<float> row = slots.Decode(Slice(inputs_, t, t + 1), log);
      output_.insert(output_.end(), row.begin(), row.end());
      // The row is written even where the token's fold has emptied the log.
      const std::vector<float> rows = slots.Read(t + 1, kLogCapacity).log_u;
      const auto u = rows.begin() + t % kLogCapacity * dims.value_features();
      u_.insert(u_.end(), u, u + dims.value_features());
    }
  }

  static int32_t LogLength(int32_t tokens) { return tokens % kLogCapacity; }
  const DeltaRuleInputs& inputs() const { return inputs_; }

  // Rows of the tokens [first, last).
  std::vector<float> Output(int32_t first, int32_t last) const {
    return SliceRows(output_, inputs_.dims.value_features(), first, last);
  }
  std::vector<float> U(int32_t first, int32_t last) const {
    return SliceRows(u_, inputs_.dims.value_features(), first, last);
  }

 private:
  DeltaRuleInputs inputs_;
  std::vector<float> output_;  // [tokens, HV, V]
  std::vector<float> u_;       // [tokens, HV, V]
};

std::vector<int32_t> UpTo(int32_t last, int32_t first = 0) {
  std::vector<int32_t> values(last - first + 1);
  std::iota(values.begin(), values.end(), first);
  return values;
}

struct DraftCase {
  LayerDims dims;
  int32_t max_draft;
  std::vector<int32_t> log_lengths;
  std::vector<int32_t> draft_lengths;
};

// Every combination for the smallest heads; for others the ends and the fold's neighbours. K = 300 stays in memory on
// the GPU, and K = 64 with V = 32 has an instance of its own for one token.
std::vector<DraftCase> DraftCases() {
  return {{OperatorDims(1, 2, 8, 5), 8, UpTo(15), UpTo(8, 1)},
          {OperatorDims(1, 2, 8, 5), 24, UpTo(15), {2, 11, 16, 17, 18, 23, 24}},
          {OperatorDims(2, 4, 24, 40), 24, {0, 9, 15}, {1, 7, 24}},
          {OperatorDims(1, 1, 64, 32), 24, {0, 9, 15}, {1, 7, 24}},
          {OperatorDims(1, 1, 300, 3), 24, {3, 15}, {1, 13, 24}}};
}

class DecodeDraft : public BackendTest {
 protected:
  // test(slots, plain, a, T) for a slot of its own behind the plain ones, holding the state after `a` tokens.
  void ForEachDraft(const std::function<void(DecodeSlots&, const Plain&, int32_t, int32_t)>& test) {
    std::vector<DraftCase> cases;
    for (DraftCase c : DraftCases()) {
      for (const LayerDims& dims : WithChannelDecays({c.dims})) {
        c.dims = dims;
        cases.push_back(c);
      }
    }
    for (const DraftCase& c : cases) {
      SCOPED_TRACE(LayerDimsToString(c.dims));
      Random random(41);
      DecodeSlots slots(backend(), c.dims, Plain::kTokens + 2 + c.max_draft + 1, c.max_draft);
      const Plain plain(slots, random);
      for (const int32_t log_length : c.log_lengths) {
        for (const int32_t tokens : c.draft_lengths) {
          SCOPED_TRACE("a draft of " + std::to_string(tokens) + " on a log of " + std::to_string(log_length));
          test(slots, plain, log_length, tokens);
        }
      }
    }
  }
};
GDN_ON_BACKENDS(DecodeDraft, WithGpus({"cpu", "reference"}));
using FoldAcceptedLogs = DecodeDraft;
GDN_ON_BACKENDS(FoldAcceptedLogs, WithGpus({"cpu", "reference"}));

constexpr int32_t kDraftSlot = Plain::kTokens + 1;

TEST_P(DecodeDraft, HasTheOutputsAndEntriesOfPlainDecodesAndLeavesTheBaseAndTheLog) {
  ForEachDraft([](DecodeSlots& slots, const Plain& plain, int32_t a, int32_t tokens) {
    const LayerDims& dims = plain.inputs().dims;
    slots.Copy(kDraftSlot, a);
    Log log{.slot = kDraftSlot, .base_slot = kDraftSlot, .length = a};
    const DeltaRuleInputs inputs = Slice(plain.inputs(), a, a + tokens);
    EXPECT_TRUE(BitEqual(slots.Decode(inputs, log, /*draft=*/true), plain.Output(a, a + tokens)));
    ASSERT_EQ(log.length, a + tokens);
    const SlotImage image = slots.Read(kDraftSlot, log.length);
    EXPECT_TRUE(BitEqual(image.base, slots.Read(a, 0).base));
    const DeltaRuleInputs all = Slice(plain.inputs(), 0, a + tokens);
    EXPECT_TRUE(BitEqual(image.log_k, all.k));
    EXPECT_TRUE(BitEqual(image.log_g, all.g));
    EXPECT_TRUE(BitEqual(image.log_u, plain.U(0, a + tokens)));
    EXPECT_EQ(image.log_k.size(), static_cast<size_t>(log.length * dims.key_features()));
  });
}

// Accepts each possible number of tokens of one draft, each number in a slot of its own, all in one call.
void ExpectAcceptedAsIfNeverDrafted(DecodeSlots& slots, const Plain& plain, int32_t a, int32_t tokens,
                                    bool shared_base) {
  slots.Copy(kDraftSlot, a);
  const int32_t base_slot = shared_base ? a : kDraftSlot;
  if (shared_base) slots.PoisonBase(kDraftSlot);
  Log log{.slot = kDraftSlot, .base_slot = base_slot, .length = a};
  EXPECT_TRUE(
      BitEqual(slots.Decode(Slice(plain.inputs(), a, a + tokens), log, /*draft=*/true), plain.Output(a, a + tokens)));
  const std::vector<float> shared = slots.ReadAll(a);
  std::vector<int32_t> own, bases, lengths;
  for (int32_t n = 0; n <= tokens; ++n) {
    own.push_back(kDraftSlot + n);
    bases.push_back(shared_base ? a : own.back());
    lengths.push_back(a + n);
    if (n > 0) slots.Copy(own.back(), kDraftSlot);
  }
  std::vector<uint8_t> folded(own.size(), 77);
  ASSERT_EQ(FoldAccepted(slots.backend(), {.pool = slots.pool(),
                                           .count = tokens + 1,
                                           .slots = own.data(),
                                           .base_slots = shared_base ? bases.data() : nullptr,
                                           .log_lengths = lengths.data(),
                                           .folded = folded.data()}),
            absl::OkStatus());
  for (int32_t n = 0; n <= tokens; ++n) {
    SCOPED_TRACE("accepted " + std::to_string(n));
    EXPECT_EQ(lengths[n], Plain::LogLength(a + n));
    EXPECT_EQ(folded[n], a + n >= kLogCapacity ? 1 : 0);
    SlotImage image = slots.Read(own[n], lengths[n]);
    if (folded[n] == 0) image.base = slots.Base(bases[n]);
    EXPECT_TRUE(BitEqual(image, slots.Read(a + n, lengths[n])));
  }
  EXPECT_TRUE(BitEqual(slots.ReadAll(a), shared));
}

TEST_P(DecodeDraft, AcceptedInEveryLengthItIsAsIfNeverDrafted) {
  for (const bool shared_base : {false, true}) {
    SCOPED_TRACE(shared_base ? "on a shared base" : "on its own base");
    ForEachDraft([shared_base](DecodeSlots& slots, const Plain& plain, int32_t a, int32_t tokens) {
      ExpectAcceptedAsIfNeverDrafted(slots, plain, a, tokens, shared_base);
    });
  }
}

TEST_P(DecodeDraft, OtherTokensAfterItHaveTheBitsOfNeverHavingDrafted) {
  constexpr int32_t kMaxDraft = 24;
  const LayerDims dims = OperatorDims(1, 2, 8, 5);
  Random random(42);
  DecodeSlots slots(backend(), dims, /*slots=*/2, kMaxDraft);
  const std::vector<float> base = random.Normal(dims.state_elements());
  slots.SetBase(0, base);
  slots.SetBase(1, base);
  Log plain{.slot = 0, .base_slot = 0};
  Log speculating{.slot = 1, .base_slot = 1};
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const int32_t tokens = random.NextInt(1, kMaxDraft);
    const int32_t accepted = random.NextInt(0, tokens);
    const DeltaRuleInputs draft = RandomDeltaRuleInputs(dims, tokens, random);
    const std::vector<float> drafted = slots.Decode(draft, speculating, /*draft=*/true);
    speculating.length -= tokens - accepted;
    ASSERT_EQ(FoldAccepted(
                  backend(),
                  {.pool = slots.pool(), .count = 1, .slots = &speculating.slot, .log_lengths = &speculating.length}),
              absl::OkStatus());
    const std::vector<float> expected = slots.Decode(Slice(draft, 0, accepted), plain);
    EXPECT_TRUE(BitEqual(absl::MakeConstSpan(drafted).subspan(0, expected.size()), expected));
    const DeltaRuleInputs other = RandomDeltaRuleInputs(dims, random.NextInt(1, 3), random);
    EXPECT_TRUE(BitEqual(slots.Decode(other, speculating), slots.Decode(other, plain)));
    ASSERT_EQ(speculating.length, plain.length);
  }
  EXPECT_TRUE(BitEqual(slots.Read(1, 0).base, slots.Read(0, 0).base));
}

TEST_P(DecodeDraft, InABatchEachSequenceHasItsOwnBits) {
  const LayerDims dims = OperatorDims(1, 2, 8, 5);
  Random random(43);
  DecodeSlots slots(backend(), dims, /*slots=*/6, /*max_draft=*/24);
  const std::vector<int32_t> before = {3, 15, 0};
  const std::vector<int32_t> lengths = {24, 1, 0, 2, 9};
  std::vector<Log> together, alone;
  for (int32_t i = 0; i < 3; ++i) {
    slots.SetBase(i, random.Normal(dims.state_elements()));
    Log log{.slot = i, .base_slot = i};
    if (before[i] > 0) slots.Decode(RandomDeltaRuleInputs(dims, before[i], random), log);
    slots.Copy(i + 3, i);
    together.push_back(log);
    alone.push_back({.slot = i + 3, .base_slot = i + 3, .length = log.length});
  }
  // The third has no tokens, the fourth is padding.
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 24 + 1 + 2 + 9, random);
  std::vector<Log> batch = {together[0], together[1], together[2], {.slot = -1, .base_slot = -1, .length = 99}};
  const std::vector<float> output = slots.Decode(Slice(inputs, 0, 27), {24, 1, 0, 2}, batch, /*draft=*/true);
  EXPECT_THAT((std::vector<int32_t>{batch[0].length, batch[1].length, batch[2].length, batch[3].length}),
              ElementsAre(27, 16, 0, 99));
  const auto rows = [&](int32_t first, int32_t last) {
    return absl::MakeConstSpan(output).subspan(first * dims.value_features(), (last - first) * dims.value_features());
  };
  EXPECT_TRUE(BitEqual(rows(0, 24), slots.Decode(Slice(inputs, 0, 24), alone[0], /*draft=*/true)));
  EXPECT_TRUE(BitEqual(rows(24, 25), slots.Decode(Slice(inputs, 24, 25), alone[1], /*draft=*/true)));
  EXPECT_THAT(rows(25, 27), ::testing::Each(0.0f));
  for (const int32_t i : {0, 1, 2}) EXPECT_TRUE(BitEqual(slots.ReadAll(i), slots.ReadAll(i + 3))) << i;
}

TEST_P(FoldAcceptedLogs, RefusesBadArgumentsBeforeAnythingMoves) {
  const LayerDims dims = OperatorDims(1, 1, 8, 8);
  Random random(45);
  DecodeSlots slots(backend(), dims, /*slots=*/3, /*max_draft=*/4);
  for (const int32_t slot : {0, 1, 2}) slots.SetBase(slot, random.Normal(dims.state_elements()));
  const std::vector<float> before = slots.ReadAll(0);
  const auto refused = [&](std::vector<int32_t> own, std::vector<int32_t> bases, std::vector<int32_t> lengths,
                           const char* part) {
    const std::vector<int32_t> given = lengths;
    std::vector<uint8_t> folded(own.size(), 77);
    EXPECT_THAT(FoldAccepted(backend(), {.pool = slots.pool(),
                                         .count = static_cast<int32_t>(own.size()),
                                         .slots = own.data(),
                                         .base_slots = bases.empty() ? nullptr : bases.data(),
                                         .log_lengths = lengths.data(),
                                         .folded = folded.data()}),
                IsInvalid(part));
    EXPECT_EQ(lengths, given);
    EXPECT_THAT(folded, ::testing::Each(77));
  };
  refused({0, 3}, {}, {16, 16}, "slots[1] is 3");
  refused({0, -1}, {}, {16, 16}, "slots[1] is -1");
  refused({0, 0}, {}, {16, 16}, "more than once");
  refused({0, 1}, {}, {16, 21}, "log_lengths[1] is 21");
  refused({0, 1}, {}, {16, -1}, "log_lengths[1] is -1");
  refused({0, 1}, {1, 1}, {16, 3}, "base_slots[0] = 1");
  refused({0, 1}, {0, 3}, {16, 3}, "base_slots[1] is 3");
  EXPECT_TRUE(BitEqual(slots.ReadAll(0), before));
  EXPECT_TRUE(FoldAccepted(backend(), {.pool = slots.pool()}).ok());
}

}  // namespace
}  // namespace gdn::decode_draft_test
