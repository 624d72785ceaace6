// The decode path on every backend: the log, its folds, several tokens a call, ragged batches.
#include "kernels/delta_rule_decode/delta_rule_decode.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::delta_rule_decode_test {
namespace {

using ::testing::ElementsAre;

constexpr double kPromise = 1e-5;  // the service's: float32 against float64
constexpr double kDecodeTolerance = 1e-6;

class DeltaRuleDecode : public BackendTest {};
GDN_ON_EVERY_BACKEND(DeltaRuleDecode);

TEST_P(DeltaRuleDecode, MatchesDoubleOverThousandsOfSteps) {
  for (const LayerDims& dims : WithChannelDecays({OperatorDims(1, 2, 32, 32)})) {
    Random random(1);
    DecodeSlots slots(backend(), dims, 1);
    std::vector<double> state(dims.state_elements(), 0.0);
    Log log;
    for (int block = 0; block < (on_cpu() ? 100 : 10); ++block) {
      const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 100, random, /*g_low=*/-0.02f);
      const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
      std::vector<float> output;
      for (int64_t t = 0; t < inputs.tokens; ++t) {
        Append(slots.Decode(Slice(inputs, t, t + 1), log), output);
      }
      ASSERT_LE(RelativeNormError(output, expected), kPromise) << "block " << block;
    }
    ASSERT_TRUE(slots.Materialize({0}, {0}, {log.length}).ok());
    EXPECT_LE(RelativeNormError(slots.Base(0), state), kPromise);
  }
}

TEST_P(DeltaRuleDecode, OfSeveralTokensGivesTheBitsOfSingleOnesAcrossFolds) {
  constexpr int64_t kTokens = 61;
  Random random(2);
  // On the GPU some sizes stay in memory, and the last two have an instance of their own for calls of one token.
  std::vector<LayerDims> shapes = {OperatorDims(2, 4, 128, 128), OperatorDims(1, 3, 21, 45)};
  if (!on_cpu()) {
    shapes = {OperatorDims(1, 2, 32, 48),  OperatorDims(1, 2, 33, 17),   OperatorDims(1, 2, 300, 17),
              OperatorDims(1, 1, 1001, 3), OperatorDims(1, 2, 128, 128), OperatorDims(1, 1, 256, 64)};
  }
  std::vector<std::vector<int64_t>> all_calls = {{61}, {3, 14, 40, 4}, {15, 1, 16, 29}};
  for (const int64_t step : {2, 3, 4, 5, 7, 15, 16, 17, 40, 53}) {
    if (on_cpu()) all_calls.emplace_back((kTokens + step - 1) / step, step);
  }
  for (const LayerDims& dims : WithChannelDecays(shapes)) {
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, kTokens, random);
    const std::vector<float> initial = random.Normal(dims.state_elements());
    DecodeSlots single(backend(), dims, 1, kMaxDraftLimit);
    single.SetBase(0, initial);
    Log single_log;
    std::vector<float> expected;
    for (int64_t t = 0; t < kTokens; ++t) {
      Append(single.Decode(Slice(inputs, t, t + 1), single_log), expected);
      EXPECT_EQ(single_log.length, (t + 1) % kLogCapacity);
    }
    const SlotImage alone = single.Read(0, single_log.length);
    for (const std::vector<int64_t>& calls : all_calls) {
      SCOPED_TRACE(LayerDimsToString(dims) + " tokens a call " + testing::PrintToString(calls));
      DecodeSlots slots(backend(), dims, 1, kMaxDraftLimit);
      slots.SetBase(0, initial);
      Log log;
      std::vector<float> output;
      int64_t done = 0;
      for (const int64_t tokens : calls) {
        const int64_t end = std::min(done + tokens, kTokens);
        Append(slots.Decode(Slice(inputs, done, end), log), output);
        done = end;
      }
      EXPECT_TRUE(BitEqual(output, expected));
      ASSERT_EQ(log.length, single_log.length);
      EXPECT_TRUE(BitEqual(slots.Read(0, log.length), alone));
    }
  }
}

TEST_P(DeltaRuleDecode, FoldsAfterTheSixteenthTokenAndOnlyThen) {
  Random random(3);
  const LayerDims dims = OperatorDims(1, 2, 16, 16);
  DecodeSlots slots(backend(), dims, 1);
  const std::vector<float> initial = random.Normal(dims.state_elements());
  slots.SetBase(0, initial);
  Log log;
  for (int32_t t = 1; t <= kLogCapacity; ++t) {
    slots.Decode(RandomDeltaRuleInputs(dims, 1, random), log);
    EXPECT_EQ(BitEqual(slots.Base(0), initial), t < kLogCapacity) << "token " << t;
  }
  EXPECT_EQ(log.length, 0);
}

