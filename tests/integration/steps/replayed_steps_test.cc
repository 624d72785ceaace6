// Decodes whose steps the device replays: through the whole server they are the steps that it launches.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::replayed_steps_test {
namespace {

struct Outputs {
  std::vector<std::string> each;
  GpuGraphCounts counts;
};

// Two sessions of the feed, decoded together by the method, and one of them alone.
enum class Method { kDecode, kStep };
Outputs Decoded(const TokenFeed& feed, GpuGraphs graphs, int steps, Method method) {
  TestServer server({.models = TokenFeed::Models()}, *MakeGpuBackend({.graphs = graphs}));
  const Caller caller(server);
  for (const char* id : {"a", "b"}) feed.Start(caller, id, {0, 5});
  Outputs outputs;
  for (int64_t token = 5; token < 5 + steps; ++token) {
    if (method == Method::kDecode) {
      const auto both = caller.Decode(feed.Decode({"a", "b"}, TokenRange{token, 1}));
      EXPECT_TRUE(both.ok()) << both.reason();
      outputs.each.push_back(both.reply.output().data());
    } else {
      const auto both = caller.Step(feed.Step({{.id = "a", .range = {token, 1}}, {.id = "b", .range = {token, 1}}}));
      EXPECT_TRUE(both.ok()) << both.reason();
      outputs.each.push_back(both.reply.output().data());
    }
    if (outputs.each.back().empty()) return outputs;
  }
  outputs.each.push_back(feed.DecodeAll(caller, "a", {5 + steps, steps}));
  outputs.counts = GpuGraphCountsOf(server.server().backend());
  return outputs;
}

TEST(ReplayedSteps, AreThoseThatTheServerLaunches) {
  constexpr int kSteps = 24;
  for (const TokenFeed& feed : {TokenFeed::Operator(1), TokenFeed::Model()}) {
    SCOPED_TRACE(feed.name());
    const Outputs launched = Decoded(feed, GpuGraphs::kOff, kSteps, Method::kDecode);
    EXPECT_EQ(launched.counts.replayed + launched.counts.plain, 0);
    for (const Method method : {Method::kDecode, Method::kStep}) {
      SCOPED_TRACE(method == Method::kDecode ? "Decode" : "Step");
      const Outputs replayed = Decoded(feed, GpuGraphs::kOn, kSteps, method);
      EXPECT_EQ(replayed.each, launched.each);
      // Two lanes take turns, and each key is seen twice and recorded once before it is replayed.
      EXPECT_GE(replayed.counts.replayed, 2 * kSteps - 12);
      EXPECT_EQ(replayed.counts.refused, 0);
    }
  }
}

// A replay reads the logs that an acceptance of the same launch has moved and folded, and rows that only accept are no
// part of it.
TEST(ReplayedSteps, BehindAcceptancesAreThoseThatTheServerLaunches) {
  constexpr int64_t kRounds = 16;
  const std::vector<int> parents = {-1, 0, 0, 2};
  for (const TokenFeed& feed : {TokenFeed::Operator(1), TokenFeed::Model()}) {
    SCOPED_TRACE(feed.name());
    std::vector<std::string> outputs[2];
    for (const GpuGraphs graphs : {GpuGraphs::kOn, GpuGraphs::kOff}) {
      TestServer server({.models = TokenFeed::Models()}, *MakeGpuBackend({.graphs = graphs}));
      const Caller caller(server);
      const std::vector<std::string> ids = {"a", "b", "c"};
      for (const std::string& id : ids) feed.Start(caller, id, {0, 5});
      std::vector<std::string>& seen = outputs[graphs == GpuGraphs::kOn ? 0 : 1];
      for (int64_t round = 0; round < kRounds; ++round) {
        const int64_t first = 10 + 8 * round;
        std::vector<FeedPart> drafts, accepts;
        for (const std::string& id : ids) {
          drafts.push_back({.id = id, .range = {first, 4}, .kind = v1::STEP_KIND_DRAFT, .parents = parents});
          accepts.push_back({.id = id, .range = {first + 4, id == "c" ? 0 : 1}});
          accepts.back().path = {0, 2, 3};
        }
        ASSERT_REPLY(const auto drafted, caller.Step(feed.Step(drafts)));
        ASSERT_REPLY(const auto accepted, caller.Step(feed.Step(accepts)));
        seen.push_back(drafted.output().data());
        seen.push_back(accepted.output().data());
      }
      for (const std::string& id : ids) seen.push_back(caller.State(id));
      const GpuGraphCounts counts = GpuGraphCountsOf(server.server().backend());
      EXPECT_EQ(counts.refused, 0);
      EXPECT_EQ(counts.replayed > 0, graphs == GpuGraphs::kOn);
    }
    EXPECT_EQ(outputs[0], outputs[1]);
  }
}

}  // namespace
}  // namespace gdn::replayed_steps_test
