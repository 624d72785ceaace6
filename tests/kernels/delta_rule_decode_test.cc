// The decode path: the log, its folds, several tokens a call, ragged batches.
#include "kernels/delta_rule_decode/delta_rule_decode.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/decode_session.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kPromise = 1e-5;  // the service's: float32 against float64
constexpr double kDecodeTolerance = 1e-6;

TEST(DeltaRuleDecode, MatchesDoubleOverTenThousandSteps) {
  Random random(1);
  ThreadPool threads(2);
  const LayerDims dims = OperatorDims(1, 2, 32, 32);
  HostStatePool pool(dims, 1);
  std::vector<double> state(dims.state_elements(), 0.0);
  Session session(pool, 0);
  for (int block = 0; block < 100; ++block) {
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 100, random, /*g_low=*/-0.02f);
    const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
    std::vector<float> output;
    for (int64_t t = 0; t < inputs.tokens; ++t) {
      const std::vector<float> row = session.Decode(Slice(inputs, t, t + 1), threads);
      output.insert(output.end(), row.begin(), row.end());
    }
    ASSERT_LE(RelativeNormError(output, expected), kPromise) << "block " << block;
  }
  session.Fold(threads);
  EXPECT_LE(RelativeNormError(pool.base(0), state), kPromise);
}

TEST(DeltaRuleDecode, OfSeveralTokensGivesTheBitsOfSingleOnesAcrossFolds) {
  Random random(2);
  ThreadPool threads(2);
  const int64_t tokens = 3 * kLogCapacity + 5;
  for (const LayerDims& dims : {OperatorDims(2, 4, 128, 128), OperatorDims(1, 3, 21, 45)}) {
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, tokens, random);
    const std::vector<float> initial = random.Normal(dims.state_elements());
    HostStatePool single_pool(dims, 1, kMaxDraftLimit);
    single_pool.SetBase(0, initial);
    Session single(single_pool, 0);
    std::vector<float> expected;
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<float> row = single.Decode(Slice(inputs, t, t + 1), threads);
      expected.insert(expected.end(), row.begin(), row.end());
      EXPECT_EQ(single.log_length(), (t + 1) % kLogCapacity);
    }
    for (const int64_t step : {2, 3, 4, 5, 7, 15, 16, 17, 40, 53}) {
      SCOPED_TRACE(LayerDimsToString(dims) + " tokens a call " + std::to_string(step));
      HostStatePool pool(dims, 1, kMaxDraftLimit);
      pool.SetBase(0, initial);
      Session session(pool, 0);
      std::vector<float> output;
      for (int64_t t = 0; t < tokens; t += step) {
        const std::vector<float> rows = session.Decode(Slice(inputs, t, std::min(t + step, tokens)), threads);
        output.insert(output.end(), rows.begin(), rows.end());
      }
      EXPECT_TRUE(BitEqual(output, expected));
      EXPECT_EQ(session.log_length(), single.log_length());
      EXPECT_TRUE(BitEqual(pool.base(0), single_pool.base(0)));
      // The log's entries in use; rows past them hold leftovers.
      const StateLayout& layout = pool.view().layout;
      const auto same = [&](int64_t offset, int64_t row) {
        return BitEqual(pool.slot(0).subspan(offset, row * session.log_length()),
                        single_pool.slot(0).subspan(offset, row * session.log_length()));
      };
      EXPECT_TRUE(same(layout.log_k_offset(), dims.key_features()));
      EXPECT_TRUE(same(layout.log_u_offset(), dims.value_features()));
      EXPECT_TRUE(same(layout.log_g_offset(), dims.value_heads));
    }
  }
}

TEST(DeltaRuleDecode, FoldsAfterTheSixteenthTokenAndOnlyThen) {
  Random random(3);
  ThreadPool threads(1);
  const LayerDims dims = OperatorDims(1, 2, 16, 16);
  HostStatePool pool(dims, 1);
  const std::vector<float> initial = random.Normal(dims.state_elements());
  pool.SetBase(0, initial);
  Session session(pool, 0);
  for (int32_t t = 1; t <= kLogCapacity; ++t) {
    session.Decode(RandomDeltaRuleInputs(dims, 1, random), threads);
    EXPECT_EQ(BitEqual(pool.base(0), initial), t < kLogCapacity) << "token " << t;
  }
  EXPECT_EQ(session.log_length(), 0);
}

