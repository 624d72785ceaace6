// gdnctl state slice and state join, on files; what they do to a state is state_store's matter.
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "base/dtype.h"
#include "base/files/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"

namespace gdn::slice_test {
namespace {

using ::testing::HasSubstr;

// A model session of two heads, as another engine might write it.
std::string WholeFile() {
  std::vector<float> state(2 * 2 * 3), conv(14 * 3);  // C = 2 * 2 * 2 + 2 * 3
  for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<float>(i);
  for (size_t i = 0; i < conv.size(); ++i) conv[i] = static_cast<float>(i) / 2;
  const auto bytes = [](const std::vector<float>& values) {
    return std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  return *SerializeSafetensors(
      {{"layer.1.recurrent_state", {DType::kF32, {2, 2, 3}, bytes(state)}},
       {"layer.1.conv_state", {DType::kF32, {14, 3}, bytes(conv)}}},
      {{"format", "gdn.state"},
       {"format_version", "1"},
       {"dims", R"({"key_heads":2,"value_heads":2,"key_dim":2,"value_dim":3,"conv_width":4,"hidden_size":8})"},
       {"layer_count", "2"},
       {"model", "m"},
       {"model_fingerprint", "0123456789abcdef0123456789abcdef"},
       {"layer.1", R"({"token_count":40})"}});
}

Outcome RunOf(const std::vector<std::string>& arguments) {
  const absl::FlagSaver saver;
  return RunCommand(SliceCommands(), arguments);
}

TEST(SliceCommands, CutAFileAndPutItTogether) {
  const TempFolder folder;
  const auto path = [&](const std::string& name) { return folder.path() + "/" + name; };
  WriteFile(path("whole"), WholeFile());
  const Outcome low = RunOf({"state", "slice", path("whole"), "--heads=0-0/2", "--out=" + path("low")});
  EXPECT_EQ(low.exit_code, kExitOk) << low.err;
  EXPECT_THAT(low.out, HasSubstr(path("low")));
  ASSERT_EQ(RunOf({"state", "slice", path("whole"), "--heads=1-1/2", "--out=" + path("high")}).exit_code, kExitOk);
  const Outcome joined = RunOf({"state", "join", path("high"), path("low"), "--out=" + path("joined")});
  EXPECT_EQ(joined.exit_code, kExitOk) << joined.err;
  const SafetensorsFile before = SafetensorsFile::Open(path("whole")).value();
  const SafetensorsFile after = SafetensorsFile::Open(path("joined")).value();
  for (const auto& [name, entry] : before.entries()) EXPECT_EQ(*before.Bytes(name), *after.Bytes(name)) << name;
  EXPECT_EQ(before.metadata().at("model_fingerprint"), after.metadata().at("model_fingerprint"));

  const Outcome missing = RunOf({"state", "join", path("low"), "--out=" + path("joined")});
  EXPECT_EQ(missing.exit_code, kExitFailed);
  EXPECT_THAT(missing.err, HasSubstr("value heads 1 to 1 are in none of the files"));
  const Outcome wrong = RunOf({"state", "slice", path("whole"), "--heads=0-1/4", "--out=" + path("x")});
  EXPECT_EQ(wrong.exit_code, kExitFailed);
  EXPECT_THAT(wrong.err, HasSubstr("the state file's model has 2"));
}

TEST(SliceCommands, WantFilesHeadsAndAPlace) {
  EXPECT_EQ(RunOf({"state", "slice", "--heads=0-0/2", "--out=x"}).exit_code, kExitUsage);
  EXPECT_EQ(RunOf({"state", "slice", "a", "--heads=", "--out=x"}).exit_code, kExitUsage);
  EXPECT_EQ(RunOf({"state", "slice", "a", "--heads=0-0/2", "--out="}).exit_code, kExitUsage);
  EXPECT_EQ(RunOf({"state", "join", "--out=x"}).exit_code, kExitUsage);
  EXPECT_EQ(RunOf({"state", "join", "a", "--out="}).exit_code, kExitUsage);
}

}  // namespace
}  // namespace gdn::slice_test
