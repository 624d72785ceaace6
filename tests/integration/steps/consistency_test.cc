// A step's outputs do not depend on how the tokens came: prefill against decode, batches, threads, dtypes, kinds of
// input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <limits>
#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/support/compare.h"

namespace gdn::consistency_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr double kGoldenTolerance = 1e-5;  // against transformers' float32
constexpr int kLayer = 2;

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, PrefillAndDecodeAgreeWithTransformersForEveryLayer) {
  const std::string set = GetParam();
  TestServer server({.models = {{"m", GoldenPath(set)}}});
  const Caller caller(server);
  for (int sequence = 0; sequence < 2; ++sequence) {
    const std::string id = std::to_string(sequence);
    ASSERT_TRUE(caller.Create(id, "m").ok());
    for (int layer = 0; layer < 3; ++layer) {
      const Tokens inputs = GoldenInputs(set, layer, sequence);
      const Tokens outputs = GoldenOutputs(set, layer, sequence);
      const int64_t steps = set.back() == '1' ? 6 : 8;
      const int64_t prompt = inputs.count() - steps;
      ASSERT_REPLY(const auto prefilled, caller.Prefill(PrefillOf(id, layer, inputs.Slice(0, prompt))));
      EXPECT_LE(RelativeNormError(Floats(prefilled.output()), outputs.Slice(0, prompt).values), kGoldenTolerance);
      for (int64_t t = prompt; t < inputs.count(); ++t) {
        ASSERT_REPLY(const auto decoded, caller.Decode(DecodeOf({id}, layer, {inputs.Token(t)})));
        EXPECT_LE(RelativeNormError(Floats(decoded.output()), outputs.Token(t).values), kGoldenTolerance);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, Golden, ::testing::Values("qwen3_next_1", "qwen3_5_1", "qwen3_next_5", "qwen3_5_5"),
                         [](const auto& set) { return std::string(set.param); });

class Consistency : public ::testing::Test {
 protected:
  // Sessions that have seen `prompt` tokens of the golden prompt by prefill.
  void Make(const std::vector<std::string>& ids, int64_t prompt) {
    for (const std::string& id : ids) {
      ASSERT_TRUE(caller_.Create(id, "m").ok());
      ASSERT_TRUE(caller_.Prefill(PrefillOf(id, kLayer, inputs_.Slice(0, prompt))).ok());
    }
  }

  TestServer server_{{.models = {{"m", GoldenPath("qwen3_next_5")}, {"one", GoldenPath("qwen3_5_1")}}}};
  const Caller caller_{server_};
  const Tokens inputs_ = GoldenInputs("qwen3_next_5", kLayer);
};

TEST_F(Consistency, RaggedRowsArePaddedWithZerosAndEqualRowsAloneToTheBit) {
  const std::vector<int64_t> lengths = {3, 0, 8, 1, 5};
  std::vector<std::string> batch, alone;
  std::vector<Tokens> rows;
  for (size_t i = 0; i < lengths.size(); ++i) {
    batch.push_back("batch" + std::to_string(i));
    alone.push_back("alone" + std::to_string(i));
    rows.push_back(inputs_.Slice(60 + 8 * static_cast<int64_t>(i), lengths[i]));
    Make({batch[i], alone[i]}, 10 + static_cast<int64_t>(i));
  }
  for (int round = 0; round < 3; ++round) {  // over a fold of every row
    ASSERT_REPLY(const auto reply, caller_.Decode(DecodeOf(batch, kLayer, rows)));
    EXPECT_THAT(reply.output().shape(), ElementsAre(5, 8, 64));
    EXPECT_EQ(reply.row_statuses_size(), 0);
    for (size_t i = 0; i < lengths.size(); ++i) {
      const size_t used = static_cast<size_t>(lengths[i]) * 64 * sizeof(float);
      const std::string row = RowBytes(reply.output(), static_cast<int64_t>(i));
      EXPECT_THAT(row.substr(used), Each('\0'));
      EXPECT_EQ(reply.token_counts(static_cast<int>(i)), 10 + static_cast<int64_t>(i) + (round + 1) * lengths[i]);
      if (lengths[i] == 0) continue;
      const auto single = caller_.Decode(DecodeOf({alone[i]}, kLayer, {rows[i]}));
      EXPECT_EQ(row.substr(0, used), single.reply.output().data()) << "row " << i;
    }
  }
  for (size_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(caller_.State(batch[i]), caller_.State(alone[i])) << i;
}

TEST_F(Consistency, ADecodeOfManyTokensEqualsAsManyDecodesOfOneToTheBit) {
  for (const v1::DType input : {v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16}) {
    for (const v1::DType output : {v1::DTYPE_UNSPECIFIED, v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16}) {
      const std::string id = std::to_string(input) + "." + std::to_string(output);
      Make({id, id + ".single"}, 13);
      for (int64_t first = 13; first < 13 + 3 * 7; first += 7) {
        v1::DecodeRequest many = DecodeOf({id}, kLayer, {inputs_.Slice(first, 7)}, input);
        many.set_output_dtype(output);
        ASSERT_REPLY(const auto together, caller_.Decode(many));
        EXPECT_EQ(together.output().dtype(), output == v1::DTYPE_UNSPECIFIED ? input : output);
        std::string singles;
        for (int64_t t = first; t < first + 7; ++t) {
          v1::DecodeRequest one = DecodeOf({id + ".single"}, kLayer, {inputs_.Token(t)}, input);
          one.set_output_dtype(output);
          singles += caller_.Decode(one).reply.output().data();
        }
        EXPECT_EQ(together.output().data(), singles) << id;
      }
      EXPECT_EQ(caller_.State(id), caller_.State(id + ".single")) << id;
    }
  }
}

TEST_F(Consistency, ANarrowOutputIsTheRoundedFloat32One) {
  Make({"f32", "bf16", "f16"}, 13);
  const auto wide = caller_.Decode(DecodeOf({"f32"}, kLayer, {inputs_.Token(13)}));
  for (const auto& [id, dtype] : {std::pair("bf16", v1::DTYPE_BF16), std::pair("f16", v1::DTYPE_F16)}) {
    v1::DecodeRequest request = DecodeOf({id}, kLayer, {inputs_.Token(13)});
    request.set_output_dtype(dtype);
    EXPECT_EQ(caller_.Decode(request).reply.output().data(),
              AsTensor({1, 1, 64}, Floats(wide.reply.output()), dtype).data());
  }
}

TEST_F(Consistency, CallsMergedFromManyThreadsGiveTheBitsOfSerialOnes) {
  constexpr int kCallers = 12;
  std::vector<std::string> merged, serial;
  for (int i = 0; i < kCallers; ++i) {
    merged.push_back("merged" + std::to_string(i));
    serial.push_back("serial" + std::to_string(i));
    Make({merged.back(), serial.back()}, 5 + i);
  }
  for (int round = 0; round < 4; ++round) {
    EngineBlocker blocker(server_.batcher());
    std::vector<std::future<Outcome<v1::DecodeResponse>>> calls;
    const auto rows = [&](int i) { return inputs_.Slice(40 + round * 9 + i, 1 + (i + round) % 5); };
    for (int i = 0; i < kCallers; ++i) {
      calls.push_back(std::async(std::launch::async, [&, i] {
        return caller_.Decode(DecodeOf({merged[static_cast<size_t>(i)]}, kLayer, {rows(i)}));
      }));
    }
    EXPECT_TRUE(WaitForQueuedSteps(server_, kCallers));
    blocker.Release();
    for (int i = 0; i < kCallers; ++i) {
      ASSERT_REPLY(const auto together, calls[static_cast<size_t>(i)].get());
      const auto single = caller_.Decode(DecodeOf({serial[static_cast<size_t>(i)]}, kLayer, {rows(i)}));
      EXPECT_EQ(together.output().data(), single.reply.output().data()) << "caller " << i << " round " << round;
    }
  }
  for (size_t i = 0; i < merged.size(); ++i) EXPECT_EQ(caller_.State(merged[i]), caller_.State(serial[i]));
}

TEST_F(Consistency, RowsMayFailByThemselvesWhereThatIsAllowed) {
  Make({"a", "nan", "late", "b", "reference"}, 7);
  Tokens poisoned = inputs_.Token(7);
  poisoned.values[5] = std::numeric_limits<float>::quiet_NaN();
  v1::DecodeRequest request =
      DecodeOf({"a", "unknown", "nan", "late", "b"}, kLayer,
               {inputs_.Token(7), inputs_.Token(7), poisoned, inputs_.Token(7), inputs_.Token(7)});
  for (const int64_t count : {7, 0, 7, 6, 7}) request.add_expected_token_counts(count);

  const auto refused = caller_.Decode(request);
  EXPECT_EQ(refused.reason(), "SESSION_NOT_FOUND");
  EXPECT_EQ(refused.metadata("session"), "sessions/unknown");
  for (const char* id : {"a", "b"}) EXPECT_EQ(caller_.TokenCount(id, kLayer), 7) << "one bad row refuses all";

  request.set_partial_ok(true);
  ASSERT_REPLY(const auto partial, caller_.Decode(request));
  std::vector<std::string> reasons;
  for (const auto& status : partial.row_statuses()) reasons.push_back(ErrorInfoOf(status).reason());
  EXPECT_THAT(reasons, ElementsAre("", "SESSION_NOT_FOUND", "NON_FINITE_INPUT", "TOKEN_COUNT_MISMATCH", ""));
  EXPECT_THAT(partial.token_counts(), ElementsAre(8, 0, 7, 7, 8)) << "a failed row's count is what it was";
  const auto alone = caller_.Decode(DecodeOf({"reference"}, kLayer, {inputs_.Token(7)}));
  for (const int64_t row : {0, 4}) EXPECT_EQ(RowBytes(partial.output(), row), alone.reply.output().data());
  for (const int64_t row : {1, 2, 3}) EXPECT_THAT(RowBytes(partial.output(), row), Each('\0'));
  EXPECT_EQ(caller_.TokenCount("nan", kLayer), 7);

  v1::DecodeRequest all_unknown = DecodeOf({"x", "y"}, kLayer, {inputs_.Token(0), inputs_.Token(0)});
  all_unknown.set_partial_ok(true);
  ASSERT_REPLY(const auto none, caller_.Decode(all_unknown));
  EXPECT_EQ(none.row_statuses_size(), 2);
}

TEST_F(Consistency, ANaNThatWasLetThroughStaysItsOwnSessions) {
  Make({"nan", "a", "reference"}, 7);
  Tokens poisoned = inputs_.Token(7);
  poisoned.values[5] = std::numeric_limits<float>::quiet_NaN();
  for (int step = 0; step < 20; ++step) {
    v1::DecodeRequest request = DecodeOf({"nan", "a"}, kLayer, {poisoned, inputs_.Token(7 + step)});
    request.set_allow_non_finite(true);
    ASSERT_REPLY(const auto both, caller_.Decode(request));
    const auto alone = caller_.Decode(DecodeOf({"reference"}, kLayer, {inputs_.Token(7 + step)}));
    EXPECT_EQ(RowBytes(both.output(), 1), alone.reply.output().data());
    EXPECT_TRUE(std::isnan(Floats(both.output())[0]));
  }
}

TEST_F(Consistency, ProjectedInputKeepsThePromisesToo) {
  constexpr int kTokens = 45;
  for (const char* id : {"whole", "split"}) ASSERT_TRUE(caller_.Create(id, "one").ok());
  const v1::ProjectedInput all = RandomProjected({kTokens}, 9);
  const auto part = [&](int64_t first, int64_t count, std::vector<int64_t> leading) {
    v1::ProjectedInput input;
    const auto cut = [&](const v1::Tensor& from, v1::Tensor* to) {
      const Tokens tokens{from.shape(1), Floats(from)};
      leading.push_back(from.shape(1));
      *to = AsTensor(leading, tokens.Slice(first, count).values);
      leading.pop_back();
    };
    cut(all.mixed_qkv(), input.mutable_mixed_qkv());
    cut(all.z(), input.mutable_z());
    cut(all.b(), input.mutable_b());
    cut(all.a(), input.mutable_a());
    return input;
  };
  v1::PrefillRequest prefill;
  prefill.set_session("sessions/whole");
  *prefill.mutable_projected() = all;
  ASSERT_REPLY(const auto whole, caller_.Prefill(prefill));
  EXPECT_THAT(whole.output().shape(), ElementsAre(kTokens, 128));
  prefill.set_session("sessions/split");
  *prefill.mutable_projected() = part(0, 20, {20});
  std::vector<float> outputs = Floats(caller_.Prefill(prefill).reply.output());
  for (int t = 20; t < kTokens; t += 5) {
    v1::DecodeRequest decode;
    decode.add_sessions("sessions/split");
    *decode.mutable_projected() = part(t, 5, {1, 5});
    ASSERT_REPLY(const auto reply, caller_.Decode(decode));
    const std::vector<float> step = Floats(reply.output());
    outputs.insert(outputs.end(), step.begin(), step.end());
  }
  EXPECT_LE(RelativeNormError(outputs, Floats(whole.output())), kSplitTolerance);
}

TEST_F(Consistency, TheBareDeltaRuleAgreesWithFloat64) {
  const LayerDims dims = SmallOperatorDims();
  Random random(11);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, 70, random, /*g_low=*/-0.2f);
  std::vector<double> state(static_cast<size_t>(dims.state_elements()));
  const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
  ASSERT_TRUE(caller_.CreateOperator("op", SmallOperator()).ok());
  v1::PrefillRequest prefill;
  prefill.set_session("sessions/op");
  *prefill.mutable_delta_rule() = DeltaRuleOf(Slice(inputs, 0, 40), {40});
  prefill.mutable_delta_rule()->set_scale(1.0f);  // the problem's q is scaled already
  std::vector<float> outputs = Floats(caller_.Prefill(prefill).reply.output());
  for (int t = 40; t < 70; t += 2) {
    v1::DecodeRequest decode;
    decode.add_sessions("sessions/op");
    *decode.mutable_delta_rule() = DeltaRuleOf(Slice(inputs, t, t + 2), {1, 2});
    decode.mutable_delta_rule()->set_scale(1.0f);
    ASSERT_REPLY(const auto reply, caller_.Decode(decode));
    EXPECT_THAT(reply.output().shape(), ElementsAre(1, 2, 4, 24));
    const std::vector<float> step = Floats(reply.output());
    outputs.insert(outputs.end(), step.begin(), step.end());
  }
  EXPECT_LE(RelativeNormError(outputs, expected), kGoldenTolerance);
}

TEST_F(Consistency, TheKindOfInputIsEachLayersOwnAndFixed) {
  ASSERT_TRUE(caller_.Create("a", "one").ok());
  const Tokens tokens = RandomTokens(3, 1);
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", 0, tokens)).ok());
  v1::PrefillRequest projected;
  projected.set_session("sessions/a");
  *projected.mutable_projected() = RandomProjected({3}, 2);
  const std::string state = caller_.State("a");
  EXPECT_TRUE(RefusedAs(caller_.Prefill(projected), "INPUT_KIND_MISMATCH",
                        {{"found", "projected"}, {"expected", "hidden_states"}}));
  EXPECT_EQ(caller_.State("a"), state);
  projected.set_layer(1);
  EXPECT_TRUE(caller_.Prefill(projected).ok());
  EXPECT_EQ(caller_.Prefill(PrefillOf("a", 1, tokens)).reason(), "INPUT_KIND_MISMATCH");
  EXPECT_EQ(caller_.Get("a").reply.layers(1).input_kind(), v1::INPUT_KIND_PROJECTED);
}

TEST_F(Consistency, APrefillAfterDecodesEqualsOneWholePrefill) {
  ASSERT_TRUE(caller_.Create("whole", "m").ok());
  const auto whole = caller_.Prefill(PrefillOf("whole", kLayer, inputs_));
  const Tokens expected{64, Floats(whole.reply.output())};
  for (const int64_t decodes : {1, 7, 15, 16, 17, 33}) {  // the log empty, part full, folded
    const std::string id = "split" + std::to_string(decodes);
    Make({id}, 30);
    for (int64_t t = 30; t < 30 + decodes; ++t) {
      ASSERT_TRUE(caller_.Decode(DecodeOf({id}, kLayer, {inputs_.Token(t)})).ok());
    }
    const int64_t rest = inputs_.count() - 30 - decodes;
    ASSERT_REPLY(const auto last, caller_.Prefill(PrefillOf(id, kLayer, inputs_.Slice(30 + decodes, rest))));
    EXPECT_LE(RelativeNormError(Floats(last.output()), expected.Slice(30 + decodes, rest).values), kSplitTolerance);
  }
}

}  // namespace
}  // namespace gdn::consistency_test
