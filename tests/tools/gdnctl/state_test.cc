// gdnctl's commands on session states.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/hash.h"
#include "base/string_cat.h"
#include "client/cpp/tensor_codec.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/progress.h"
#include "tools/gdnctl/state_file.h"

namespace gdn::state_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// A state file of one operator layer with a log, as docs/reference/state-files.md describes it.
std::string StateFileBytes() {
  const std::vector<float> state = {1, 2, 3, 4, 5, 6};
  const std::vector<float> log = {7, 8};
  const auto bytes = [](const std::vector<float>& values) {
    return std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  const std::string zeros(32, '0');
  const std::string checksums = StrCat("{\"layer.1.base_state\":\"", HashBytes(bytes(state)).ToHex(),
                                       "\",\"layer.1.log_g\":\"", HashBytes(bytes(log)).ToHex(), "\"}");
  std::string file = *SerializeSafetensors(
      {{"layer.1.base_state", {DType::kF32, {1, 2, 3}, bytes(state)}},
       {"layer.1.log_g", {DType::kF32, {2, 1}, bytes(log)}}},
      {{"format", "gdn.state"},
       {"format_version", "2"},
       {"dims", R"({"key_heads":1,"value_heads":1,"key_dim":2,"value_dim":3,"conv_width":0,"hidden_size":0})"},
       {"layer_count", "2"},
       {"epoch", "3"},
       {"snapshot_id", "aaaa"},
       {"layer.1", R"({"token_count":40,"log_length":2,"draft_length":1,"input_kind":"delta_rule","base":"here",)"
                   R"("reply":{"request_id":"step-39"}})"},
       {"checksums", checksums},
       {"header_checksum", zeros}});
  const size_t header_bytes = file.size() - sizeof(float) * (state.size() + log.size());
  const std::string digits = HashBytes(file.substr(0, header_bytes)).ToHex();
  return file.replace(file.find(zeros), zeros.size(), digits);
}

TEST(InspectStateFile, ReadsWhatTheHeaderSaysAndChecksEveryByte) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto report, InspectStateFile(StateFileBytes()));
  EXPECT_TRUE(report.header_checked);
  EXPECT_EQ(report.tensors_checked, 2);
  EXPECT_EQ(report.dims.value_dim(), 3);
  EXPECT_EQ(report.Text("epoch"), "3");
  ASSERT_EQ(report.layers.size(), 1u);
  const StateFileReport::Layer& layer = report.layers[0];
  EXPECT_EQ(layer.layer, 1);
  EXPECT_EQ(layer.token_count, 40);
  EXPECT_EQ(layer.log_length, 2);
  EXPECT_EQ(layer.draft_length, 1);
  EXPECT_EQ(layer.reply_request_id, "step-39");
  EXPECT_THAT(layer.parts, ElementsAre("base_state", "log_g"));
  EXPECT_EQ(layer.bytes, 32);
}

TEST(InspectStateFile, FindsEveryFlippedByteAndEveryCut) {
  const std::string good = StateFileBytes();
  for (size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] ^= 0x10;
    EXPECT_EQ(InspectStateFile(damaged).status().code(), absl::StatusCode::kDataLoss) << "byte " << i;
    EXPECT_EQ(InspectStateFile(good.substr(0, i)).status().code(), absl::StatusCode::kDataLoss) << "cut at " << i;
  }
}

TEST(InspectStateFile, NamesTheTensorThatIsDamaged) {
  std::string damaged = StateFileBytes();
  damaged.back() ^= 1;
  const absl::Status status = InspectStateFile(damaged).status();
  EXPECT_EQ(ErrorReason(status), reason::kInvalidStateFile);
  EXPECT_EQ(ErrorMetadata(status)["tensor"], "layer.1.log_g");
}

