// gdnctl prefill and decode on recordings of layers.
#include <string>

#include "absl/flags/reflection.h"
#include "base/files/safetensors.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "client/cpp/testing/toy_layer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"

namespace gdn::step_test {
namespace {

using ::testing::HasSubstr;

class RecordedSteps : public ::testing::Test {
 protected:
  // The recording has a prompt of 3 tokens and one step of 2 sequences, of layer 0; their elements count up.
  void SetUp() override {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i);
    const std::string_view bytes(reinterpret_cast<const char*>(values_.data()), values_.size() * sizeof(float));
    const size_t row = kToyHidden * sizeof(float);
    GDN_ASSERT_OK_AND_ASSIGN(
        const std::string file,
        SerializeSafetensors({{"layer.0.prefill.in", {DType::kF32, {2, 3, kToyHidden}, bytes.substr(0, 6 * row)}},
                              {"layer.0.decode.0.in", {DType::kF32, {2, 1, kToyHidden}, bytes.substr(0, 2 * row)}}},
                             {}));
    WriteFile(folder_.path() + "/io", file);
    for (const char* const id : {"a", "b"}) {
      const Outcome made = Run(SessionCommands(), {"sessions", "create", "--model=toy", std::string("--id=") + id});
      ASSERT_EQ(made.exit_code, kExitOk) << made.err;
    }
  }

  Outcome Run(const std::vector<Command>& commands, std::vector<std::string> arguments) {
    const absl::FlagSaver saver;
    arguments.push_back("--target=" + server_.target());
    return RunCommand(commands, arguments);
  }
  Outcome Step(std::vector<std::string> arguments) {
    arguments.push_back("--in=" + folder_.path() + "/io");
    arguments.push_back("--out=" + folder_.path() + "/out");
    return Run(StepCommands(), std::move(arguments));
  }

  std::vector<float> values_ = std::vector<float>(6 * kToyHidden);
  FakeGdnService service_;
  const LoopbackServer server_{&service_};
  const TempFolder folder_;
};

TEST_F(RecordedSteps, APrefillTakesOneSequence) {
  const Outcome outcome = Step({"prefill", "--session=a", "--sequence=1"});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("3 tokens seen"));
}

TEST_F(RecordedSteps, ADecodeTakesASequenceForEachSession) {
  const Outcome outcome = Step({"decode", "--session=a,b"});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1,1 tokens seen"));
}

TEST_F(RecordedSteps, WhatTheRecordingLacksIsNamed) {
  EXPECT_THAT(Step({"prefill", "--session=a", "--sequence=2"}).err, HasSubstr("has 2 sequences; sequences 2 to 2"));
  EXPECT_THAT(Step({"decode", "--session=a,b", "--sequence=1"}).err, HasSubstr("sequences 1 to 2"));
  EXPECT_THAT(Step({"decode", "--session=a", "--step=7"}).err, HasSubstr("0 kinds of input for layer 0"));
  EXPECT_THAT(Step({"prefill", "--session=a", "--layer=2"}).err, HasSubstr("0 kinds of input for layer 2"));
}

}  // namespace
}  // namespace gdn::step_test
