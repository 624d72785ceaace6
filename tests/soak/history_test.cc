// The checker of histories finds what it is there for.
#include "tests/soak/history.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace gdn::history_test {
namespace {

class History : public ::testing::Test {
 protected:
  HistoryReport Check(const std::vector<std::string>& lines) {
    const std::string path = folder_.path() + "/history.jsonl";
    std::ofstream file(path);
    for (const std::string& line : lines) file << line << "\n";
    file.close();
    return CheckHistory({path});
  }

  // A line of a session "a" with one layer.
  static std::string Line(const std::string& run, const std::string& call, const std::string& rest = "") {
    return R"({"run": ")" + run + R"(", "session": "a", "call": ")" + call + "\"" + (rest.empty() ? "" : ", ") + rest +
           "}";
  }
  static std::string Decode(const std::string& run, const std::string& input, const std::string& output, int count) {
    return Line(run, "decode",
                R"("layer": 0, "tokens": 1, "inputs": [")" + input + R"("], "output": ")" + output +
                    R"(", "counts": {"0": )" + std::to_string(count) + "}");
  }
  static std::string Draft(const std::string& run, const std::string& output) {
    return Line(run, "draft", R"("layer": 0, "tokens": 2, "inputs": ["x", "y"], "output": ")" + output + "\"");
  }
  // Decodes of x, y and z on the undisturbed server.
  static std::vector<std::string> Truth() {
    return {Line("truth", "create"), Decode("truth", "x", "1", 1), Decode("truth", "y", "2", 2),
            Decode("truth", "z", "3", 3)};
  }
  static std::vector<std::string> With(std::vector<std::string> lines, const std::vector<std::string>& more) {
    lines.insert(lines.end(), more.begin(), more.end());
    return lines;
  }

  const TempFolder folder_;
};

TEST_F(History, OfTheSameAnswersIsRight) {
  const HistoryReport report = Check(With(Truth(), {Line("tested", "create"), Decode("tested", "x", "1", 1),
                                                    Decode("tested", "y", "2", 2), Decode("tested", "z", "3", 3)}));
  EXPECT_TRUE(report.faults.empty()) << report.faults.front();
  EXPECT_EQ(report.compared, 3);
  EXPECT_EQ(report.lines, 8);
}

TEST_F(History, ShowsAnOutputOfAnOlderState) {
  const HistoryReport report =
      Check(With(Truth(), {Line("tested", "create"), Decode("tested", "x", "1", 1), Decode("tested", "y", "9", 2)}));
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_NE(report.faults[0].find("history.jsonl:7: the output is 9, the undisturbed run's is 2"), std::string::npos)
      << report.faults[0];
}

TEST_F(History, ShowsAStepThatWasAppliedTwiceOrNotAtAll) {
  for (const int count : {1, 3}) {
    const HistoryReport report = Check(
        With(Truth(), {Line("tested", "create"), Decode("tested", "x", "1", 1), Decode("tested", "y", "2", count)}));
    ASSERT_EQ(report.faults.size(), 1u) << count;
    EXPECT_NE(report.faults[0].find("its answered calls 2"), std::string::npos) << report.faults[0];
  }
}

TEST_F(History, ShowsAForkOfAnOlderState) {
  const auto child = [](const std::string& run, const std::string& output) {
    std::string line = Decode(run, "z", output, 3);
    return line.replace(line.find("\"a\""), 3, "\"b\"");
  };
  const std::string fork = R"("to": "b", "counts": {"0": 2})";
  const std::vector<std::string> begun =
      With(Truth(), {Line("tested", "create"), Decode("tested", "x", "1", 1), Decode("tested", "y", "2", 2)});
  EXPECT_TRUE(Check(With(begun, {Line("tested", "fork", fork), child("tested", "3")})).faults.empty());
  EXPECT_EQ(Check(With(begun, {Line("tested", "fork", fork), child("tested", "4")})).faults.size(), 1u);
  EXPECT_EQ(Check(With(begun, {Line("tested", "fork", R"("to": "b", "counts": {"0": 1})")})).faults.size(), 1u);
}

TEST_F(History, TakesAnAcceptedDraftForDecodesAndARestoreForTheStateThen) {
  const std::vector<std::string> truth =
      With(Truth(), {Line("truth", "checkpoint", R"("to": "c")"), Line("truth", "restore", R"("to": "c")")});
  std::vector<std::string> drafted = {Line("truth", "create"), Draft("truth", "12"),
                                      Line("truth", "accept", R"("path": [0, 1], "counts": {"0": 2})"),
                                      Decode("truth", "z", "3", 3)};
  EXPECT_TRUE(Check(With(truth, drafted)).faults.empty()) << "z after x and y gives 3 both ways";
  drafted.back() = Decode("truth", "z", "4", 3);
  EXPECT_EQ(Check(With(truth, drafted)).faults.size(), 1u);
  const std::vector<std::string> back = {Line("tested", "create"),
                                         Decode("tested", "x", "1", 1),
                                         Line("tested", "checkpoint", R"("to": "c", "counts": {"0": 1})"),
                                         Decode("tested", "y", "2", 2),
                                         Line("tested", "restore", R"("to": "c", "counts": {"0": 1})"),
                                         Decode("tested", "y", "2", 2)};
  EXPECT_TRUE(Check(With(truth, back)).faults.empty());
}

TEST_F(History, CountsCallsThatCameFirstAndLostSessions) {
  std::string line = Decode("tested", "x", "1", 1);
  line.insert(line.size() - 1, R"(, "form": "stream", "first": "decode")");
  const HistoryReport report = Check(With(Truth(), {Line("tested", "create"), line, Line("tested", "lost")}));
  EXPECT_TRUE(report.faults.empty());
  EXPECT_EQ(report.firsts.at("stream").at("decode"), 1);
  EXPECT_EQ(report.lost, 1);
  EXPECT_EQ(Check({Line("tested", "decode"), "no json", Line("truth", "jump")}).faults.size(), 3u);
}

}  // namespace
}  // namespace gdn::history_test