TEST(SetTargetSpec, TakesAServerOfSomeHeadsForAFileOfAllOrOfOthers) {
  StateFileReport report = *InspectStateFile(StateFileBytes());
  report.dims.set_conv_width(4);
  report.metadata["model_fingerprint"] = "whole";
  std::vector<v1::Model> models(1);
  models[0].set_name("models/a");
  models[0].set_fingerprint("low");
  models[0].set_whole_fingerprint("whole");
  v1::ImportStateRequest::Target target;
  ASSERT_TRUE(SetTargetSpec(report, models, &target).ok());
  EXPECT_EQ(target.model(), "models/a");
  EXPECT_EQ(HeadsOf(report), "");
  report.metadata["model_fingerprint"] = "high";
  report.metadata["heads"] = R"({"first":2,"count":2,"total":4,"model_fingerprint":"whole"})";
  EXPECT_EQ(HeadsOf(report), "2-3/4");
  EXPECT_EQ(WholeFingerprint(report), "whole");
  target.Clear();
  ASSERT_TRUE(SetTargetSpec(report, models, &target).ok());
  models[0].clear_whole_fingerprint();
  report.metadata.erase("heads");
  report.metadata["model_fingerprint"] = "";
  target.Clear();
  EXPECT_FALSE(SetTargetSpec(report, models, &target).ok());
}

TEST(SetTargetSpec, TakesTheOperatorOrTheModelOfTheFile) {
  StateFileReport report = *InspectStateFile(StateFileBytes());
  v1::ImportStateRequest::Target target;
  ASSERT_TRUE(SetTargetSpec(report, {}, &target).ok());
  EXPECT_EQ(target.operator_().key_dim(), 2);
  EXPECT_EQ(target.operator_().layer_count(), 2);

  report.dims.set_conv_width(4);
  report.metadata["model"] = "b";
  report.metadata["model_fingerprint"] = "same";
  std::vector<v1::Model> models(3);
  models[0].set_name("models/a");
  models[0].set_fingerprint("same");
  models[1].set_name("models/b");
  models[1].set_fingerprint("same");
  models[2].set_name("models/c");
  models[2].set_fingerprint("other");
  target.Clear();
  ASSERT_TRUE(SetTargetSpec(report, models, &target).ok());
  EXPECT_EQ(target.model(), "models/b");
  report.metadata["model_fingerprint"] = "unknown";
  target.Clear();
  EXPECT_EQ(ErrorReason(SetTargetSpec(report, models, &target)), reason::kStateMismatch);
}

TEST(FormatProgress, ShowsShareRateAndTimeLeft) {
  EXPECT_EQ(FormatProgress("export", 32 << 20, 64 << 20, absl::Seconds(2)),
            "export  [============>           ]  50%  32.0 MiB of 64.0 MiB  16.0 MiB/s  2s left");
  EXPECT_EQ(FormatProgress("import", 10, 10, absl::Seconds(1)),
            "import  [========================] 100%  10 B of 10 B  10 B/s");
  EXPECT_EQ(FormatProgress("watch", 2048, 0, absl::Seconds(1)), "watch  2.0 KiB  2.0 KiB/s");
}

class StateCommandLine : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto client = Client::Connect(server_.target());
    v1::CreateSessionRequest create;
    create.set_session_id("chat");
    create.set_model("models/toy");
    ASSERT_TRUE(client->CreateSession(create).ok());
    Step(*client, 3);
  }

  void Step(Client& client, int tokens) {
    v1::PrefillRequest prefill;
    prefill.set_session("sessions/chat");
    *prefill.mutable_hidden_states()->mutable_hidden_states() =
        *MakeTensor(std::vector<float>(static_cast<size_t>(tokens) * kToyHidden, 1.5f), {tokens, kToyHidden});
    ASSERT_TRUE(client.Prefill(prefill).ok());
  }

  Outcome Run(std::vector<std::string> arguments, const std::string& target = "") {
    std::vector<Command> commands;
    for (const auto& group : {StateCommands(), StateViewCommands(), SessionCommands()}) {
      commands.insert(commands.end(), group.begin(), group.end());
    }
    const absl::FlagSaver saver;
    arguments.push_back("--target=" + (target.empty() ? server_.target() : target));
    return RunCommand(commands, arguments);
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }

  const TempFolder temporary_;
  const std::string folder_ = temporary_.path();
  const std::string file_ = folder_ + "/chat.safetensors";
  FakeGdnService service_;
  LoopbackServer server_{&service_};
};

