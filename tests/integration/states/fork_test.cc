// ForkSession: children go on from where the parent is, bit for bit, and no fork takes anything from anybody.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::fork_test {
namespace {

constexpr TokenRange kPrompt = {0, 5};
constexpr int64_t kPrefix = 40;  // where tokens begin that only one side takes
constexpr int kLogCapacity = 16;

std::string Id(const char* who, int64_t number) { return who + std::to_string(number); }

class Fork : public ::testing::Test {
 protected:
  // A session that has seen the prompt, `decoded` tokens one by one, and then `more`.
  void Feed(const std::string& id, int64_t decoded, TokenRange more = {0, 0}) {
    feed_.Start(caller_, id, kPrompt, decoded);
    if (more.count > 0) feed_.DecodeAll(caller_, id, more);
  }

  TestServer server_{{.models = TokenFeed::Models()}};
  const Caller caller_{server_};
  TokenFeed feed_ = TokenFeed::Operator(2);
};

TEST_F(Fork, SidesThatDivergeEqualSessionsThatWereFedTheSameFromTheStartAtEveryLogOffset) {
  for (const TokenFeed& feed : {TokenFeed::Operator(2), TokenFeed::Model()}) {
    feed_ = feed;
    for (int64_t offset = 0; offset <= kLogCapacity; ++offset) {
      SCOPED_TRACE(feed.name() + " offset " + std::to_string(offset));
      const std::string tag = feed.name() + std::to_string(offset);
      std::vector<std::string> forked = {tag + "parent", tag + "x", tag + "y"}, fed = {tag + "0", tag + "1", tag + "2"};
      Feed(forked[0], offset);
      for (const std::string& id : fed) Feed(id, offset);
      ASSERT_REPLY(const auto children, caller_.Fork(forked[0], {forked[1], forked[2]}));
      ASSERT_EQ(children.sessions_size(), 2);
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(children.sessions(i).name(), "sessions/" + forked[1 + static_cast<size_t>(i)]);
        EXPECT_EQ(children.sessions(i).epoch(), 1);
        EXPECT_EQ(children.sessions(i).layers(0).token_count(), kPrompt.count + offset);
      }
      for (size_t side = 0; side < 3; ++side) EXPECT_EQ(caller_.State(forked[side]), caller_.State(fed[side]));
      // Over a fold of every side, in turns, each with tokens of its own.
      for (int64_t step = 0; step < kLogCapacity + 3; ++step) {
        for (size_t side = 0; side < 3; ++side) {
          const TokenRange token = {kPrefix + 50 * static_cast<int64_t>(side) + step, 1};
          ASSERT_REPLY(const auto reply, caller_.Decode(feed.Decode({forked[side], fed[side]}, token)));
          EXPECT_EQ(RowBytes(reply.output(), 0), RowBytes(reply.output(), 1)) << "side " << side;
        }
      }
      for (size_t side = 0; side < 3; ++side) EXPECT_EQ(caller_.State(forked[side]), caller_.State(fed[side]));
      for (const auto& ids : {forked, fed}) {
        for (const std::string& id : ids) ASSERT_TRUE(caller_.Delete(id).ok());
      }
    }
  }
  EXPECT_EQ(caller_.Info().reply.state_bytes_used(), 0);
}

TEST_F(Fork, OfAForkEqualsASessionThatWasFedTheSameFromTheStart) {
  // Each generation decodes three tokens of its own; the sixth is over a fold.
  Feed("g0", 2);
  Feed("fed", 2);
  for (int generation = 0; generation < 8; ++generation) {
    const std::string parent = Id("g", generation), child = Id("g", generation + 1);
    ASSERT_TRUE(caller_.Fork(parent, {child, Id("idle", generation)}).ok());
    const TokenRange own = {kPrefix + 3 * generation, 3};
    EXPECT_EQ(feed_.DecodeAll(caller_, child, own), feed_.DecodeAll(caller_, "fed", own));
    EXPECT_EQ(caller_.State(child), caller_.State("fed"));
    EXPECT_EQ(caller_.State(parent), caller_.State(Id("idle", generation))) << "the child's steps are its own";
  }
}

