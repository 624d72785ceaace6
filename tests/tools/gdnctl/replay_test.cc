#include "tools/gdnctl/replay/replay.h"

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/files/safetensors.h"
#include "base/string_cat.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::replay_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int64_t kBatch = 2;
constexpr int64_t kPromptTokens = 80;  // more than one request_id may stand for, and three segments
constexpr int64_t kDecodeSteps = 3;
constexpr int64_t kRecordedColumns = 4;  // one more than the server keeps
constexpr double kToyTolerance = 1e-6;   // the fake computes what was recorded in the same order
constexpr int32_t kFaultyLayer = 2;

using Tensors = std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>>;

float ToyInput(int32_t layer, int64_t sequence, int64_t token, int64_t channel) {
  return std::sin(0.37f * static_cast<float>(token) + static_cast<float>(3 * layer + 5 * sequence + channel)) + 0.5f;
}

// Returns the tensors of a recording of the toy layers.
Tensors RecordToy() {
  Tensors tensors;
  for (const int32_t layer : kToyLayers) {
    const std::string prefix = StrCat("layer.", layer, ".");
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) -> std::vector<float>& {
      auto& tensor = tensors[prefix + name];
      tensor.first = std::move(shape);
      return tensor.second;
    };
    auto& prefill_in = add("prefill.in", {kBatch, kPromptTokens, kToyHidden});
    auto& prefill_out = add("prefill.out", {kBatch, kPromptTokens, kToyHidden});
    auto& whole_in = add("whole.in", {kBatch, kPromptTokens + kDecodeSteps, kToyHidden});
    auto& whole_out = add("whole.out", {kBatch, kPromptTokens + kDecodeSteps, kToyHidden});
    auto& conv_state = add("conv_state", {kBatch, kToyHidden, kRecordedColumns});
    auto& recurrent_state = add("recurrent_state", {kBatch, 1, kToyHidden, 1});
    for (int64_t b = 0; b < kBatch; ++b) {
      ToyState state;
      for (int64_t t = 0; t < kPromptTokens + kDecodeSteps; ++t) {
        float x[kToyHidden];
        for (int64_t d = 0; d < kToyHidden; ++d) x[d] = ToyInput(layer, b, t, d);
        const auto y = state.Step(layer, x);
        whole_in.insert(whole_in.end(), x, x + kToyHidden);
        whole_out.insert(whole_out.end(), y.begin(), y.end());
        const std::string step = StrCat("decode.", t - kPromptTokens);
        auto& in = t < kPromptTokens ? prefill_in : add(step + ".in", {kBatch, 1, kToyHidden});
        auto& out = t < kPromptTokens ? prefill_out : add(step + ".out", {kBatch, 1, kToyHidden});
        in.insert(in.end(), x, x + kToyHidden);
        out.insert(out.end(), y.begin(), y.end());
      }
      for (int64_t d = 0; d < kToyHidden; ++d) {
        for (int64_t t = kPromptTokens + kDecodeSteps - kRecordedColumns; t < kPromptTokens + kDecodeSteps; ++t) {
          conv_state.push_back(ToyInput(layer, b, t, d));
        }
      }
      recurrent_state.insert(recurrent_state.end(), state.sum.begin(), state.sum.end());
    }
  }
  return tensors;
}

std::string WriteIo(const Tensors& tensors, const std::string& name) {
  std::vector<NamedTensor> views;
  for (const auto& [tensor, content] : tensors) {
    views.push_back({tensor,
                     {DType::kF32,
                      content.first,
                      {reinterpret_cast<const char*>(content.second.data()), content.second.size() * sizeof(float)}}});
  }
  std::string path = StrCat(::testing::TempDir(), "/", name, ".safetensors");
  std::ofstream(path, std::ios::binary) << *SerializeSafetensors(views, {});
  return path;
}