TEST_F(StateCommandLine, MovesASessionBetweenTwoServersInThreeCommands) {
  FakeGdnService other;
  const LoopbackServer other_server(&other);
  Outcome outcome = Run({"state", "export", "--session", "chat", "--out", file_});
  ASSERT_THAT(outcome, ExitsWith(kExitOk));
  EXPECT_EQ(outcome.err, "");  // no bar where stderr is no terminal
  outcome = Run({"state", "import", "--in", file_, "--id", "chat"}, other_server.target());
  ASSERT_THAT(outcome, ExitsWith(kExitOk));
  ASSERT_THAT(Run({"sessions", "delete", "chat"}), ExitsWith(kExitOk));
  EXPECT_EQ(other.token_count("sessions/chat", 0), 3);
  EXPECT_EQ(service_.token_count("sessions/chat", 0), -1);
}

TEST_F(StateCommandLine, ShowsProgressWhereAsked) {
  const Outcome outcome = Run({"state", "export", "--session", "chat", "--out", file_, "--progress"});
  EXPECT_THAT(outcome.err, HasSubstr("export  ["));
  EXPECT_THAT(outcome.err, HasSubstr("100%"));
}

TEST_F(StateCommandLine, LeavesNoFileOfADamagedExport) {
  FakeGdnService damaged({.damaged_pieces = true});
  const LoopbackServer server(&damaged);
  ASSERT_THAT(Run({"sessions", "create", "--model=toy", "--id=chat"}, server.target()), ExitsWith(kExitOk));
  const Outcome outcome = Run({"state", "export", "--session=chat", "--out", file_}, server.target());
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("DATA_LOSS (INVALID_STATE_FILE)"));
  EXPECT_THAT(Files(), ElementsAre());
}

TEST_F(StateCommandLine, ForksASession) {
  const Outcome outcome = Run({"state", "fork", "--session=chat", "a", "b"});
  ASSERT_THAT(outcome, ExitsWith(kExitOk));
  EXPECT_EQ(outcome.out, "sessions/a from sessions/chat\nsessions/b from sessions/chat\n");
  EXPECT_EQ(service_.token_count("sessions/b", 0), 3);
  EXPECT_THAT(Run({"state", "fork", "--session=chat"}).out, HasSubstr("made-by-the-server"));
}

TEST_F(StateCommandLine, GoesBackToACheckpoint) {
  ASSERT_THAT(Run({"state", "checkpoint", "--session=chat", "--checkpoint=three"}).out,
              HasSubstr("layer 0    3 tokens"));
  Step(*Client::Connect(server_.target()), 2);
  EXPECT_EQ(service_.token_count("sessions/chat", 0), 5);
  const Outcome outcome = Run({"state", "restore", "--session=chat", "--checkpoint=three"});
  EXPECT_THAT(outcome.out, HasSubstr("epoch 2"));
  EXPECT_EQ(service_.token_count("sessions/chat", 0), 3);
  EXPECT_THAT(Run({"state", "restore", "--session=chat", "--checkpoint=four"}), ExitsWith(kExitFailed));
}

TEST_F(StateCommandLine, UsesNoStateOfAnotherEpochThanTheUserKnows) {
  ASSERT_THAT(Run({"state", "checkpoint", "--session=chat"}), ExitsWith(kExitOk));
  service_.Crash();
  const std::vector<std::vector<std::string>> commands = {
      {"state", "export", "--session=chat", "--out", file_},
      {"state", "fork", "--session=chat", "a"},
      {"state", "checkpoint", "--session=chat"},
      {"state", "watch", "--session=chat", "--out", folder_ + "/standby", "--every-tokens=1", "--count=1"},
      {"state", "restore", "--session=chat"}};
  for (std::vector<std::string> command : commands) {
    SCOPED_TRACE(command[1]);
    command.push_back("--epoch=1");
    const Outcome refused = Run(command);
    EXPECT_EQ(refused.exit_code, kExitFailed);
    EXPECT_THAT(refused.err, HasSubstr("EPOCH_MISMATCH"));
    command.back() = "--epoch=-1";
    EXPECT_THAT(Run(command), ExitsWith(kExitUsage));
    command.back() = "--epoch=2";
    const Outcome done = Run(command);
    EXPECT_THAT(done, ExitsWith(kExitOk));
  }
}