void ExpectReferenceInARaggedBatch(Backend& backend, const LayerDims& dims) {
  SCOPED_TRACE(LayerDimsToString(dims));
  Random random(4);
  const std::vector<int32_t> lengths = {1, 4, 2, 0, 8, 3};
  std::vector<Log> logs = {{2, 2, 0}, {5, 5, 14}, {-7, -7, 99}, {0, 0, 7}, {3, 3, 15}, {6, 6, 1}};
  std::vector<Log> expected_logs = logs;
  const std::unique_ptr<Backend> reference = *MakeBackend("reference");
  DecodeSlots slots(backend, dims, 8), expected(*reference, dims, 8);
  for (int32_t slot = 0; slot < 8; ++slot) {
    const SlotImage noise = RandomSlotImage(dims, kLogCapacity, random);
    slots.Write(slot, noise);
    expected.Write(slot, noise);
  }
  std::vector<std::vector<float>> before;
  for (int32_t slot = 0; slot < 8; ++slot) before.push_back(slots.ReadAll(slot));

  const std::vector<int32_t> offsets = CumulativeLengths(lengths);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, offsets.back(), random);
  const std::vector<float> output = slots.Decode(inputs, lengths, logs);
  EXPECT_LE(RelativeNormError(output, expected.Decode(inputs, lengths, expected_logs)), kDecodeTolerance);
  EXPECT_THAT(absl::MakeSpan(output).subspan(offsets[2] * dims.value_features(), 2 * dims.value_features()),
              testing::Each(0.0f));
  for (const int32_t bystander : {0, 1, 4, 7}) {
    EXPECT_TRUE(BitEqual(slots.ReadAll(bystander), before[bystander])) << "slot " << bystander;
  }
  std::vector<int32_t> log_lengths;
  for (size_t i = 0; i < logs.size(); ++i) {
    SCOPED_TRACE("sequence " + std::to_string(i));
    EXPECT_EQ(logs[i].length, expected_logs[i].length);
    log_lengths.push_back(logs[i].length);
    if (logs[i].slot < 0) continue;
    const SlotImage actual = slots.Read(logs[i].slot, logs[i].length);
    const SlotImage image = expected.Read(logs[i].slot, logs[i].length);
    EXPECT_LE(RelativeNormError(actual.base, image.base), kDecodeTolerance);
    EXPECT_EQ(RelativeNormError(actual.log_k, image.log_k), 0.0);
    EXPECT_LE(RelativeNormError(actual.log_u, image.log_u), kDecodeTolerance);
    EXPECT_EQ(RelativeNormError(actual.log_g, image.log_g), 0.0);
  }
  EXPECT_THAT(log_lengths, ElementsAre(1, 2, 99, 7, 7, 4));
}

TEST_P(DeltaRuleDecode, MatchesItsReferenceInARaggedBatchWithPadding) {
  for (const LayerDims& dims : WithChannelDecays({OperatorDims(2, 6, 19, 26)})) {
    ExpectReferenceInARaggedBatch(backend(), dims);
  }
}

TEST_P(DeltaRuleDecode, InterleavedSessionsDoNotTouchEachOther) {
  Random random(5);
  const LayerDims dims = OperatorDims(1, 2, 24, 24);
  const DeltaRuleInputs a = RandomDeltaRuleInputs(dims, 50, random);
  const DeltaRuleInputs b = RandomDeltaRuleInputs(dims, 50, random);
  DecodeSlots slots(backend(), dims, 2), alone(backend(), dims, 1);
  Log first, second{.slot = 1, .base_slot = 1}, lone;
  for (int64_t t = 0; t < 50; ++t) {
    const std::vector<float> row = slots.Decode(Slice(a, t, t + 1), first);
    if (t % 3 != 0) slots.Decode(Slice(b, t, t + 1), second);
    EXPECT_TRUE(BitEqual(row, alone.Decode(Slice(a, t, t + 1), lone))) << "token " << t;
  }
  EXPECT_TRUE(BitEqual(slots.ReadAll(0), alone.ReadAll(0)));
}

class RefusedDecode : public BackendTest {};
GDN_ON_BACKENDS(RefusedDecode, WithGpus({"cpu", "reference"}));

TEST_P(RefusedDecode, SaysWhatIsWrongAndTouchesNothing) {
  struct BadCall {
    const char* message;
    std::vector<int32_t> tokens, slots, log_lengths, bases = {};
    bool draft = false;
  };
  const BadCall calls[] = {
      {"max_draft", {3}, {0}, {0}},
      {"log_lengths", {2}, {0}, {}},
      {"slots[0]", {2}, {5}, {0}},
      {"log_lengths[0]", {2}, {0}, {-1}},
      {"log_lengths[0]", {2}, {0}, {kLogCapacity}},
      {"max_draft = 2", {3}, {0}, {0}, {}, /*draft=*/true},
      // A draft on a draft: the first has to be accepted or dropped.
      {"log_lengths[0] is 16", {1}, {0}, {kLogCapacity}, {}, /*draft=*/true},
      // Forks over bases that a sequence of the call may write.
      {"base_slots[2] is 4", {1, 1, 1}, {0, 1, 2}, {1, 1, 1}, {0, 1, 4}},
      {"base_slots[1] is -1", {1, 1, 1}, {0, 1, 2}, {1, 1, 1}, {0, -1, 2}},
      {"base_slots[1] = 0 is another sequence's slot", {1, 1, 1}, {0, 1, 2}, {1, 1, 1}, {3, 0, 2}},
  };
  Random random(8);
  const LayerDims dims = OperatorDims(1, 1, 8, 8);
  DecodeSlots slots(backend(), dims, /*slots=*/4, /*max_draft=*/2);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 3, random);
  std::vector<float> output(inputs.v.size());
  for (const BadCall& call : calls) {
    const std::vector<int32_t> offsets = CumulativeLengths(call.tokens);
    const PackedBatch batch{
        .sequences = static_cast<int32_t>(call.slots.size()), .cu_seqlens = offsets.data(), .slots = call.slots.data()};
    std::vector<int32_t> log_lengths = call.log_lengths;
    EXPECT_THAT(backend().DeltaRuleDecode({.rule = MakeDeltaRuleParams(inputs, slots.pool(), batch, output),
                                           .log_lengths = log_lengths.empty() ? nullptr : log_lengths.data(),
                                           .base_slots = call.bases.empty() ? nullptr : call.bases.data(),
                                           .draft = call.draft}),
                IsInvalid(call.message));
    EXPECT_EQ(log_lengths, call.log_lengths);
  }
  for (int32_t slot = 0; slot < 4; ++slot) EXPECT_THAT(slots.ReadAll(slot), testing::Each(0.0f));
}

}  // namespace
}  // namespace gdn::delta_rule_decode_test