class ReplayTest : public ::testing::Test {
 protected:
  absl::StatusOr<ErrorTable> ReplayAgainst(FakeGdnService* service, const Tensors& tensors,
                                           ReplayOptions options = {}) {
    const LoopbackServer server(service);
    const auto io = ReadGoldenIo(WriteIo(tensors, ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    if (!io.ok()) return io.status();
    if (options.model.empty()) options.model = "models/toy";
    return Replay(*Client::Connect(server.target()), *io, options);
  }

  // Replays against `service`, which must pass on all but `path`.
  void ExpectOnlyFault(FakeGdnService::Options faults, const std::string& path) {
    FakeGdnService service(std::move(faults));
    GDN_ASSERT_OK_AND_ASSIGN(const auto table, ReplayAgainst(&service, RecordToy()));
    EXPECT_FALSE(table.Within(kToyTolerance));
    EXPECT_EQ(table.Worst().path, path) << table.Format(kToyTolerance);
    EXPECT_THAT(table.Verdict(kToyTolerance), HasSubstr(path));
    EXPECT_THAT(service.session_names(), IsEmpty());
  }
};

TEST_F(ReplayTest, PassesOnAServerThatComputesWhatWasRecorded) {
  FakeGdnService service;
  GDN_ASSERT_OK_AND_ASSIGN(const auto table, ReplayAgainst(&service, RecordToy()));
  EXPECT_TRUE(table.Within(kToyTolerance)) << table.Format(kToyTolerance);
  EXPECT_THAT(table.Verdict(kToyTolerance), HasSubstr("replay ok: worst relative error "));
  EXPECT_THAT(table.Verdict(kToyTolerance), HasSubstr(" over 2 layers"));
}

TEST_F(ReplayTest, ChecksCountsAndIdentifiesTheStepsWhoseRepliesCanBeStored) {
  FakeGdnService service;
  ASSERT_TRUE(ReplayAgainst(&service, RecordToy()).ok());
  EXPECT_THAT(service.log().checked_calls, UnorderedElementsAre("Prefill", "StreamPrefill", "Decode", "StreamDecode"));
  // The unary prompt is longer than a stored reply may be, which the fake would refuse.
  EXPECT_THAT(service.log().identified_calls, UnorderedElementsAre("StreamPrefill", "Decode", "StreamDecode"));
}

TEST_F(ReplayTest, DeletesItsSessionsInTheEnd) {
  FakeGdnService service;
  ASSERT_TRUE(ReplayAgainst(&service, RecordToy()).ok());
  EXPECT_EQ(service.log().sessions_created, 3 * kBatch);
  EXPECT_THAT(service.session_names(), IsEmpty());
}

TEST_F(ReplayTest, FindsAWrongAnswerOnEachPath) {
  ExpectOnlyFault({.output_error = 1, .faulty_call = "StreamPrefill"}, "prefill streamed");
  ExpectOnlyFault({.output_error = 1, .faulty_call = "Decode"}, "decode unary");
  ExpectOnlyFault({.output_error = 1, .faulty_call = "StreamDecode"}, "decode streamed");
  ExpectOnlyFault({.exported_state_error = 1}, "recurrent state");
}

TEST_F(ReplayTest, FindsAWrongAnswerOfPrefillBothInThePromptAndInTheWhole) {
  FakeGdnService service({.output_error = 1, .faulty_call = "Prefill"});
  GDN_ASSERT_OK_AND_ASSIGN(const auto table, ReplayAgainst(&service, RecordToy()));
  EXPECT_THAT(table.Worst().path, AnyOf("prefill unary", "whole"));
}

TEST_F(ReplayTest, FindsAWrongRecordingOfEveryTensor) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"prefill.out", "prefill"},
                                                                  {"decode.1.out", "decode"},
                                                                  {"whole.out", "whole"},
                                                                  {"conv_state", "conv state"},
                                                                  {"recurrent_state", "recurrent state"}};
  for (const auto& [tensor, path] : cases) {
    Tensors tensors = RecordToy();
    tensors[StrCat("layer.", kFaultyLayer, ".", tensor)].second.back() += 1;
    FakeGdnService service;
    GDN_ASSERT_OK_AND_ASSIGN(const auto table, ReplayAgainst(&service, tensors));
    EXPECT_FALSE(table.Within(kToyTolerance)) << tensor;
    EXPECT_EQ(table.Worst().layer, kFaultyLayer) << tensor;
    EXPECT_THAT(table.Worst().path, HasSubstr(path));
  }
}

TEST_F(ReplayTest, DoesNotCompareConvColumnsTheServerDoesNotKeep) {
  Tensors tensors = RecordToy();
  tensors["layer.0.conv_state"].second.front() += 100;  // the oldest column
  FakeGdnService service;
  GDN_ASSERT_OK_AND_ASSIGN(const auto table, ReplayAgainst(&service, tensors));
  EXPECT_TRUE(table.Within(kToyTolerance)) << table.Format(kToyTolerance);
}

