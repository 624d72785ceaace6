// gdnctl trace: its tables, its Chrome trace, and what it asks the server for.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/string_cat.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_folder.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/trace/trace_view.h"

namespace gdn::trace_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

void AddStage(v1::CallTrace& call, v1::TraceStage which, int64_t begin_ns, int64_t end_ns, const std::string& thread) {
  v1::CallStage* const stage = call.add_stages();
  stage->set_stage(which);
  stage->set_begin_ns(begin_ns);
  stage->set_duration_ns(end_ns - begin_ns);
  stage->set_thread(thread);
}

// A call of 10 us that begins at `begin_ns`; its launch is 4 us long.
v1::CallTrace Step(const std::string& method, const std::string& session, int64_t begin_ns) {
  v1::CallTrace call;
  call.set_method(method);
  call.set_session(session);
  call.set_rows(1);
  call.set_tokens(1);
  call.set_launches(1);
  call.set_begin_ns(begin_ns);
  call.set_duration_ns(10'000);
  AddStage(call, v1::TRACE_STAGE_ADMIT, 0, 1'500, "grpc.1");
  AddStage(call, v1::TRACE_STAGE_QUEUE, 1'500, 2'000, "");
  AddStage(call, v1::TRACE_STAGE_COPY_IN, 2'000, 3'000, "engine.2");
  AddStage(call, v1::TRACE_STAGE_LAUNCH, 3'000, 4'000, "engine.2");
  AddStage(call, v1::TRACE_STAGE_COMPUTE, 4'000, 6'000, "");
  AddStage(call, v1::TRACE_STAGE_REPLY, 6'000, 10'000, "ender.3");
  return call;
}

// Two calls of one launch, a prefill whose launches overlap, and one that was refused.
v1::TraceCallsResponse Traced() {
  v1::TraceCallsResponse traced;
  traced.set_kept(100);
  *traced.add_calls() = Step("Decode", "sessions/a", 1'000'000);
  *traced.add_calls() = Step("Decode", "sessions/b", 1'000'000);
  v1::CallTrace& prefill = *traced.add_calls();
  prefill = Step("Prefill", "sessions/c", 1'020'000);
  prefill.set_duration_ns(90'000);
  prefill.set_launches(2);
  AddStage(prefill, v1::TRACE_STAGE_COPY_IN, 4'500, 5'500, "engine.2");
  AddStage(prefill, v1::TRACE_STAGE_COMPUTE, 6'000, 80'000, "");
  v1::CallTrace& refused = *traced.add_calls();
  refused.set_method("Decode");
  refused.set_session("sessions/none");
  refused.set_begin_ns(1'005'000);
  refused.set_duration_ns(2'000);
  refused.mutable_status()->set_code(5);
  refused.mutable_status()->set_message("no such session");
  AddStage(refused, v1::TRACE_STAGE_ADMIT, 0, 1'000, "grpc.1");
  AddStage(refused, v1::TRACE_STAGE_REPLY, 1'000, 2'000, "grpc.1");
  return traced;
}

TEST(TraceTables, HasThePercentilesOfEachStageByMethod) {
  const std::string text = TraceTables(Traced());
  const std::string decodes = text.substr(text.find("Decode "), text.find("Prefill ") - text.find("Decode "));
  EXPECT_THAT(decodes, HasSubstr("  admit               1.5          1.5          1.5        3\n"));
  EXPECT_THAT(decodes, HasSubstr("  compute             2.0          2.0          2.0        2\n"));
  EXPECT_THAT(decodes, HasSubstr("  in all             10.0         10.0         10.0        3\n"));
  EXPECT_THAT(decodes, Not(HasSubstr("commit")));
  // The sum over its launches.
  EXPECT_THAT(text, HasSubstr("  compute            76.0         76.0         76.0        1\n"));
}

TEST(TraceTables, ListsTheSlowestFirst) {
  const std::string text = TraceTables(Traced());
  const size_t first = text.find("sessions/c layer 0, 2 launches\n");
  const size_t last = text.find("sessions/none layer 0, failed: no such session");
  EXPECT_NE(first, std::string::npos);
  EXPECT_NE(last, std::string::npos);
  EXPECT_LT(first, text.find("sessions/a layer 0\n"));
  EXPECT_LT(text.find("sessions/b layer 0\n"), last);
  EXPECT_EQ(TraceTables(v1::TraceCallsResponse()), "");
}

TEST(ChromeTrace, ParsesAndNothingOnATrackOverlapsButByEnclosure) {
  const auto picture = nlohmann::json::parse(ChromeTrace(Traced()));
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  std::map<std::pair<int, int>, std::string> names;
  for (const auto& event : picture["traceEvents"]) {
    const std::pair<int, int> track = {event["pid"], event["tid"]};
    if (event["ph"] == "M") {
      if (event["name"] == "thread_name") names[track] = event["args"]["name"];
      continue;
    }
    ASSERT_EQ(event["ph"], "X");
    EXPECT_GE(event["ts"].get<double>(), 0);
    EXPECT_GE(event["dur"].get<double>(), 0);
    tracks[track].emplace_back(event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
  }
  constexpr double kRounding = 1e-6;  // of microseconds as doubles
  for (const auto& [track, spans] : tracks) {
    EXPECT_TRUE(names.contains(track));
    for (size_t i = 0; i < spans.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        const auto& [a, b] = spans[k];
        const auto& [c, d] = spans[i];
        const bool apart = b <= c + kRounding || d <= a + kRounding;
        const bool inside = (a <= c + kRounding && d <= b + kRounding) || (c <= a + kRounding && b <= d + kRounding);
        EXPECT_TRUE(apart || inside) << track.first << "/" << track.second << ": " << a << ".." << b << ", " << c
                                     << ".." << d;
      }
    }
  }
}

TEST(ChromeTrace, TellsASharedLaunchOnceAndEveryCall) {
  const auto picture = nlohmann::json::parse(ChromeTrace(Traced()));
  std::vector<double> computes;
  std::vector<std::string> sessions;
  for (const auto& event : picture["traceEvents"]) {
    if (event["ph"] != "X") continue;
    if (event["pid"] == 2 && event["name"] == "compute") computes.push_back(event["ts"]);
    if (event["args"].contains("session")) sessions.push_back(event["args"]["session"]);
  }
  EXPECT_THAT(computes, ElementsAre(4.0, 24.0, 26.0));
  EXPECT_THAT(sessions, ElementsAre("sessions/a", "sessions/b", "sessions/none", "sessions/c"));  // by begin
  EXPECT_TRUE(nlohmann::json::parse(ChromeTrace(v1::TraceCallsResponse())).contains("traceEvents"));
}

class TraceService final : public v1::GdnService::Service {
 public:
  grpc::Status TraceCalls(grpc::ServerContext*, const v1::TraceCallsRequest* request,
                          v1::TraceCallsResponse* response) override {
    absl::MutexLock lock(&mu_);
    asked_ = *request;
    if (request->keep() != 0 || !request->has_keep()) *response = Traced();
    return grpc::Status::OK;
  }
  v1::TraceCallsRequest asked() {
    absl::MutexLock lock(&mu_);
    return asked_;
  }

 private:
  absl::Mutex mu_;
  v1::TraceCallsRequest asked_ ABSL_GUARDED_BY(mu_);
};

class TraceCommand : public ::testing::Test {
 protected:
  Outcome Run(const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {
        "trace", StrCat("--target=", server_.target()), "--keep=-1", "--calls=0", "--chrome=", "--nojson"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunCommand(TraceCommands(), arguments);
  }

  TraceService service_;
  LoopbackServer server_{&service_};
};

TEST_F(TraceCommand, PrintsTablesAndWritesTheChromeTrace) {
  const TempFolder folder;
  const std::string path = StrCat(folder.path(), "/calls.json");
  const Outcome outcome = Run({"--calls=50", StrCat("--chrome=", path)});
  EXPECT_THAT(outcome, ExitsWith(kExitOk));
  EXPECT_THAT(outcome.out, HasSubstr("The slowest, us:"));
  EXPECT_THAT(outcome.out, HasSubstr("4 calls; the server keeps the last 100 of all its callers.\n"));
  EXPECT_FALSE(service_.asked().has_keep());
  EXPECT_EQ(service_.asked().max_calls(), 50);
  EXPECT_EQ(ReadFile(path), ChromeTrace(Traced()));
}

TEST_F(TraceCommand, SetsHowManyAreKept) {
  EXPECT_THAT(Run({"--keep=100", "--json"}), ExitsWith(kExitOk));
  EXPECT_EQ(service_.asked().keep(), 100);
  const Outcome off = Run({"--keep=0"});
  EXPECT_TRUE(service_.asked().has_keep());
  EXPECT_THAT(off.out, HasSubstr("The server keeps no calls; 'gdnctl trace --keep=1000' turns it on.\n"));
}

}  // namespace
}  // namespace gdn::trace_test
