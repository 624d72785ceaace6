// A base of bfloat16: every operator gives, bit for bit, what it gives on a base of float32 that the test rounds where
// the layout's header says.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/test_backend.h"

namespace gdn::state_dtype_test {
namespace {

constexpr int32_t kMaxDraft = 40;
constexpr int32_t kSlots = 4;

// The same calls on bases of both kinds.
struct Pair {
  Pair(Backend& backend, const LayerDims& its_dims)
      : dims(its_dims),
        narrow(backend, its_dims, kSlots, kMaxDraft, DType::kBF16),
        wide(backend, its_dims, kSlots, kMaxDraft),
        random(7) {}

  // The slot's state, with a log.
  void Fill(int32_t slot, int32_t log_rows) {
    SlotImage image = RandomSlotImage(dims, log_rows, random);
    narrow.Write(slot, image);
    Round(image.base);
    wide.Write(slot, image);
  }
  DeltaRuleInputs Inputs(int64_t tokens) { return RandomDeltaRuleInputs(dims, tokens, random); }

  static void Round(std::vector<float>& base) {
    RoundElements(DType::kBF16, base.data(), static_cast<int64_t>(base.size()));
  }
  // The base of float32, without a log.
  void RoundWide(int32_t slot) {
    std::vector<float> base = wide.Base(slot);
    Round(base);
    wide.SetBase(slot, base);
  }
  // A prefill in pieces, rounded after each.
  std::vector<float> PrefillWide(DeltaRulePath path, const DeltaRuleInputs& inputs, int32_t slot) {
    std::vector<float> output;
    for (int64_t first = 0; first < inputs.tokens; first += kBaseRoundTokens) {
      Append(wide.Run(path, Slice(inputs, first, std::min(inputs.tokens, first + kBaseRoundTokens)), slot), output);
      RoundWide(slot);
    }
    return output;
  }
  // A decode in calls that end at folds, rounded after each fold.
  std::vector<float> DecodeWide(const DeltaRuleInputs& inputs, Log& log) {
    std::vector<float> output;
    for (int64_t first = 0; first < inputs.tokens;) {
      const int64_t count = std::min<int64_t>(inputs.tokens - first, kLogCapacity - log.length);
      Append(wide.Decode(Slice(inputs, first, first + count), log), output);
      first += count;
      if (log.length > 0) continue;
      log.base_slot = log.slot;
      RoundWide(log.slot);
    }
    return output;
  }