TEST_F(ReplayTest, SaysWhichPartFailedAndDeletesItsSessions) {
  const std::tuple<FakeGdnService::Options, absl::StatusCode, std::string> cases[] = {
      {{.refuse_decode = true}, absl::StatusCode::kAborted, "layer 0: decode unary: busy"},
      {{.fail_stream_segment = true}, absl::StatusCode::kResourceExhausted, "prefill streamed: queue is full"},
      // A count that the steps do not explain.
      {{.wrong_token_count = true}, absl::StatusCode::kInternal, "81 tokens, expected 80"}};
  for (const auto& [faults, code, message] : cases) {
    FakeGdnService service(faults);
    const auto table = ReplayAgainst(&service, RecordToy());
    EXPECT_EQ(table.status().code(), code);
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(message));
    EXPECT_EQ(service.log().sessions_created, 3 * kBatch);
    EXPECT_THAT(service.session_names(), IsEmpty());
  }
}

TEST_F(ReplayTest, StopsWhereTheCallerSaysSo) {
  FakeGdnService service;
  std::vector<std::string> parts;
  ReplayOptions options;
  options.before_part = [&parts](std::string_view what) {
    parts.emplace_back(what);
    return parts.size() < 3 ? absl::OkStatus() : absl::CancelledError("interrupted");
  };
  const auto table = ReplayAgainst(&service, RecordToy(), options);
  EXPECT_EQ(table.status(), absl::CancelledError("interrupted"));
  EXPECT_EQ(parts.back(), "layer 0: decode unary");
  EXPECT_THAT(service.session_names(), IsEmpty());
}

TEST_F(ReplayTest, RefusesTheRecordingOfAnotherModelBeforeMakingSessions) {
  Tensors tensors;
  for (auto& [name, tensor] : RecordToy()) {
    tensors[absl::StrReplaceAll(name, {{"layer.2.", "layer.9."}})] = tensor;
  }
  FakeGdnService service;
  const auto table = ReplayAgainst(&service, tensors);
  EXPECT_EQ(table.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("no GDN layer of models/toy"));
  EXPECT_EQ(service.log().sessions_created, 0);
}

TEST_F(ReplayTest, SendsTheInputsInTheDTypeAskedFor) {
  FakeGdnService service;
  ReplayOptions options;
  options.dtype = DType::kBF16;
  GDN_ASSERT_OK_AND_ASSIGN(const auto table, ReplayAgainst(&service, RecordToy(), options));
  EXPECT_GT(table.Worst().error, 1e-4);  // inputs rounded to 8 bits
  EXPECT_LT(table.Worst().error, 1e-2);
}

TEST(ReadGoldenIo, NamesTheTensorThatIsMissingOrDoesNotFit) {
  for (const std::string name : {"layer.0.prefill.out", "layer.2.decode.2.in", "layer.0.whole.in", "layer.2.conv_state",
                                 "layer.0.recurrent_state"}) {
    Tensors tensors = RecordToy();
    tensors.erase(name);
    EXPECT_THAT(ReadGoldenIo(WriteIo(tensors, "missing")).status().ToString(), HasSubstr(StrCat("'", name, "'")));

    tensors = RecordToy();
    tensors[name].first = {static_cast<int64_t>(tensors[name].second.size())};
    const std::string message = ReadGoldenIo(WriteIo(tensors, "misfit")).status().ToString();
    EXPECT_THAT(message, HasSubstr(StrCat("'", name, "'")));
    EXPECT_THAT(message, HasSubstr("expected ["));
  }
  EXPECT_THAT(ReadGoldenIo(WriteIo({}, "empty")).status().ToString(), HasSubstr("no tensor named layer.L"));
  EXPECT_EQ(ReadGoldenIo("/nonexistent/io.safetensors").status().code(), absl::StatusCode::kNotFound);
}

TEST(UnevenSegments, CoverEveryLengthInOrder) {
  EXPECT_EQ(UnevenSegments(0), std::vector<int64_t>());
  EXPECT_EQ(UnevenSegments(1), std::vector<int64_t>({1}));
  EXPECT_EQ(UnevenSegments(37), std::vector<int64_t>({1, 7, 29}));
  EXPECT_EQ(UnevenSegments(150), std::vector<int64_t>({1, 7, 64, 78}));
  EXPECT_EQ(UnevenSegments(325), std::vector<int64_t>({1, 7, 64, 250, 1, 2}));
}

}  // namespace
}  // namespace gdn::replay_test
