// Step in sessions of every kind: layers with decays by channel, states in bfloat16, quantised weights, sessions that
// were sent down. Each row has the bits of the same row sent alone by the methods that its kind names.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/step_parts.h"
#include "tests/support/temp_folder.h"

namespace gdn::step_states_test {
namespace {

constexpr int kSessions = 5;
constexpr int kRounds = 6;

struct Served {
  const char* name;
  const char* set;  // below tests/golden
  DType state_dtype = DType::kF32;
  bool quantize = false;
  bool send_down = false;  // the sessions, before each step
};

class StepStates : public ::testing::TestWithParam<Served> {
 protected:
  GdnServerOptions Options() const {
    const Served& served = GetParam();
    GdnServerOptions options{.models = {{"m", GoldenPath(served.set)}}, .load = {.quantize_q8_0 = served.quantize}};
    options.states.state_dtype = served.state_dtype;
    if (served.send_down) {
      options.memory.host_state_bytes = int64_t{1} << 24;
      options.states.disk.directory = folder_.path() + "/states";
    }
    return options;
  }
  static void SendDown(const Caller& caller, const std::string& id, bool to_disk) {
    ASSERT_TRUE(caller.Evict(id, to_disk ? v1::STATE_TIER_DISK : v1::STATE_TIER_HOST).ok());
    EXPECT_NE(caller.Get(id).reply.tier(), v1::STATE_TIER_DEVICE);
  }

  const TempFolder folder_;
};

TEST_P(StepStates, GiveEachRowTheBitsOfItsOwnCalls) {
  TestServer server(Options());
  const Caller caller(server);
  std::vector<std::vector<int>> drafts(kSessions);
  for (const std::string prefix : {"s", "t"}) {
    for (int i = 0; i < kSessions; ++i) ASSERT_TRUE(caller.Create(prefix + std::to_string(i), "m").ok());
  }
  StepMixer mixer(11);
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    std::vector<StepPart> parts;
    for (int i = 0; i < kSessions; ++i) {
      const std::string id = "s" + std::to_string(i);
      parts.push_back(mixer.NextPart(id, drafts[static_cast<size_t>(i)]));
      if (GetParam().send_down && i < kSessions - 1) SendDown(caller, id, i % 2 == 0);
    }
    ASSERT_REPLY(const auto reply, caller.Step(StepOf(parts)));
    int64_t first = 0;
    for (int i = 0; i < kSessions; ++i) {
      const StepPart& part = parts[static_cast<size_t>(i)];
      SCOPED_TRACE(part.id + " kind " + std::to_string(part.kind) + " tokens " + std::to_string(part.tokens.count()));
      const std::string twin = "t" + std::to_string(i);
      const bool equal = TokenBytes(reply.output(), first, part.tokens.count()) == SendAlone(caller, twin, part);
      EXPECT_TRUE(equal) << "other bits than alone";
      EXPECT_EQ(reply.token_counts(i), caller.TokenCount(twin, 0));
      first += part.tokens.count();
    }
    if (HasFailure()) return;
  }
  for (int i = 0; i < kSessions; ++i) {
    EXPECT_EQ(caller.State("s" + std::to_string(i)), caller.State("t" + std::to_string(i))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, StepStates,
    testing::Values(Served{.name = "DecaysByChannel", .set = "kimi_linear_1"},
                    Served{.name = "BFloat16States", .set = "qwen3_next_1", .state_dtype = DType::kBF16},
                    Served{.name = "BFloat16StatesByChannel", .set = "glm5_next_1", .state_dtype = DType::kBF16},
                    Served{.name = "QuantisedFile", .set = "gguf_qwen35_1/q8_0.gguf"},
                    Served{.name = "QuantisedAtTheStart", .set = "qwen3_5_1", .quantize = true},
                    Served{.name = "SessionsThatWereSentDown", .set = "qwen3_next_1", .send_down = true}),
    [](const auto& served) { return served.param.name; });

}  // namespace
}  // namespace gdn::step_states_test