  const LayerDims dims;
  DecodeSlots narrow;
  DecodeSlots wide;
  Random random;
};

// Shapes that every kernel takes whole, and odd ones.
const std::vector<LayerDims>& Shapes() {
  static const std::vector<LayerDims> shapes = {
      OperatorDims(2, 8, 64, 32), OperatorDims(1, 1, 128, 128), OperatorDims(1, 1, 96, 192), OperatorDims(2, 2, 50, 37),
      OperatorDims(1, 1, 7, 5),   OperatorDims(1, 1, 290, 20),  OperatorDims(1, 1, 512, 16)};
  return shapes;
}

class StateDtype : public BackendTest {};
GDN_ON_BACKENDS(StateDtype, WithGpus({"cpu"}));

TEST_P(StateDtype, APrefillRoundsAfterEvery64TokensAndAtItsEnd) {
  for (const LayerDims& dims : WithChannelDecays(Shapes())) {
    for (const DeltaRulePath path : {DeltaRulePath::kScan, DeltaRulePath::kChunk}) {
      for (const int64_t tokens : {1, 3, 31, 64, 77, 200}) {
        SCOPED_TRACE(LayerDimsToString(dims) + " " + DeltaRulePathName(path) + " " + std::to_string(tokens));
        Pair pair(backend(), dims);
        pair.Fill(0, 0);
        const DeltaRuleInputs inputs = pair.Inputs(tokens);
        EXPECT_TRUE(BitEqual(pair.narrow.Run(path, inputs), pair.PrefillWide(path, inputs, 0)));
        EXPECT_TRUE(BitEqual(pair.narrow.Base(0), pair.wide.Base(0)));
      }
    }
  }
}

TEST_P(StateDtype, SegmentsAndCompanionsOfAPrefillMoveNoBit) {
  for (const LayerDims& dims : WithChannelDecays(Shapes())) {
    for (const DeltaRulePath path : {DeltaRulePath::kScan, DeltaRulePath::kChunk}) {
      SCOPED_TRACE(LayerDimsToString(dims) + " " + DeltaRulePathName(path));
      Pair pair(backend(), dims);
      for (const int32_t slot : {0, 1}) pair.Fill(slot, 0);
      pair.narrow.Copy(2, 0);
      const DeltaRuleInputs inputs = pair.Inputs(140);
      const DeltaRuleInputs other = pair.Inputs(33);
      std::vector<float> together = pair.narrow.Run(path, Concatenate({other, inputs}), {33, 140}, {1, 0});
      together.erase(together.begin(), together.begin() + static_cast<int64_t>(other.v.size()));
      std::vector<float> cut = pair.narrow.Run(path, Slice(inputs, 0, 64), 2);
      Append(pair.narrow.Run(path, Slice(inputs, 64, 140), 2), cut);
      EXPECT_TRUE(BitEqual(together, cut));
      EXPECT_TRUE(BitEqual(pair.narrow.Base(0), pair.narrow.Base(2)));
    }
  }
}

TEST_P(StateDtype, ADecodeRoundsAtEveryFold) {
  std::vector<LayerDims> shapes = Shapes();
  shapes.push_back(OperatorDims(4, 56, 36, 128));  // many heads: a wave has several sets of columns
  for (const LayerDims& dims : WithChannelDecays(shapes)) {
    SCOPED_TRACE(LayerDimsToString(dims));
    Pair pair(backend(), dims);
    pair.Fill(0, 3);
    Log narrow{.length = 3};
    Log wide{.length = 3};
    for (const int64_t tokens : {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 7, 3, 38, 1}) {
      SCOPED_TRACE(tokens);
      const DeltaRuleInputs inputs = pair.Inputs(tokens);
      EXPECT_TRUE(BitEqual(pair.narrow.Decode(inputs, narrow), pair.DecodeWide(inputs, wide)));
      EXPECT_EQ(narrow.length, wide.length);
      EXPECT_TRUE(BitEqual(pair.narrow.Base(0), pair.wide.Base(0)));
    }
  }
}

TEST_P(StateDtype, ADraftRoundsWhereAFoldWould) {
  for (const LayerDims& dims : WithChannelDecays(Shapes())) {
    for (const int32_t tokens : {4, 14, 36}) {
      SCOPED_TRACE(LayerDimsToString(dims) + " " + std::to_string(tokens));
      Pair pair(backend(), dims);
      pair.Fill(0, 5);
      const std::vector<float> before = pair.narrow.Base(0);
      const DeltaRuleInputs inputs = pair.Inputs(tokens);
      Log narrow{.length = 5};
      Log wide{.length = 5};
      EXPECT_TRUE(BitEqual(pair.narrow.Decode(inputs, narrow, /*draft=*/true), pair.DecodeWide(inputs, wide)));
      EXPECT_EQ(narrow.length, 5 + tokens);
      EXPECT_TRUE(BitEqual(pair.narrow.Base(0), before));
    }
  }
}

TEST_P(StateDtype, AForkReadsItsParentsBaseAndFoldsIntoItsOwn) {
  for (const LayerDims& dims : WithChannelDecays(Shapes())) {
    SCOPED_TRACE(LayerDimsToString(dims));
    Pair pair(backend(), dims);
    pair.Fill(0, 6);
    const std::vector<float> parent = pair.narrow.Base(0);
    for (DecodeSlots* slots : {&pair.narrow, &pair.wide}) slots->Copy(1, 0);
    Log narrow{.slot = 1, .base_slot = 0, .length = 6};
    Log wide = narrow;
    for (const int64_t tokens : {4, 9, 20}) {
      SCOPED_TRACE(tokens);
      const DeltaRuleInputs inputs = pair.Inputs(tokens);
      EXPECT_TRUE(BitEqual(pair.narrow.Decode(inputs, narrow), pair.DecodeWide(inputs, wide)));
      narrow.base_slot = wide.base_slot;
    }
    EXPECT_TRUE(BitEqual(pair.narrow.Base(1), pair.wide.Base(1)));
    EXPECT_TRUE(BitEqual(pair.narrow.Base(0), parent));
  }
}

TEST_P(StateDtype, MaterializingRoundsOnce) {
  for (const LayerDims& dims : WithChannelDecays(Shapes())) {
    SCOPED_TRACE(LayerDimsToString(dims));
    Pair pair(backend(), dims);
    for (const int32_t slot : {0, 1, 2}) pair.Fill(slot, 11);
    for (DecodeSlots* slots : {&pair.narrow, &pair.wide}) {
      ASSERT_EQ(slots->Materialize({0}, {3}, {11}, {1}), absl::OkStatus());      // from elsewhere, a base apart
      ASSERT_EQ(slots->Materialize({1, -1}, {1, 2}, {7, 0}), absl::OkStatus());  // in place, and fresh
    }
    for (const int32_t slot : {1, 2, 3}) {
      SCOPED_TRACE(slot);
      pair.RoundWide(slot);
      EXPECT_TRUE(BitEqual(pair.narrow.Base(slot), pair.wide.Base(slot)));
    }
    EXPECT_TRUE(BitEqual(pair.narrow.Base(0), pair.wide.Base(0)));
    EXPECT_EQ(pair.narrow.Base(2), std::vector<float>(static_cast<size_t>(dims.state_elements())));
  }
}

TEST(StateLayoutDtype, ABf16BaseTakesHalfTheRoomAndNothingElseChanges) {
  for (const LayerDims& dims : Shapes()) {
    const StateLayout wide = *StateLayout::Make(dims, kMaxDraft);
    const StateLayout narrow = *StateLayout::Make(dims, kMaxDraft, DType::kBF16);
    EXPECT_EQ(narrow.base_bytes(), dims.state_elements() * 2);
    EXPECT_EQ(narrow.log_k_offset() % 16, 0);
    EXPECT_GE(narrow.log_k_offset() * 4, narrow.base_bytes());
    EXPECT_LT(narrow.log_k_offset() * 4, narrow.base_bytes() + 64);
    EXPECT_EQ(wide.slot_floats() - wide.log_k_offset(), narrow.slot_floats() - narrow.log_k_offset());
    EXPECT_FALSE(wide == narrow);
  }
  EXPECT_EQ(StateLayout::Make(Shapes()[0], kMaxDraft, DType::kF16).status().message(),
            "base_dtype is F16; expected F32 or BF16");
}

TEST(StateLayoutDtype, OnlyABf16BaseIsPartOfTheNumericsId) {
  EXPECT_EQ(NumericsIdFor("cpu-k1", DType::kF32), "cpu-k1");
  EXPECT_EQ(NumericsIdFor("cpu-k1", DType::kBF16), "cpu-k1-state=bf16");
}

}  // namespace
}  // namespace gdn::state_dtype_test