TEST_F(Fork, AfterAPrefillGoesOnByPrefillAndDecode) {
  for (const TokenFeed& feed : {TokenFeed::Operator(2), TokenFeed::Model()}) {
    feed_ = feed;
    const std::string parent = feed.name() + "p", child = feed.name() + "c", fed = feed.name() + "f";
    Feed(parent, 7);
    Feed(fed, 7);
    ASSERT_TRUE(caller_.Fork(parent, {child}).ok());
    for (const TokenRange more : {TokenRange{50, 70}, TokenRange{120, 3}}) {
      const auto forked = caller_.Prefill(feed.Prefill(child, more));
      const auto plain = caller_.Prefill(feed.Prefill(fed, more));
      ASSERT_TRUE(forked.ok() && plain.ok()) << forked.status.error_message();
      EXPECT_EQ(forked.reply.output().data(), plain.reply.output().data());
    }
    EXPECT_EQ(feed.DecodeAll(caller_, child, {200, 20}), feed.DecodeAll(caller_, fed, {200, 20}));
    EXPECT_EQ(caller_.State(child), caller_.State(fed));
    Feed(feed.name() + "untouched", 7);
    EXPECT_EQ(caller_.State(parent), caller_.State(feed.name() + "untouched"));
  }
}

TEST_F(Fork, OfAFreshParentBeginsAtZero) {
  ASSERT_TRUE(feed_.Create(caller_, "parent").ok());
  ASSERT_TRUE(caller_.Fork("parent", {"a", "b"}).ok());
  ASSERT_TRUE(caller_.Prefill(feed_.Prefill("parent", {100, 9})).ok());
  Feed("fed", 3);
  for (const std::string id : {"a", "b"}) {
    ASSERT_TRUE(caller_.Prefill(feed_.Prefill(id, kPrompt)).ok());
    feed_.DecodeAll(caller_, id, {kPrompt.count, 3});
    EXPECT_EQ(caller_.State(id), caller_.State("fed"));
  }
}

TEST_F(Fork, WithAPendingDraftLetsEachSideDecideForItself) {
  constexpr int kDraft = 6;
  for (const int64_t offset : {0, 8, 12, 15}) {
    SCOPED_TRACE(offset);
    const std::string tag = std::to_string(offset);
    Feed("p" + tag, offset);
    ASSERT_TRUE(caller_.Decode(feed_.Draft({"p" + tag}, {TokenRange{kPrefix, kDraft}})).ok());
    const std::vector<int> accepted = {2, 0, kDraft, 4};  // by the parent and its children
    std::vector<std::string> sides = {"p" + tag, "a" + tag, "b" + tag, "c" + tag};
    ASSERT_REPLY(const auto children, caller_.Fork(sides[0], {sides[1], sides[2], sides[3]}));
    EXPECT_EQ(children.sessions(0).layers(0).draft_length(), kDraft);
    for (const size_t side : {1, 0, 3, 2}) {
      const auto done = caller_.Accept(sides[side], accepted[side]);
      ASSERT_TRUE(done.ok()) << done.status.error_message();
      Feed("fed" + sides[side], offset, {kPrefix, accepted[side]});
      EXPECT_EQ(caller_.State(sides[side]), caller_.State("fed" + sides[side])) << "side " << side;
    }
    for (const std::string& id : sides) {
      EXPECT_EQ(feed_.DecodeAll(caller_, id, {200, 18}), feed_.DecodeAll(caller_, "fed" + id, {200, 18}));
      EXPECT_EQ(caller_.State(id), caller_.State("fed" + id));
    }
  }
}

