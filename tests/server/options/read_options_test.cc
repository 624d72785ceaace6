#include "server/options/read_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/files/temporary_folder.h"
#include "server/options/option_table.h"

namespace gdn::read_options_test {
namespace {

using ::testing::HasSubstr;

ServerOptions Read(const std::vector<std::string>& arguments) {
  const absl::StatusOr<ServerOptions> options = ReadOptions(ReadCommandLine(arguments));
  EXPECT_TRUE(options.ok()) << options.status();
  return options.value_or(ServerOptions());
}

std::string FaultsOf(const std::vector<std::string>& arguments) {
  return std::string(ReadOptions(ReadCommandLine(arguments)).status().message());
}

TEST(ReadOptions, EveryRowReadsWhatItPrints) {
  for (const auto& [name, option] : Options()) {
    ServerOptions options;
    const std::string text = option.print(options);
    EXPECT_EQ(option.read(text, options), "") << name;
    EXPECT_EQ(option.print(options), text) << name;
  }
}

TEST(ReadOptions, EveryRowHasAMemberOfItsOwn) {
  for (const auto& [name, option] : Options()) {
    for (const std::string text : {"1", "true", "2s", "x", "a=b", "auto", "off", "bf16", "q8_0", "cpu", "json", "error",
                                   "0-1/4", "{default: {sessions: 1}}", "1MiB"}) {
      ServerOptions options;
      if (!option.read(text, options).empty() || option.print(options) == option.print(ServerOptions())) continue;
      const auto changed = [&](const auto& row) {
        return row.second.print(options) != row.second.print(ServerOptions());
      };
      EXPECT_EQ(std::ranges::count_if(Options(), changed), 1) << name << " = " << text;
    }
  }
}

TEST(ReadOptions, ListsMayBeGivenAnElementAtATime) {
  const ServerOptions options = Read({"--model=a=/a", "--model", "b=/b", "--listen=127.0.0.1:1", "--listen=unix:/s",
                                      "--proxies=10.0.0.1", "--proxies=10.0.0.2"});
  EXPECT_EQ(options.models, (NamedPaths{{"a", "/a"}, {"b", "/b"}}));
  EXPECT_EQ(options.listen, (std::vector<std::string>{"127.0.0.1:1", "unix:/s"}));
  EXPECT_EQ(options.transport.connections.proxies, std::vector<std::string>{"10.0.0.2"}) << "the last";
}

TEST(ReadOptions, LayersAreRangesThatAscend) {
  EXPECT_EQ(Read({"--model=a=/a", "--layers=0-23,30"}).load.layers,
            (LayerRanges{{.first = 0, .last = 23}, {.first = 30, .last = 30}}));
  EXPECT_TRUE(Read({"--layers="}).load.layers.empty());
  EXPECT_THAT(FaultsOf({"--model=a=/a", "--layers=30,0-23"}),
              HasSubstr("--layers is '30,0-23', expected ascending ranges of layers such as 0-23,30"));
  EXPECT_THAT(FaultsOf({"--layers=0-23"}), HasSubstr("--layers is given and no --model"));
}

TEST(ReadOptions, LayersMayBeAListInTheFile) {
  const absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Make();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string path = folder->path() + "/gdn.yaml";
  for (const std::string text : {"0-23,30", "[0-23, 30]"}) {
    std::ofstream(path) << "model: {a: /a}\nlayers: " << text << "\n";
    EXPECT_EQ(LayerRangesToString(Read({"--config", path}).load.layers), "0-23,30") << text;
  }
}

TEST(ReadOptions, TellsAllFaultsOfTheCommandLine) {
  const std::string faults =
      FaultsOf({"--max-draft=65", "--log-level=loud", "--state-slots=4", "--checkpoint-every=5"});
  EXPECT_THAT(faults, HasSubstr("--max-draft is '65', expected a whole number, 1 .. 64\n"));
  EXPECT_THAT(faults, HasSubstr("--log-level is 'loud', expected trace, debug"));
  EXPECT_THAT(faults, HasSubstr("--state-slots counts states of a --model"));
  EXPECT_THAT(faults, HasSubstr("or 0; did you mean 5s?"));
}

TEST(ReadOptions, ReadsTheFileAnewAndTakesWhatIsLive) {
  const absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Make();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string path = folder->path() + "/gdn.yaml";
  std::ofstream(path) << "max-batch: 100\ntrace-calls: 5\n";
  const CommandFlags line = ReadCommandLine({"--config", path, "--log-level=warn"});
  ServerOptions options = ReadOptions(line).value();
  EXPECT_EQ(options.limits.max_batch, 100);

  std::ofstream(path) << "max-batch: 200\ndrain-timeout: 7s\nlog-level: debug\n";
  const std::vector<OptionChange> changes = TakeLiveChanges(options, ReadOptions(line).value());
  std::string told;
  for (const OptionChange& change : changes) told += change.name + (change.takes_effect ? " live, " : " later, ");
  EXPECT_EQ(told, "drain-timeout live, max-batch later, trace-calls live, ");
  EXPECT_EQ(options.end.steps, absl::Seconds(7));
  EXPECT_EQ(options.trace_calls, 0) << "its default";
  EXPECT_EQ(options.limits.max_batch, 100);
  EXPECT_EQ(options.logging.level, "warn") << "the command line has it";
}

}  // namespace
}  // namespace gdn::read_options_test
