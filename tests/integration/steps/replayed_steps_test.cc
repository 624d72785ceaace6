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

// Two sessions of the feed, decoded together and alone.
Outputs Decoded(const TokenFeed& feed, GpuGraphs graphs, int steps) {
  TestServer server({.models = TokenFeed::Models()}, *MakeGpuBackend({.graphs = graphs}));
  const Caller caller(server);
  for (const char* id : {"a", "b"}) feed.Start(caller, id, {0, 5});
  Outputs outputs;
  for (int64_t token = 5; token < 5 + steps; ++token) {
    const auto both = caller.Decode(feed.Decode({"a", "b"}, TokenRange{token, 1}));
    EXPECT_TRUE(both.ok()) << both.reason();
    if (!both.ok()) return outputs;
    outputs.each.push_back(both.reply.output().data());
  }
  outputs.each.push_back(feed.DecodeAll(caller, "a", {5 + steps, steps}));
  outputs.counts = GpuGraphCountsOf(server.server().backend());
  return outputs;
}

TEST(ReplayedSteps, AreThoseThatTheServerLaunches) {
  constexpr int kSteps = 24;
  for (const TokenFeed& feed : {TokenFeed::Operator(1), TokenFeed::Model()}) {
    SCOPED_TRACE(feed.name());
    const Outputs replayed = Decoded(feed, GpuGraphs::kOn, kSteps);
    const Outputs launched = Decoded(feed, GpuGraphs::kOff, kSteps);
    EXPECT_EQ(replayed.each, launched.each);
    // Two lanes take turns, and each key is seen twice and recorded once before it is replayed.
    EXPECT_GE(replayed.counts.replayed, 2 * kSteps - 12);
    EXPECT_EQ(replayed.counts.refused, 0);
    EXPECT_EQ(launched.counts.replayed + launched.counts.plain, 0);
  }
}

}  // namespace
}  // namespace gdn::replayed_steps_test
