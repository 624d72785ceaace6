// gdnctl models inspect, on the golden checkpoints and on what a server would refuse.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_folder.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"

namespace gdn::inspect_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Golden(const std::string& name) { return GDN_SOURCE_DIR "/tests/golden/" + name; }

Outcome Inspect(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"models", "inspect"});
  const absl::FlagSaver saver;
  return RunCommand(InspectCommands(), arguments);
}

TEST(InspectCommand, PrintsWhatTheLayersComputeWithoutAServer) {
  const Outcome outcome = Inspect({"--nojson", Golden("qwen3_next_5")});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("model type   qwen3_next\n"), HasSubstr("GDN layers   3 of 4: 0..2\n"),
                    HasSubstr("dims         H=2 HV=6 K=48 V=32 W=4 D=64\n"), HasSubstr(" F32; "),
                    HasSubstr("projections  two matrices, interleaved by key head"),
                    HasSubstr("decay        -exp(A_log) softplus(a + dt_bias)\n"),
                    HasSubstr("beta         sigmoid(b), in (0, 1)\n"), HasSubstr("output gate  silu(z)\n")));
}

TEST(InspectCommand, SaysWhichGateAndWhichRankDecaysByChannelHave) {
  const Outcome glm = Inspect({"--nojson", Golden("glm5_next_1")});
  EXPECT_EQ(glm.exit_code, kExitOk) << glm.err;
  EXPECT_THAT(glm.out,
              AllOf(HasSubstr("dims         H=3 HV=3 K=32 V=32 W=4 D=64 decay=per-channel\n"),
                    HasSubstr("decay        -5 sigmoid(exp(A_log) (a (of rank 32) + dt_bias)), for each key channel\n"),
                    HasSubstr("output gate  sigmoid(z), z of rank 32\n")));
  EXPECT_THAT(Inspect({"--nojson", Golden("kimi_linear_1")}).out,
              HasSubstr("decay        -exp(A_log) softplus(a (of rank 32) + dt_bias), for each key channel\n"));
  EXPECT_THAT(Inspect({"--nojson", Golden("bailing_hybrid_1")}).out,
              AllOf(HasSubstr("(a + dt_bias)), for each key channel\n"), HasSubstr("output gate  sigmoid(z)\n")));
}

TEST(InspectCommand, PrintsJson) {
  const Outcome outcome = Inspect({"--json", Golden("qwen3_next_1"), Golden("qwen3_5_1")});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.is_array()) << outcome.out;
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["model type"], "qwen3_next");
  EXPECT_EQ(json[1]["projections"], "four matrices: [q k v], z, b, a");
}

TEST(InspectCommand, SaysWhatFp8WeightsTakeOnceLoaded) {
  const Outcome outcome = Inspect({"--nojson", Golden("fp8_qwen3_5_1")});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr(" F8_E4M3; "), HasSubstr(" once loaded, "),
                                 HasSubstr(" where a backend widens what is quantised\n")));
}

TEST(InspectCommand, SaysWhatIsNotVerified) {
  TempFolder folder;
  std::filesystem::copy(Golden("qwen3_next_1") + "/model.safetensors", folder.path());
  auto config = nlohmann::json::parse(ReadFile(Golden("qwen3_next_1") + "/config.json"), nullptr, false);
  config["model_type"] = "gigachat3_5";
  WriteFile(folder.path() + "/config.json", config.dump());
  const Outcome outcome = Inspect({"--nojson", folder.path()});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("gigachat3_5; not verified: needs --allow-unverified-family\n"),
                                 HasSubstr("norm         (1 + w) o"), HasSubstr("output gate  2 sigmoid(z)\n")));
}

TEST(InspectCommand, PrintsWhatAServerOfSomeHeadsWouldHave) {
  const Outcome outcome = Inspect({"--nojson", "--heads=3-5/6", Golden("qwen3_next_5")});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("dims         H=1 HV=3 K=48 V=32 W=4 D=64\n"));
  const Outcome cut = Inspect({"--nojson", "--heads=0-3/6", Golden("qwen3_next_5")});
  EXPECT_EQ(cut.exit_code, kExitFailed);
  EXPECT_THAT(cut.err, HasSubstr("cut the 3 value heads that read key head 1"));
  const Outcome none = Inspect({"--nojson", "--heads=half", Golden("qwen3_next_5")});
  EXPECT_EQ(none.exit_code, kExitFailed);
  EXPECT_THAT(none.err, HasSubstr("FIRST-LAST/TOTAL"));
}

TEST(InspectCommand, RefusesWhatAServerWouldRefuse) {
  const Outcome none = Inspect({"--nojson", "/nowhere"});
  EXPECT_EQ(none.exit_code, kExitFailed);
  EXPECT_THAT(none.err, HasSubstr("'/nowhere' is not there; expected a Hugging Face checkpoint folder"));
  EXPECT_EQ(Inspect({"--nojson"}).exit_code, kExitUsage);
}

}  // namespace
}  // namespace gdn::inspect_test