TEST_F(Fork, MembersMayEndInAnyOrderAndTheRestGoesOn) {
  const std::vector<std::string> ids = {"p", "a", "b"};
  std::vector<size_t> order = {0, 1, 2};
  Feed("fed", 10);
  const std::string expected = feed_.DecodeAll(caller_, "fed", {kPrefix, 20});
  ASSERT_TRUE(caller_.Delete("fed").ok());
  do {
    Feed("p", 10);
    ASSERT_TRUE(caller_.Fork("p", {"a", "b"}).ok());
    ASSERT_TRUE(caller_.Decode(feed_.Decode({ids[order[1]]}, TokenRange{kPrefix, 1})).ok()) << "one has left the base";
    ASSERT_TRUE(caller_.Delete(ids[order[0]]).ok());
    ASSERT_TRUE(caller_.Delete(ids[order[1]]).ok());
    EXPECT_EQ(feed_.DecodeAll(caller_, ids[order[2]], {kPrefix, 20}), expected) << ids[order[2]] << " is left";
    ASSERT_TRUE(caller_.Delete(ids[order[2]]).ok());
    EXPECT_EQ(caller_.Info().reply.state_bytes_used(), 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(Fork, MakesAllChildrenOrNone) {
  Feed("p", 4);
  Feed("taken", 1);
  const std::string state = caller_.State("p");
  EXPECT_TRUE(RefusedAs(caller_.Fork("p", {"a", "taken", "b"}), "SESSION_EXISTS", {{"session", "sessions/taken"}}));
  const int64_t used = caller_.Info().reply.state_bytes_used();
  for (const char* id : {"a", "b"}) EXPECT_EQ(caller_.Get(id).reason(), "SESSION_NOT_FOUND");
  EXPECT_EQ(caller_.Info().reply.session_count(), 2);
  EXPECT_EQ(caller_.State("p"), state);
  ASSERT_TRUE(caller_.Fork("p", {"a", "b"}).ok()) << "the ids are free";
  EXPECT_GT(caller_.Info().reply.state_bytes_used(), used);
}

TEST_F(Fork, TheSameRequestAgainReturnsTheChildrenAsTheyAre) {
  Feed("p", 4);
  v1::ForkSessionRequest request = ForkOf("p", {"a", "b"});
  ASSERT_TRUE(caller_.Fork(request).ok());
  feed_.DecodeAll(caller_, "a", {kPrefix, 2});
  feed_.DecodeAll(caller_, "p", {kPrefix, 1});
  const int64_t used = caller_.Info().reply.state_bytes_used();
  ASSERT_REPLY(const auto again, caller_.Fork(request));
  ASSERT_EQ(again.sessions_size(), 2);
  EXPECT_EQ(again.sessions(0).layers(0).token_count(), kPrompt.count + 6);
  EXPECT_EQ(again.sessions(1).layers(0).token_count(), kPrompt.count + 4);
  EXPECT_EQ(caller_.Info().reply.state_bytes_used(), used);

  ASSERT_TRUE(caller_.Delete("b").ok());
  ASSERT_REPLY(const auto remade, caller_.Fork(request));
  EXPECT_EQ(remade.sessions(0).layers(0).token_count(), kPrompt.count + 6) << "as it is";
  EXPECT_EQ(remade.sessions(1).layers(0).token_count(), kPrompt.count + 5) << "made now";
  request.add_session_ids("c");
  EXPECT_EQ(caller_.Fork(request).reason(), "SESSION_EXISTS") << "another request";
}

TEST_F(Fork, ChildrenHaveNamesLifetimesAndRepliesOfTheirOwn) {
  v1::CreateSessionRequest creation = feed_.Creation("p");
  creation.set_affinity("group");
  ASSERT_TRUE(caller_.Create(creation).ok());
  v1::DecodeRequest step = WithId(feed_.Decode({"p"}, TokenRange{0, 1}), "s");
  ASSERT_TRUE(caller_.Decode(step).ok());
  v1::ForkSessionRequest request = ForkOf("p", {"", "named"});
  request.mutable_idle_ttl()->set_seconds(500);
  request.mutable_max_lifetime()->set_seconds(700);
  ASSERT_REPLY(const auto children, caller_.Fork(request));
  EXPECT_EQ(children.sessions(0).name().size(), std::string("sessions/").size() + 32);
  for (const v1::Session& child : children.sessions()) {
    EXPECT_EQ(child.affinity(), "group");
    EXPECT_EQ(child.idle_ttl().seconds(), 500);
    EXPECT_EQ(child.max_lifetime().seconds(), 700);
  }
  step.set_sessions(0, "sessions/named");
  ASSERT_TRUE(caller_.Decode(step).ok());
  EXPECT_EQ(caller_.TokenCount("named", 0), 2) << "the parent's reply is not the child's";
}

// Room for exactly the parent and its children: every state that a side may come to write is set aside by the fork.
TEST_F(Fork, ThatJustFitsLetsEveryLaterStepOfEveryMemberSucceed) {
  if (!server_.server().backend().info().lazy_memory) GTEST_SKIP() << "a pool takes only half of a device's budget";
  const int64_t bytes = caller_.CreateOperator("probe", SmallOperator(2)).reply.state_bytes();
  // Two layers with a state: the parent keeps its slots, each child has one a layer, and the parent one to leave by.
  TestServer small({.memory = {.device_state_bytes = 5 * bytes}});
  const Caller caller(small);
  const std::vector<std::string> ids = {"p", "a", "b", "c"};
  ASSERT_TRUE(feed_.Create(caller, "p").ok());
  for (const int layer : {0, 1}) ASSERT_TRUE(caller.Prefill(feed_.Prefill("p", kPrompt, layer)).ok());
  const auto children = caller.Fork("p", {"a", "b", "c"});
  ASSERT_TRUE(children.ok()) << children.status.error_message();
  const auto full = caller.CreateOperator("more", SmallOperator(1));
  EXPECT_EQ(full.reason(), "STATE_BUDGET_EXHAUSTED");
  EXPECT_TRUE(HasRetryInfo(full.status));

  Feed("fed", 0);
  const auto step = [&](const Caller& by, const std::string& id, TokenRange range, int layer) {
    const auto taken = [&](const auto& outcome) {
      EXPECT_TRUE(outcome.ok()) << id << ": " << outcome.status.error_message();
      return outcome.reply.output().data();
    };
    return range.count == 1 ? taken(by.Decode(feed_.Decode({id}, range, layer)))
                            : taken(by.Prefill(feed_.Prefill(id, range, layer)));
  };
  for (const TokenRange range : {TokenRange{60, 1}, TokenRange{61, 40}, TokenRange{101, 1}}) {
    const std::string expected = step(caller_, "fed", range, 0);
    for (const int layer : {0, 1}) {
      for (const std::string& id : ids) ASSERT_EQ(step(caller, id, range, layer), expected) << id;
    }
  }
  for (const std::string& id : ids) ASSERT_TRUE(caller.Delete(id).ok());
  EXPECT_EQ(caller.Info().reply.state_bytes_used(), 0);
}

// On a device that commits memory at once, a pool has half of what is left of the budget. Children that find no slot
// beside their parent are copies in another pool.
TEST_F(Fork, OfAFullPoolIsACopyWithTheSameBits) {
  if (server_.server().backend().info().lazy_memory) GTEST_SKIP() << "one pool has the whole budget";
  const int64_t bytes = caller_.CreateOperator("probe", SmallOperator(2)).reply.state_bytes();
  TestServer small({.memory = {.device_state_bytes = 16 * bytes}});
  const Caller caller(small);
  const auto feed = [&](const Caller& by) {
    feed_.Start(by, "p", kPrompt, 14);
    ASSERT_TRUE(by.Prefill(feed_.Prefill("p", kPrompt, /*layer=*/1)).ok());
    ASSERT_TRUE(by.Decode(feed_.Draft({"p"}, {TokenRange{kPrefix, 3}})).ok());
  };
  feed(caller);
  feed(caller_);
  int others = 0;
  while (caller.Info().reply.state_bytes_used() < 9 * bytes) ASSERT_TRUE(feed_.Create(caller, Id("o", others++)).ok());
  v1::SnapshotSessionRequest snapshot;
  snapshot.set_session("sessions/p");
  snapshot.set_key("k");
  ASSERT_REPLY(const auto taken, Call(caller, &v1::GdnService::Stub::SnapshotSession, snapshot));
  ASSERT_REPLY(const auto forked, caller.Fork("p", {"a", "b"}));
  EXPECT_EQ(forked.sessions(1).layers(0).draft_length(), 3);
  EXPECT_EQ(taken.snapshot().shared_bytes(), 0);
  ASSERT_TRUE(caller.Delete("p").ok()) << "the copies need it no more";
  v1::CreateSessionRequest begin;
  begin.set_session_id("of-k");
  begin.set_snapshot("k");
  ASSERT_TRUE(caller.Create(begin).ok());

  ASSERT_TRUE(caller_.Accept("p", 2).ok());
  const std::string expected = feed_.DecodeAll(caller_, "p", {60, 5});
  for (const char* const id : {"a", "b", "of-k"}) {
    ASSERT_TRUE(caller.Accept(id, 2).ok()) << id;
    EXPECT_EQ(feed_.DecodeAll(caller, id, {60, 5}), expected) << id;
    EXPECT_EQ(caller.State(id), caller_.State("p")) << id;
  }
}

TEST_F(Fork, WithoutRoomMakesNothingAndTheParentGoesOn) {
  if (!server_.server().backend().info().lazy_memory) GTEST_SKIP() << "a pool takes only half of a device's budget";
  const int64_t bytes = caller_.CreateOperator("probe", SmallOperator(2)).reply.state_bytes();
  TestServer small(
      {.memory = {.device_state_bytes = 4 * bytes + bytes / 2}});  // a parent and two children; not a third
  const Caller caller(small);
  ASSERT_TRUE(feed_.Create(caller, "p").ok());
  for (const int layer : {0, 1}) ASSERT_TRUE(caller.Prefill(feed_.Prefill("p", kPrompt, layer)).ok());
  const std::string state = caller.State("p");
  const int64_t used = caller.Info().reply.state_bytes_used();
  const auto refused = caller.Fork("p", {"a", "b", "c"});
  EXPECT_TRUE(RefusedAs(refused, "STATE_BUDGET_EXHAUSTED"));
  EXPECT_TRUE(HasRetryInfo(refused.status));
  for (const char* id : {"a", "b", "c"}) EXPECT_EQ(caller.Get(id).reason(), "SESSION_NOT_FOUND");
  EXPECT_EQ(caller.Info().reply.state_bytes_used(), used);
  EXPECT_EQ(caller.Info().reply.session_count(), 1);
  EXPECT_EQ(caller.State("p"), state);
  Feed("fed", 0);
  EXPECT_EQ(feed_.DecodeAll(caller, "p", {kPrefix, 18}), feed_.DecodeAll(caller_, "fed", {kPrefix, 18}));
  EXPECT_TRUE(caller.Fork("p", {"a", "b"}).ok()) << "fewer fit";
}

}  // namespace
}  // namespace gdn::fork_test
