#include "server/session/session_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "tests/server/session_test_support.h"

namespace gdn {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;

class SessionManagerTest : public ::testing::Test {
 protected:
  absl::StatusOr<SessionCreation> Begin(const std::string& id, const std::string& principal = "",
                                        const std::string& request = "r") {
    return manager_.Begin(principal, id, OperatorSessionSpec(), /*affinity=*/"", HashBytes(request));
  }
  void Make(const std::string& id, const std::string& principal = "") {
    auto creation = Begin(id, principal);
    ASSERT_TRUE(creation.ok()) << creation.status();
    creation->Publish();
  }
  std::vector<std::string> List(const std::string& principal, const std::string& after, size_t limit) {
    std::vector<std::string> ids;
    for (const auto& session : manager_.List(principal, after, limit)) ids.push_back(session->id());
    return ids;
  }

  SessionWorld world_;
  SessionManager manager_{world_.store};
};

TEST_F(SessionManagerTest, ASessionInTheMakingIsNotToBeFound) {
  {
    auto creation = Begin("a");
    ASSERT_TRUE(creation.ok());
    EXPECT_TRUE(creation->pending());
    EXPECT_EQ(ErrorReason(manager_.Find("", "a").status()), reason::kSessionNotFound);
    EXPECT_EQ(ErrorReason(manager_.Delete("", "a")), reason::kSessionNotFound);
    EXPECT_THAT(List("", "", 10), ElementsAre());
    const auto second = Begin("a");
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAborted);
    EXPECT_EQ(ErrorReason(second.status()), reason::kSessionBusy);
    creation->Publish();
    EXPECT_FALSE(creation->pending());
  }
  ASSERT_TRUE(manager_.Find("", "a").ok());
  EXPECT_EQ((*manager_.Find("", "a"))->id(), "a");
}

TEST_F(SessionManagerTest, AnAbandonedCreationLeavesNothing) {
  {
    auto creation = Begin("a");
    ASSERT_TRUE(creation.ok());
    const SessionCreation moved = *std::move(creation);
    EXPECT_GT(world_.store.used_bytes(), 0);
    EXPECT_EQ(manager_.size(), 1u);
  }
  EXPECT_EQ(world_.store.used_bytes(), 0);
  EXPECT_EQ(manager_.size(), 0u);
  EXPECT_TRUE(Begin("a").ok());
}

TEST_F(SessionManagerTest, TheSameRequestFindsTheSessionAndAnotherIsRefused) {
  Make("a");
  const auto session = *manager_.Find("", "a");
  const int64_t used = world_.store.used_bytes();
  {
    const auto again = Begin("a");
    ASSERT_TRUE(again.ok());
    EXPECT_FALSE(again->pending());
    EXPECT_EQ(again->session(), session);
  }
  EXPECT_TRUE(manager_.Find("", "a").ok()) << "dropping a creation that made nothing drops nothing";
  const auto other = Begin("a", "", "another request");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ErrorReason(other.status()), reason::kSessionExists);
  EXPECT_EQ(world_.store.used_bytes(), used);
}

TEST_F(SessionManagerTest, EmptyIdsBecomeRandomOnes) {
  const auto first = Begin("");
  const auto second = Begin("");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(first->session()->id(), MatchesRegex("[0-9a-f]{32}"));
  EXPECT_NE(first->session()->id(), second->session()->id());
}

TEST_F(SessionManagerTest, EveryPrincipalHasIdsOfItsOwn) {
  Make("a", "one");
  EXPECT_EQ(manager_.Find("two", "a").status(), manager_.Find("three", "a").status());
  EXPECT_EQ(ErrorReason(manager_.Find("two", "a").status()), reason::kSessionNotFound);
  EXPECT_EQ(ErrorReason(manager_.Delete("two", "a")), reason::kSessionNotFound);
  Make("a", "two");
  EXPECT_NE(*manager_.Find("one", "a"), *manager_.Find("two", "a"));
  EXPECT_TRUE(manager_.Delete("two", "a").ok());
  EXPECT_TRUE(manager_.Find("one", "a").ok());
}

TEST_F(SessionManagerTest, ListsAscendFromTheIdAfter) {
  for (const char* id : {"c", "a", "b", "d"}) Make(id, "one");
  Make("aa", "two");
  Make("z", "on");
  EXPECT_THAT(List("one", "", 10), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(List("one", "", 2), ElementsAre("a", "b"));
  EXPECT_THAT(List("one", "b", 2), ElementsAre("c", "d"));
  EXPECT_THAT(List("one", "bb", 10), ElementsAre("c", "d"));
  EXPECT_THAT(List("one", "d", 10), ElementsAre());
  EXPECT_THAT(List("nobody", "", 10), ElementsAre());
}

TEST_F(SessionManagerTest, ABusySessionIsNotDeleted) {
  Make("a");
  auto session = *manager_.Find("", "a");
  {
    const auto admission = session->Admit(PlainStep(), nullptr);
    ASSERT_TRUE(admission.ok());
    EXPECT_EQ(ErrorReason(manager_.Delete("", "a")), reason::kSessionBusy);
    EXPECT_TRUE(manager_.Find("", "a").ok());
  }
  EXPECT_TRUE(manager_.Delete("", "a").ok());
  EXPECT_EQ(ErrorReason(manager_.Delete("", "a")), reason::kSessionNotFound);
  EXPECT_EQ(manager_.size(), 0u);
  EXPECT_GT(world_.store.used_bytes(), 0) << "whoever still holds it";
  session.reset();
  EXPECT_EQ(world_.store.used_bytes(), 0);
}

TEST_F(SessionManagerTest, NoRoomMakesNoSession) {
  StateStore empty(*world_.backend, {.budget_bytes = 100, .max_draft = 8});
  SessionManager manager(empty);
  const auto refused = manager.Begin("", "a", OperatorSessionSpec(), "", HashBytes("r"));
  EXPECT_EQ(ErrorReason(refused.status()), reason::kStateBudgetExhausted);
  EXPECT_EQ(manager.size(), 0u);
}

}  // namespace
}  // namespace gdn