TEST(DeltaRuleDecode, MatchesItsReferenceInARaggedBatchWithPadding) {
  Random random(4);
  ThreadPool threads(2);
  const LayerDims dims = OperatorDims(2, 6, 19, 26);
  const std::vector<int32_t> lengths = {1, 4, 2, 0, 8, 3};
  const std::vector<int32_t> slots = {2, 5, -7, 0, 3, 6};
  const std::vector<int32_t> offsets = CumulativeLengths(lengths);
  std::vector<int32_t> log_lengths = {0, 14, 99, 7, 15, 1};
  std::vector<int32_t> expected_lengths = log_lengths;

  HostStatePool pool(dims, 8);
  for (int32_t s = 0; s < 8; ++s) {
    const std::vector<float> noise = random.Normal(pool.view().layout.slot_floats(), 0.3f);
    std::copy(noise.begin(), noise.end(), pool.slot(s).begin());
    const int64_t log_g = pool.view().layout.log_g_offset();
    for (float& g : pool.slot(s).subspan(log_g, pool.view().layout.conv_offset() - log_g)) g = -std::abs(g);
  }
  HostStatePool expected_pool(dims, 8);
  for (int32_t s = 0; s < 8; ++s) std::copy(pool.slot(s).begin(), pool.slot(s).end(), expected_pool.slot(s).begin());

  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, offsets.back(), random);
  const PackedBatch batch{.sequences = 6, .cu_seqlens = offsets.data(), .slots = slots.data()};
  std::vector<float> output(inputs.v.size(), 1.0f);
  std::vector<float> expected(inputs.v.size(), 1.0f);
  DeltaRuleDecodeReference({.rule = MakeDeltaRuleParams(inputs, expected_pool.view(), batch, expected),
                            .log_lengths = expected_lengths.data()});
  const absl::Status status = DeltaRuleDecodeCpu(
      {.rule = MakeDeltaRuleParams(inputs, pool.view(), batch, output), .log_lengths = log_lengths.data()}, threads);
  ASSERT_TRUE(status.ok()) << status;

  EXPECT_LE(RelativeNormError(output, expected), kDecodeTolerance);
  const absl::Span<const float> padded =
      absl::MakeSpan(output).subspan(offsets[2] * dims.value_features(), 2 * dims.value_features());
  EXPECT_TRUE(BitEqual(padded, std::vector<float>(padded.size(), 0.0f)));
  EXPECT_THAT(log_lengths, ElementsAre(1, 2, 99, 7, 7, 4));
  EXPECT_EQ(log_lengths, expected_lengths);
  const StateLayout& layout = pool.view().layout;
  for (const int32_t bystander : {0, 1, 4, 7}) {
    EXPECT_TRUE(BitEqual(pool.slot(bystander), expected_pool.slot(bystander))) << "slot " << bystander;
  }
  for (const size_t i : {0, 1, 4, 5}) {
    SCOPED_TRACE("sequence " + std::to_string(i));
    EXPECT_LE(RelativeNormError(pool.base(slots[i]), expected_pool.base(slots[i])), kDecodeTolerance);
    // The log's entries in use; rows past them hold leftovers.
    const auto error = [&](int64_t offset, int64_t row) {
      return RelativeNormError(pool.slot(slots[i]).subspan(offset, row * log_lengths[i]),
                               expected_pool.slot(slots[i]).subspan(offset, row * log_lengths[i]));
    };
    EXPECT_EQ(error(layout.log_k_offset(), dims.key_features()), 0.0);
    EXPECT_LE(error(layout.log_u_offset(), dims.value_features()), kDecodeTolerance);
    EXPECT_EQ(error(layout.log_g_offset(), dims.value_heads), 0.0);
  }
}

TEST(DeltaRuleDecode, InterleavedSessionsDoNotTouchEachOther) {
  Random random(5);
  ThreadPool threads(2);
  const LayerDims dims = OperatorDims(1, 2, 24, 24);
  const DeltaRuleInputs a = RandomDeltaRuleInputs(dims, 50, random);
  const DeltaRuleInputs b = RandomDeltaRuleInputs(dims, 50, random);
  HostStatePool pool(dims, 2);
  HostStatePool alone(dims, 1);
  Session first(pool, 0);
  Session second(pool, 1);
  Session reference(alone, 0);
  for (int64_t t = 0; t < 50; ++t) {
    const std::vector<float> row = first.Decode(Slice(a, t, t + 1), threads);
    if (t % 3 != 0) second.Decode(Slice(b, t, t + 1), threads);
    EXPECT_TRUE(BitEqual(row, reference.Decode(Slice(a, t, t + 1), threads))) << "token " << t;
  }
  EXPECT_TRUE(BitEqual(pool.slot(0), alone.slot(0)));
}

