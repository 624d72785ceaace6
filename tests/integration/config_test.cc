// gdn_server with a file of flags: --config, --check-config and SIGHUP.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/files/temporary_folder.h"
#include "tools/common/child_process.h"

namespace gdn::config_test {
namespace {

class Config : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_->path() + "/" + name; }
  void SetUp() override {
    absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Make();
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_.emplace(*std::move(folder));
  }

  // Whole or not at all, as an editor or an orchestrator does it.
  void Write(const std::string& text) const {
    std::ofstream(Path("new")) << text;
    std::filesystem::rename(Path("new"), Path("gdn.yaml"));
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // Runs the server with --check-config; what it prints is in `printed_`.
  int Check(std::vector<std::string> more) {
    more.insert(more.begin(), {GDN_SERVER, "--check-config"});
    std::filesystem::remove(Path("out"));
    absl::StatusOr<ChildProcess> child = ChildProcess::Start(more, Path("out"));
    EXPECT_TRUE(child.ok()) << child.status();
    const int code = child->Wait();
    printed_ = Read(Path("out"));
    return code;
  }
  // Waits until the server's log holds the text.
  absl::Status WaitForLog(ChildProcess& server, const std::string& text) const {
    return server.WaitUntil([&] { return absl::StrContains(Read(Path("log")), text); }, absl::Seconds(60));
  }

  std::optional<TemporaryFolder> folder_;
  std::string printed_;
};

TEST_F(Config, EveryFlagCanStandInTheFile) {
  Write("{}");
  ASSERT_EQ(Check({"--config", Path("gdn.yaml"), "--disk-dir=/d", "--redis-prefix=it's \"x\""}), 0) << printed_;
  const std::string all = printed_;
  EXPECT_TRUE(absl::StrContains(all, "checkpoint-every: ")) << all;
  EXPECT_TRUE(absl::StrContains(all, "log-level: \"info\"")) << all;
  Write(all);
  ASSERT_EQ(Check({"--config", Path("gdn.yaml")}), 0) << printed_;
  EXPECT_EQ(printed_, all);
}

TEST_F(Config, TheCommandLineWinsOverTheFile) {
  Write("max-batch: 100\nmax_draft: 5\nlisten: [127.0.0.1:1, 127.0.0.1:2]\nreflection: false\n");
  ASSERT_EQ(Check({"--config", Path("gdn.yaml"), "--max-batch=200", "--listen", "127.0.0.1:3"}), 0) << printed_;
  EXPECT_TRUE(absl::StrContains(printed_, "max-batch: \"200\"")) << printed_;
  EXPECT_TRUE(absl::StrContains(printed_, "max-draft: \"5\"")) << printed_;
  EXPECT_TRUE(absl::StrContains(printed_, "listen: \"127.0.0.1:3\"")) << printed_;
  EXPECT_TRUE(absl::StrContains(printed_, "reflection: \"false\"")) << printed_;
}

TEST_F(Config, TellsAllFaultsWithTheirPlaces) {
  Write(
      "max-batch: 0\nmax-draft: 65\ntypo: 1\nmax-message-bytes: 1 stone\ndevice-state-bytes: 1GiB\nstate-slots: 4\n"
      "log-level: loud\ndisk-high-watermark: 101\n");
  EXPECT_EQ(Check({"--config", Path("gdn.yaml")}), 1);
  for (const std::string fault :
       {":1:12: max-batch is '0', expected a whole number, 1 .. 65536", ":2:12: max-draft is '65', expected a whole",
        ":3:1: unknown key 'typo'", ":4:20: max-message-bytes is '1 stone', expected a number of bytes such as",
        ":6:14: --state-slots and --device-state-bytes are both given",
        ":7:12: log-level is 'loud', expected trace, debug",
        ":8:22: disk-high-watermark is '101', expected a whole number, 0 .. 100"}) {
    EXPECT_TRUE(absl::StrContains(printed_, "gdn.yaml" + fault)) << fault << "\n" << printed_;
  }
}

TEST_F(Config, AnAdapterIsForOneModel) {
  const std::vector<std::string> good = {"--model=a=/m/a",   "--model",   "b=/m/b",
                                         "--adapter=a=/l/a", "--adapter", "b=/l/b"};
  EXPECT_EQ(Check(good), 0) << printed_;
  EXPECT_EQ(Check({"--model=a=/m/a", "--adapter=b=/l/b", "--adapter=a=/l/a", "--adapter=a=/l/c", "--adapter=/l/d"}), 1);
  for (const std::string fault :
       {"--adapter is for 'b', which no --model names", "--adapter names 'a' twice; expected one adapter for a model",
        "--adapter is '/l/d', expected NAME=PATH with the NAME of a --model"}) {
    EXPECT_TRUE(absl::StrContains(printed_, fault)) << fault << "\n" << printed_;
  }
}

TEST_F(Config, TheLowWatermarkIsBelowTheHighOne) {
  Write("disk-high-watermark: 80\nscrub-bytes-per-second: fast\n");
  EXPECT_EQ(Check({"--config", Path("gdn.yaml")}), 1);
  for (const std::string fault : {"--disk-low-watermark is 90, expected less than --disk-high-watermark, which is 80",
                                  ":2:25: scrub-bytes-per-second is 'fast', expected a number of bytes"}) {
    EXPECT_TRUE(absl::StrContains(printed_, fault)) << fault << "\n" << printed_;
  }
  Write("disk-high-watermark: 0\ndisk-low-watermark: 90\nscrub-bytes-per-second: 64MiB\n");
  EXPECT_EQ(Check({"--config", Path("gdn.yaml")}), 0) << printed_;
}

TEST_F(Config, BlamesTheCommandLineForItsOwnFaults) {
  Write("max-batch: 7\n");
  EXPECT_EQ(Check({"--config", Path("gdn.yaml"), "--max-batch=0"}), 1);
  EXPECT_TRUE(absl::StrContains(printed_, "gdn_server: --max-batch is '0'")) << printed_;
  EXPECT_EQ(Check({"--config", Path("none.yaml")}), 1);
  EXPECT_TRUE(absl::StrContains(printed_, "none.yaml: the file of --config: cannot read")) << printed_;
}

TEST_F(Config, TheExampleIsGood) {
  EXPECT_EQ(Check({"--config", GDN_EXAMPLE_CONFIG}), 0) << printed_;
  EXPECT_TRUE(absl::StrContains(printed_, "disk-dir: \"/var/lib/gdn\"")) << printed_;
}

TEST_F(Config, ReloadsWhatIsSafeOnSighup) {
  const std::string base = "listen: 127.0.0.1:0\nbackend: \"null\"\ndevice-state-bytes: 1MiB\n";
  Write(base + "max-batch: 100\n");
  absl::StatusOr<ChildProcess> server = ChildProcess::Start(
      {GDN_SERVER, "--config", Path("gdn.yaml"), "--port-file", Path("port"), "--trace-calls=3"}, Path("log"));
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(server->WaitForPort(Path("port"), absl::Seconds(60)).ok());

  Write(base + "max-batch: 200\ndrain-timeout: 7s\ntrace-calls: 9\n");
  server->Signal(SIGHUP);
  ASSERT_TRUE(WaitForLog(*server, "config: reloaded, 2 changes").ok()) << Read(Path("log"));
  EXPECT_TRUE(absl::StrContains(Read(Path("log")), "config: drain-timeout has changed and is in effect"));
  EXPECT_TRUE(absl::StrContains(Read(Path("log")), "config: max-batch has changed, but needs a restart"));
  EXPECT_FALSE(absl::StrContains(Read(Path("log")), "trace-calls has changed")) << "the command line has it";

  Write(base + "max-batch: 100\ndrain-timeout: 7s\ntrace-calls: 9\nlog-level: loud\n");
  server->Signal(SIGHUP);
  ASSERT_TRUE(WaitForLog(*server, "all flags keep their values").ok()) << Read(Path("log"));
  EXPECT_TRUE(absl::StrContains(Read(Path("log")), "gdn.yaml:7:12: log-level is 'loud'")) << Read(Path("log"));

  Write(base + "max-batch: 100\nlog-level: debug\n");  // drain-timeout: its default again
  server->Signal(SIGHUP);
  ASSERT_TRUE(WaitForLog(*server, "config: log-level has changed and is in effect").ok()) << Read(Path("log"));
  ASSERT_TRUE(WaitForLog(*server, "config: reloaded, 2 changes\n").ok());
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(), 0);
  EXPECT_TRUE(absl::StrContains(Read(Path("log")), "draining, at most 30s")) << Read(Path("log"));
}

TEST_F(Config, TakesUpAFileThatIsRenamedIntoItsPlace) {
  const std::string base = "listen: 127.0.0.1:0\nbackend: \"null\"\ndevice-state-bytes: 1MiB\n";
  Write(base);
  absl::StatusOr<ChildProcess> server =
      ChildProcess::Start({GDN_SERVER, "--config", Path("gdn.yaml"), "--port-file", Path("port")}, Path("log"));
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE(server->WaitForPort(Path("port"), absl::Seconds(60)).ok());
  Write(base + "log-level: debug\n");
  EXPECT_TRUE(WaitForLog(*server, "config: log-level has changed and is in effect").ok()) << Read(Path("log"));
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(), 0);
}

}  // namespace
}  // namespace gdn::config_test
