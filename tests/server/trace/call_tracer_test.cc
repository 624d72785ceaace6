#include "server/trace/call_tracer.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn::call_tracer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void EndCall(CallTracer& tracer, const std::string& method, const std::string& principal) {
  auto trace = tracer.Begin(method);
  ASSERT_NE(trace, nullptr);
  trace->principal = principal;
  tracer.End(std::move(trace));
}

std::vector<std::string> Methods(const CallTracer& tracer, const std::string& principal, int32_t most = 0) {
  std::vector<std::string> methods;
  for (const auto& call : tracer.Calls(principal, most)) methods.push_back(call->method);
  return methods;
}

TEST(CallTracer, KeepsTheLastCallsOfAll) {
  CallTracer tracer(3);
  for (const char* method : {"1", "2", "3", "4"}) EndCall(tracer, method, "me");
  EXPECT_THAT(Methods(tracer, "me"), ElementsAre("2", "3", "4"));
  EXPECT_THAT(Methods(tracer, "me", /*most=*/2), ElementsAre("3", "4"));
  EndCall(tracer, "5", "you");
  EXPECT_THAT(Methods(tracer, "me"), ElementsAre("3", "4"));
  EXPECT_THAT(Methods(tracer, "me", /*most=*/1), ElementsAre("4"));
  EXPECT_THAT(Methods(tracer, "you"), ElementsAre("5"));
  EXPECT_THAT(Methods(tracer, "nobody"), IsEmpty());
}

TEST(CallTracer, GivesNoTracesWhileItIsOff) {
  CallTracer tracer(0);
  EXPECT_FALSE(tracer.on());
  EXPECT_EQ(tracer.Begin("Decode"), nullptr);
  tracer.End(nullptr);
  tracer.Keep(2);
  EndCall(tracer, "1", "");
  EXPECT_THAT(Methods(tracer, ""), ElementsAre("1"));
}

TEST(CallTracer, ForgetsWhatIsBeyondANewBound) {
  CallTracer tracer(4);
  for (const char* method : {"1", "2", "3"}) EndCall(tracer, method, "");
  tracer.Keep(2);
  EXPECT_THAT(Methods(tracer, ""), ElementsAre("2", "3"));
  auto on_its_way = tracer.Begin("4");
  tracer.Keep(0);
  EXPECT_THAT(Methods(tracer, ""), IsEmpty());
  tracer.End(std::move(on_its_way));
  tracer.Keep(9);
  EXPECT_THAT(Methods(tracer, ""), IsEmpty());
}

// "stage begin..end thread"
std::vector<std::string> Stages(const CallTrace& trace) {
  constexpr const char* kNames[] = {"parse",   "admit",    "queue",  "copy in", "launch",
                                    "compute", "copy out", "commit", "reply"};
  std::vector<std::string> stages;
  for (const TracedStage& stage : trace.stages()) {
    stages.push_back(std::string(kNames[static_cast<int>(stage.stage)]) + " " + std::to_string(stage.begin_ns) + ".." +
                     std::to_string(stage.end_ns) + " " + stage.thread);
  }
  return stages;
}

LaunchStamps Launch(int64_t issued) {
  return {.issued = issued,
          .copied_in = issued + 1,
          .launched = issued + 3,
          .begun = issued + 4,
          .computed = issued + 8,
          .copied_out = issued + 9,
          .issuer = "i",
          .ender = "e"};
}

CallTrace Whole() {
  CallTrace trace;
  trace.parse = 1;
  trace.admit = 2;
  trace.admitted = 10;
  trace.AddLaunch(Launch(20));
  trace.committed = 30;
  trace.answered = 32;
  trace.replied = 40;
  trace.starter = "s";
  trace.answerer = "a";
  return trace;
}

TEST(CallTrace, TellsEveryStage) {
  EXPECT_THAT(Stages(Whole()), ElementsAre("parse 1..2 s", "admit 2..10 s", "queue 10..20 ", "copy in 20..21 i",
                                           "launch 21..23 i", "queue 23..24 ", "compute 24..28 ", "copy out 28..29 e",
                                           "commit 29..30 e", "reply 30..40 a"));
}

TEST(CallTrace, LeavesOutWhatDidNotHappen) {
  CallTrace trace;
  trace.admit = 5;
  trace.answered = 8;
  trace.replied = 9;
  EXPECT_THAT(Stages(trace), ElementsAre("admit 5..8 ", "reply 8..9 "));
  trace.admitted = 6;  // from a stored reply
  EXPECT_THAT(Stages(trace), ElementsAre("admit 5..6 ", "reply 8..9 "));
  trace.waits_for_another = true;
  EXPECT_THAT(Stages(trace), ElementsAre("admit 5..6 ", "queue 6..8 ", "reply 8..9 "));
  trace.waits_for_another = false;
  trace.committed = 7;  // a step without tokens
  EXPECT_THAT(Stages(trace), ElementsAre("admit 5..6 ", "queue 6..7 ", "reply 7..9 "));
}

TEST(CallTrace, HasNoLaunchWhereIssuingComputes) {
  CallTrace trace = Whole();
  trace.launches[0].launched = trace.launches[0].begun = trace.launches[0].copied_in;
  EXPECT_THAT(Stages(trace), ElementsAre("parse 1..2 s", "admit 2..10 s", "queue 10..20 ", "copy in 20..21 i",
                                         "compute 21..28 ", "copy out 28..29 e", "commit 29..30 e", "reply 30..40 a"));
}

TEST(CallTrace, AFailedLaunchEndsWhereItFailed) {
  CallTrace trace = Whole();
  trace.launches[0] = {.issued = 20, .computed = 24, .issuer = "i", .ender = "e"};
  trace.committed = 0;
  EXPECT_THAT(Stages(trace), ElementsAre("parse 1..2 s", "admit 2..10 s", "queue 10..20 ", "reply 32..40 a"));
}

TEST(CallTrace, CountsALaunchOnceAndJoinsThoseBeyondTheLimit) {
  CallTrace trace;
  const auto most = static_cast<int64_t>(CallTrace::kMostLaunches);
  for (int64_t i = 1; i <= most + 5; ++i) {
    for (int row = 0; row < 3; ++row) trace.AddLaunch(Launch(100 * i));
  }
  EXPECT_EQ(trace.launch_count, most + 5);
  ASSERT_EQ(trace.launches.size(), CallTrace::kMostLaunches);
  EXPECT_EQ(trace.launches.back().issued, 100 * most);
  EXPECT_EQ(trace.launches.back().copied_out, 100 * (most + 5) + 9);
}

TEST(CallTrace, LaunchesThatOverlapDoNotWaitForOneAnother) {
  CallTrace trace;
  trace.admit = 1;
  trace.admitted = 9;
  trace.AddLaunch(Launch(10));
  LaunchStamps second = Launch(14);  // issued while the first computes
  second.begun = 18;
  trace.AddLaunch(second);
  EXPECT_THAT(Stages(trace), ElementsAre("admit 1..9 ", "queue 9..10 ", "copy in 10..11 i", "launch 11..13 i",
                                         "queue 13..14 ", "compute 14..18 ", "copy in 14..15 i", "launch 15..17 i",
                                         "queue 17..18 ", "copy out 18..19 e", "compute 18..22 ", "copy out 22..23 e"));
}

}  // namespace
}  // namespace gdn::call_tracer_test