TEST_F(StateCommandLine, ListsAndDeletesCheckpoints) {
  for (const char* id : {"three", "five"}) {
    ASSERT_THAT(Run({"state", "checkpoint", "--session=chat", StrCat("--checkpoint=", id)}), ExitsWith(kExitOk));
    Step(*Client::Connect(server_.target()), 2);
  }
  Outcome outcome = Run({"checkpoints", "--session=chat"});
  ASSERT_THAT(outcome, ExitsWith(kExitOk));
  EXPECT_THAT(outcome.out, HasSubstr("2 of 2.0 KiB"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("five +5 +1 +1.0 KiB"));
  EXPECT_THAT(Run({"checkpoints", "--session=chat", "--json"}).out, HasSubstr("\"stored_bytes\": \"2048\""));
  outcome = Run({"checkpoints", "delete", "--session=chat", "three", "five"});
  EXPECT_EQ(outcome.out, "deleted checkpoint 'three' of sessions/chat\ndeleted checkpoint 'five' of sessions/chat\n");
  outcome = Run({"checkpoints", "delete", "--session=chat", "three"});
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("CHECKPOINT_NOT_FOUND"));
  EXPECT_THAT(Run({"checkpoints", "delete", "--session=chat"}), ExitsWith(kExitUsage));
  EXPECT_THAT(Run({"checkpoints"}), ExitsWith(kExitUsage));
}

TEST_F(StateCommandLine, InspectsFilesAndSessions) {
  WriteFile(file_, StateFileBytes());
  Outcome outcome = Run({"state", "inspect", file_});
  ASSERT_THAT(outcome, ExitsWith(kExitOk));
  EXPECT_THAT(outcome.out, HasSubstr("header ok, 2 of 2 tensors ok"));
  EXPECT_THAT(outcome.out, HasSubstr("layer 1    40 tokens, 2 of them in the log, a draft of 1, delta_rule"));
  EXPECT_THAT(Run({"state", "inspect", "--json", file_}).out, HasSubstr("\"token_count\": 40"));
  std::string damaged = StateFileBytes();
  damaged.back() ^= 1;
  WriteFile(file_, damaged);
  outcome = Run({"state", "inspect", file_});
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("layer.1.log_g"));
  ASSERT_THAT(Run({"state", "checkpoint", "--session=chat"}), ExitsWith(kExitOk));
  outcome = Run({"state", "inspect", "--session=chat"});
  EXPECT_THAT(outcome.out, HasSubstr("in host memory"));
  EXPECT_THAT(outcome.out, HasSubstr("epoch      1"));
  EXPECT_THAT(outcome.out, HasSubstr("3 durable"));
  EXPECT_THAT(Run({"state", "inspect"}), ExitsWith(kExitUsage));
}

TEST_F(StateCommandLine, WatchesASessionAndKeepsWhatTheNewestSnapshotNeeds) {
  Outcome outcome = Run({"state", "watch", "--session=chat", "--out", folder_, "--every-tokens=4", "--count=3"});
  ASSERT_THAT(outcome, ExitsWith(kExitOk));
  EXPECT_THAT(Files(), UnorderedElementsAre("full-000000.safetensors", "delta-000002.safetensors"));
  EXPECT_EQ(ReadFile(folder_ + "/delta-000002.safetensors"), "delta 2");
  std::filesystem::remove_all(folder_);
  outcome = Run({"state", "watch", "--session=chat", "--out", folder_, "--every=1s"});  // until the session ends
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("NOT_FOUND"));
  EXPECT_THAT(Files(), UnorderedElementsAre("full-000003.safetensors"));
  std::filesystem::remove_all(folder_);
  (void)Run({"state", "watch", "--session=chat", "--out", folder_, "--every=1s", "--keep-all"});
  EXPECT_EQ(Files().size(), 4u);
  EXPECT_THAT(Run({"state", "watch", "--session=chat", "--out", folder_}), ExitsWith(kExitUsage));
}

TEST_F(StateCommandLine, PrefetchesSessions) {
  EXPECT_THAT(Run({"sessions", "prefetch", "chat", "other"}).out, HasSubstr("2 on their way"));
  EXPECT_THAT(service_.log().prefetched, ElementsAre("sessions/chat", "sessions/other"));
  EXPECT_THAT(Run({"sessions", "show", "chat"}).out, Not(HasSubstr("durable")));
}

}  // namespace
}  // namespace gdn::state_test