TEST(DeltaRuleDecode, ContinuesAPrefillAsOneWholePrefillWould) {
  Random random(6);
  ThreadPool threads(2);
  const LayerDims dims = OperatorDims(1, 2, 48, 32);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 300, random, /*g_low=*/-0.02f);
  std::vector<double> state(dims.state_elements(), 0.0);
  const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
  for (const DeltaRulePath path : {DeltaRulePath::kScan, DeltaRulePath::kChunk}) {
    HostStatePool whole_pool(dims, 1);
    const auto whole = RunDeltaRule(path, inputs, whole_pool, threads);
    ASSERT_TRUE(whole.ok()) << whole.status();
    for (const int64_t prompt : {0, 1, 64, 250, 299}) {
      SCOPED_TRACE(std::string(DeltaRulePathName(path)) + " of " + std::to_string(prompt));
      HostStatePool pool(dims, 1);
      auto output = RunDeltaRule(path, Slice(inputs, 0, prompt), pool, threads);
      ASSERT_TRUE(output.ok()) << output.status();
      Session session(pool, 0);
      for (int64_t t = prompt; t < inputs.tokens; ++t) {
        const std::vector<float> row = session.Decode(Slice(inputs, t, t + 1), threads);
        output->insert(output->end(), row.begin(), row.end());
      }
      session.Fold(threads);
      EXPECT_LE(RelativeNormError(*output, *whole), kPromise);
      EXPECT_LE(RelativeNormError(pool.base(0), whole_pool.base(0)), kPromise);
      EXPECT_LE(RelativeNormError(*output, expected), kPromise);
      EXPECT_LE(RelativeNormError(pool.base(0), state), kPromise);
    }
  }
}

TEST(DeltaRuleDecode, ASingleStepOnALongStateMatchesDouble) {
  Random random(7);
  ThreadPool threads(2);
  const LayerDims dims = OperatorDims(1, 1, 64, 64);
  HostStatePool pool(dims, 1);
  std::vector<double> state(dims.state_elements(), 0.0);
  const DeltaRuleInputs prompt = RandomDeltaRuleInputs(dims, 2000, random, /*g_low=*/-0.005f);
  DeltaRuleInDouble(prompt, state);
  ASSERT_TRUE(RunDeltaRule(DeltaRulePath::kChunk, prompt, pool, threads).ok());
  const DeltaRuleInputs step = RandomDeltaRuleInputs(dims, 1, random);
  Session session(pool, 0);
  EXPECT_LE(RelativeNormError(session.Decode(step, threads), DeltaRuleInDouble(step, state)), kPromise);
}

TEST(DeltaRuleDecode, RefusesLongSequencesAndFullLogs) {
  Random random(8);
  ThreadPool threads(1);
  const LayerDims dims = OperatorDims(1, 1, 8, 8);
  HostStatePool pool(dims, 1, /*max_draft=*/2);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 3, random);
  std::vector<float> output(inputs.v.size());
  const std::vector<int32_t> slots = {0};
  const auto decode = [&](int32_t tokens, int32_t* log_lengths) {
    const std::vector<int32_t> offsets = {0, tokens};
    const DeltaRuleParams rule = MakeDeltaRuleParams(
        inputs, pool.view(), {.sequences = 1, .cu_seqlens = offsets.data(), .slots = slots.data()}, output);
    return DeltaRuleDecodeCpu({.rule = rule, .log_lengths = log_lengths}, threads);
  };
  int32_t log_length = 0;
  EXPECT_THAT(std::string(decode(3, &log_length).message()), HasSubstr("max_draft"));
  EXPECT_THAT(std::string(decode(2, nullptr).message()), HasSubstr("log_lengths"));
  for (const int32_t bad : {-1, kLogCapacity}) {
    log_length = bad;
    const absl::Status status = decode(2, &log_length);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("log_lengths[0]"));
    EXPECT_EQ(log_length, bad);
  }
  EXPECT_EQ(RelativeNormError(pool.slot(0), std::vector<float>(pool.slot(0).size(), 0.0f)), 0.0);
}

}  // namespace
}  // namespace gdn
