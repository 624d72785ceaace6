// Servers that keep their states' bases as bfloat16 (--state-dtype=bf16), beside those that keep float32.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::state_dtype_service_test {
namespace {

constexpr TokenRange kPrompt = {0, 70};

class StateDtypeService : public ::testing::Test {
 protected:
  static GdnServerOptions Options(DType dtype) {
    return {.models = TokenFeed::Models(), .states = {.state_dtype = dtype}};
  }
  static v1::ImportStateRequest::Target TargetOf(const std::string& id, bool convert) {
    v1::ImportStateRequest::Target target;
    target.set_session_id(id);
    *target.mutable_operator_() = SmallOperator(2);
    target.set_convert_state_dtype(convert);
    return target;
  }

  const TokenFeed feed_ = TokenFeed::Operator(2);
  TestServer wide_server_{Options(DType::kF32)};
  TestServer narrow_server_{Options(DType::kBF16)};
  const Caller wide_{wide_server_};
  const Caller narrow_{narrow_server_};
};

TEST_F(StateDtypeService, IsPartOfTheNumericsIdAndOfWhatSessionsTake) {
  EXPECT_EQ(narrow_.Info().reply.numerics_id(), wide_.Info().reply.numerics_id() + "-state=bf16");
  ASSERT_REPLY(const auto wide, feed_.Create(wide_, "a"));
  ASSERT_REPLY(const auto narrow, feed_.Create(narrow_, "a"));
  const LayerDims dims = SmallOperatorDims();
  EXPECT_EQ(wide.state_bytes() - narrow.state_bytes(), 2 * dims.state_elements() * 2) << "two layers, half a base each";
  EXPECT_EQ(narrow_.Info().reply.state_bytes_used(), narrow.state_bytes());
}

TEST_F(StateDtypeService, AFileGoesOnBitForBitInAServerOfItsKindAndNowhereElseUnasked) {
  feed_.Start(narrow_, "a", kPrompt, 21);
  ASSERT_REPLY(const std::string file, narrow_.Export("a"));
  ASSERT_TRUE(narrow_.Import(TargetOf("b", false), file).ok());
  EXPECT_EQ(narrow_.State("b"), narrow_.State("a"));

  const int64_t used = wide_.Info().reply.state_bytes_used();
  EXPECT_TRUE(RefusedAs(wide_.Import(TargetOf("a", false), file), "STATE_MISMATCH", {{"field", "base_dtype"}}));
  EXPECT_EQ(wide_.Info().reply.state_bytes_used(), used);
  EXPECT_EQ(wide_.Get("a").reason(), "SESSION_NOT_FOUND");
  ASSERT_TRUE(wide_.Import(TargetOf("a", true), file).ok());
  // Widening is exact, so the way back rounds nothing.
  ASSERT_REPLY(const std::string widened, wide_.Export("a"));
  EXPECT_GT(widened.size(), file.size());
  EXPECT_TRUE(RefusedAs(narrow_.Import(TargetOf("c", false), widened), "STATE_MISMATCH", {{"field", "base_dtype"}}));
  ASSERT_TRUE(narrow_.Import(TargetOf("c", true), widened).ok());
  EXPECT_EQ(narrow_.State("c"), narrow_.State("a"));
  const std::string next = feed_.DecodeAll(narrow_, "a", {100, 20});
  EXPECT_EQ(feed_.DecodeAll(narrow_, "b", {100, 20}), next);
  EXPECT_EQ(feed_.DecodeAll(narrow_, "c", {100, 20}), next);
  EXPECT_NE(feed_.DecodeAll(wide_, "a", {100, 20}), next) << "it no longer rounds";
}

TEST_F(StateDtypeService, AServerStartedWithAnotherDtypeRefusesItsSessionsAndLosesNone) {
  const TempFolder folder;
  std::string state;
  const auto options = [&](DType dtype) {
    GdnServerOptions made = Options(dtype);
    made.states.disk.directory = folder.path();
    return made;
  };
  {
    TestServer server(options(DType::kBF16));
    const Caller caller(server);
    feed_.Start(caller, "a", kPrompt, 5);
    ASSERT_TRUE(caller.Checkpoint("a").ok());
    state = caller.State("a");
  }
  {
    TestServer server(options(DType::kF32));
    const Caller caller(server);
    for (int i = 0; i < 2; ++i) {
      const auto refused = caller.Decode(feed_.Decode({"a"}, TokenRange{90, 1}));
      EXPECT_TRUE(RefusedAs(refused, "STATE_MISMATCH", {{"field", "base_dtype"}}));
      EXPECT_NE(refused.status.error_message().find("--state-dtype=bf16"), std::string::npos)
          << refused.status.error_message();
    }
    EXPECT_TRUE(feed_.Create(caller, "other").ok());
    EXPECT_FALSE(server.Drain()) << "what it cannot read it cannot write anew";
  }
  TestServer server(options(DType::kBF16));
  const Caller caller(server);
  EXPECT_EQ(caller.State("a"), state);
  EXPECT_TRUE(caller.Decode(feed_.Decode({"a"}, TokenRange{90, 1})).ok());
}

}  // namespace
}  // namespace gdn::state_dtype_service_test
