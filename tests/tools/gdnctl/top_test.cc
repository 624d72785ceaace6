// gdnctl top: what it shows of two looks at a server, and the command.
#include <string>

#include "client/cpp/testing/fake_gdn_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/assert_ok.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/top/top_view.h"

namespace gdn::top_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TopSample SampleAt(int64_t second) {
  TopSample sample;
  sample.at = absl::FromUnixSeconds(1000 + second);
  sample.info.set_version("1.2");
  v1::TierInfo& tier = *sample.info.add_tiers();
  tier.set_name("host");
  tier.set_used_bytes(int64_t{3} << 20);
  tier.set_limit_bytes(int64_t{4} << 20);
  tier.set_stores(10 * second);
  return sample;
}

void AddSession(TopSample& sample, const std::string& name, int64_t tokens) {
  v1::Session& session = sample.sessions.emplace_back();
  session.set_name(name);
  session.set_tier(v1::STATE_TIER_HOST);
  session.add_layers()->set_token_count(tokens);
}

// Adds a call that began at that second and took `milliseconds`, half of them in the queue.
void AddCall(TopSample& sample, int64_t second, int64_t milliseconds) {
  sample.traced.set_kept(100);
  v1::CallTrace& call = *sample.traced.add_calls();
  call.set_method("Decode");
  call.set_rows(4);
  call.set_tokens(8);
  call.mutable_begin_time()->set_seconds(1000 + second);
  call.set_duration_ns(milliseconds * 1'000'000);
  v1::CallStage& stage = *call.add_stages();
  stage.set_stage(v1::TRACE_STAGE_QUEUE);
  stage.set_duration_ns(milliseconds * 500'000);
}

TEST(TopView, ShowsRatesBetweenTheSamples) {
  TopSample before = SampleAt(0);
  AddSession(before, "sessions/quiet", 50);
  AddSession(before, "sessions/busy", 10);
  TopSample now = SampleAt(2);
  AddSession(now, "sessions/quiet", 50);
  AddSession(now, "sessions/busy", 30);
  AddCall(now, -1, 900);  // before the first look
  AddCall(now, 1, 6);
  AddCall(now, 1, 6);
  const std::string view = TopView(FiguresBetween(before, now), {}, {.rows = 40, .columns = 200});
  EXPECT_THAT(view, ContainsRegex("host +0 +3[.0]* MiB +4[.0]* MiB +75% +10.0 +0.0"));
  EXPECT_THAT(view, HasSubstr("your tokens a second: 10.0"));
  EXPECT_THAT(view, ContainsRegex("Decode +1.0 +8.0 +4.0 +3.000 +6.000 +6.000"));
  EXPECT_THAT(view, ContainsRegex("sessions/busy +30 +10.0 .* host"));
  EXPECT_LT(view.find("sessions/busy"), view.find("sessions/quiet"));
}

TEST(TopView, FitsTheTerminal) {
  TopSample now = SampleAt(0);
  for (int i = 0; i < 100; ++i) AddSession(now, "sessions/s" + std::to_string(i), i);
  const std::string view = TopView(FiguresBetween(now, now), {}, {.rows = 24, .columns = 40});
  int lines = 0;
  size_t longest = 0, begin = 0;
  for (size_t end = view.find('\n'); end != std::string::npos; begin = end + 1, end = view.find('\n', begin)) {
    ++lines;
    longest = std::max(longest, end - begin);
  }
  EXPECT_LE(lines, 23);
  EXPECT_LE(longest, 40u);
  EXPECT_THAT(view, AllOf(HasSubstr("sessions/s99"), HasSubstr("more of the caller's"), Not(HasSubstr("nan"))));
}

TEST(TopView, ShowsFailuresInEightyColumns) {
  TopSample now = SampleAt(0);
  now.info.mutable_tiers(0)->set_failures(7654321);
  const std::string plain = TopView(FiguresBetween(now, now), {}, {.rows = 24, .columns = 80});
  EXPECT_THAT(plain, AllOf(HasSubstr("FAILURES\n"), HasSubstr(" 7654321\n"), Not(HasSubstr("\x1b"))));
  const std::string coloured = TopView(FiguresBetween(now, now), {}, {.rows = 24, .columns = 80, .colours = true});
  EXPECT_THAT(coloured, ContainsRegex("\x1b\\[31mhost .* 7654321\x1b\\[0m\n"));
}

TEST(TopView, DrawsTheTokensOfTheLooksSoFar) {
  EXPECT_EQ(Sparkline({0, 1, 2, 4}, /*utf8=*/true), "▁▃▅█");
  EXPECT_EQ(Sparkline({0, 1, 2, 4}, /*utf8=*/false), "_.-=");
  EXPECT_EQ(Sparkline({0, 0}, /*utf8=*/false), "__");
  EXPECT_EQ(Sparkline({}, /*utf8=*/true), "");
  const std::vector<double> history(1000, 3.0);
  const TopFigures figures = FiguresBetween(SampleAt(0), SampleAt(1));
  EXPECT_THAT(TopView(figures, history, {.rows = 24, .columns = 40}),
              ContainsRegex("your tokens a second: 0.0  ={13}\n"));
}

TEST(TopJson, HasTheFiguresAndTheServersInfo) {
  TopSample before = SampleAt(0), now = SampleAt(2);
  AddSession(before, "sessions/a", 10);
  AddSession(now, "sessions/a", 30);
  AddCall(now, 1, 6);
  GDN_ASSERT_OK_AND_ASSIGN(const std::string text, TopJson(FiguresBetween(before, now)));
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["tokens_per_second"], 10.0);
  EXPECT_EQ(json["server"]["version"], "1.2");
  EXPECT_EQ(json["tiers"][0]["stores_per_second"], 10.0);
  EXPECT_EQ(json["methods"][0]["p99_ms"], 6.0);
  EXPECT_EQ(json["sessions"][0]["tokens"], 30);
  GDN_ASSERT_OK_AND_ASSIGN(const std::string at_once, TopJson(FiguresBetween(now, now)));
  EXPECT_TRUE(nlohmann::json::parse(at_once)["tokens_per_second"].is_null());
}

// A server without sessions, which keeps no calls.
class IdleService final : public v1::GdnService::Service {
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status ListSessions(grpc::ServerContext*, const v1::ListSessionsRequest*, v1::ListSessionsResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status TraceCalls(grpc::ServerContext*, const v1::TraceCallsRequest*, v1::TraceCallsResponse*) override {
    return grpc::Status::OK;
  }
};

TEST(TopCommand, PrintsPlainTextOnce) {
  IdleService service;
  const LoopbackServer server(&service);
  const Outcome outcome = RunCommand(TopCommands(), {"top", "--once", "--interval=0s", "--target=" + server.target()});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("TIER"), HasSubstr("SESSION"), Not(HasSubstr("\x1b"))));
  const Outcome json =
      RunCommand(TopCommands(), {"top", "--once", "--json", "--interval=0s", "--target=" + server.target()});
  EXPECT_TRUE(nlohmann::json::accept(json.out)) << json.out << json.err;
}

}  // namespace
}  // namespace gdn::top_test
