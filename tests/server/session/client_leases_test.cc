#include "server/session/client_leases.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/error.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace gdn::client_leases_test {
namespace {

constexpr absl::Duration kGrace = absl::Minutes(1);

class ClientLeasesTest : public ::testing::Test {
 protected:
  ClientLeasePtr Open(const std::string& id, const std::string& principal = "") {
    return leases_.Open(account_, principal, id, kGrace).value();
  }
  std::shared_ptr<Session> Make(const std::string& id, ClientLeasePtr lease) {
    SessionInit init = world_.Init(id);
    init.lease = std::move(lease);
    return world_.TryMake(std::move(init)).value();
  }
  // Waits until `count` sessions are left.
  void WaitForSessions(size_t count) {
    while (world_.manager.size() > count) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(world_.manager.size(), count);
  }

  TieredWorld world_{{.device_sessions = 100, .disk = true}};
  ClientLeases& leases_ = world_.manager.leases();
  const ByteAccountPtr account_ = world_.ledger.AccountOf("", "ipv4:10.0.0.1:1");
};

TEST_F(ClientLeasesTest, ALeaseEndsOnceItsGraceHasPassedSinceTheLastSignOfLife) {
  const ClientLeasePtr lease = Open("a");
  EXPECT_GT(lease->end(), SteadyNow() + kGrace - absl::Seconds(30));
  leases_.EndLapsed(lease->end());
  EXPECT_FALSE(lease->ended());
  GDN_ASSERT_OK_AND_ASSIGN(const ClientLeasePtr found, leases_.Find("", "a"));
  EXPECT_EQ(found, lease);
  const SteadyTime before = lease->end();
  ASSERT_TRUE(leases_.Renew("", "a").ok());
  EXPECT_GE(lease->end(), before);
  const SteadyTime renewed = lease->end();
  EXPECT_EQ(Open("a"), lease) << "to open it again is a sign of life";
  EXPECT_GE(lease->end(), renewed);
  leases_.EndLapsed(lease->end() + absl::Nanoseconds(1));
  EXPECT_TRUE(lease->ended());
  EXPECT_EQ(ErrorReason(leases_.Renew("", "a").status()), reason::kLeaseNotFound);
  EXPECT_EQ(ErrorReason(leases_.Find("", "a").status()), reason::kLeaseNotFound);
  EXPECT_NE(Open("a"), lease) << "another lease may have the id";
}

TEST_F(ClientLeasesTest, ALeaseIsItsPrincipalsAlone) {
  Open("a", "alice");
  EXPECT_EQ(ErrorReason(leases_.Renew("bob", "a").status()), reason::kLeaseNotFound);
  Open("b", "alice");
  Open("b", "bob");
  const auto ids = [](const std::vector<ClientLeasePtr>& listed) {
    std::string text;
    for (const ClientLeasePtr& lease : listed) text += lease->id();
    return text;
  };
  EXPECT_EQ(ids(leases_.List("alice", "", 10)), "ab");
  EXPECT_EQ(ids(leases_.List("alice", "", 1)), "a");
  EXPECT_EQ(ids(leases_.List("alice", "a", 10)), "b");
  EXPECT_EQ(ids(leases_.List("bob", "", 10)), "b");
}

TEST_F(ClientLeasesTest, AnotherGraceAndTooManyLeasesAreRefused) {
  Open("a");
  EXPECT_EQ(ErrorReason(leases_.Open(account_, "", "a", kGrace * 2).status()), reason::kLeaseExists);
  for (int64_t i = 1; i < kMostLeases; ++i) Open(std::to_string(i));
  EXPECT_EQ(ErrorReason(leases_.Open(account_, "", "more", kGrace).status()), reason::kTooManyLeases);
  EXPECT_EQ(Open("a")->id(), "a") << "an open one is found all the same";
  const ByteAccountPtr other = world_.ledger.AccountOf("", "ipv4:10.0.0.2:1");
  EXPECT_TRUE(leases_.Open(other, "", "more", kGrace).ok()) << "each account has its own limit";
  leases_.End(Open("a"));
  EXPECT_TRUE(leases_.Open(account_, "", "one more", kGrace).ok());
}

TEST_F(ClientLeasesTest, SessionsEndForGoodWithTheirLeaseAndOthersStay) {
  const ClientLeasePtr lease = Open("a");
  const ClientLeasePtr other = Open("b");
  const auto session = Make("of a", lease);
  ASSERT_TRUE(world_.Write(session, 1).ok());
  ASSERT_TRUE(world_.Checkpoint(session).ok());
  Make("of b", other);
  Make("of none", nullptr);
  EXPECT_EQ(lease->sessions(), 1);
  world_.manager.DeleteExpired(lease->end());
  EXPECT_EQ(world_.manager.expired(), 0);
  leases_.SetEnd(other, lease->end() + kGrace);
  world_.manager.DeleteExpired(lease->end() + absl::Nanoseconds(1));
  WaitForSessions(2);
  EXPECT_EQ(world_.manager.expired(), 1);
  EXPECT_EQ(lease->sessions(), 0);
  EXPECT_TRUE(world_.disk.versions().empty()) << "its durable copy is erased";
  EXPECT_TRUE(world_.manager.Find("", "of b").ok());
  EXPECT_TRUE(world_.manager.Find("", "of none").ok());
}

TEST_F(ClientLeasesTest, ASessionThatACallUsesEndsAfterTheCall) {
  const ClientLeasePtr lease = Open("a");
  const auto session = Make("s", lease);
  {
    const auto pin = world_.PinOne(session);
    world_.manager.DeleteExpired(lease->end() + absl::Seconds(1));
    EXPECT_TRUE(lease->ended());
    EXPECT_EQ(world_.manager.expired(), 0);
  }
  EXPECT_NE(Open("a"), lease) << "the same id is no way back for the session";
  world_.manager.DeleteExpired(SteadyNow());
  WaitForSessions(0);
}

TEST_F(ClientLeasesTest, ASessionThatIsMadeWhileItsLeaseEndsEndsToo) {
  const ClientLeasePtr lease = Open("a");
  SessionInit init = world_.Init("s");
  init.lease = lease;
  GDN_ASSERT_OK_AND_ASSIGN(SessionCreation creation, world_.manager.Begin(std::move(init)));
  EXPECT_EQ(lease->sessions(), 1);
  EXPECT_EQ(BlockOn(world_.executor, world_.manager.EndLease(lease)), 0);
  GDN_ASSERT_OK_AND_ASSIGN(SessionLease placed,
                           world_.Place(std::move(creation.lease()), std::make_shared<SessionImage>()));
  creation.Publish();
  EXPECT_EQ(world_.manager.size(), 1u);
  placed.Release();
  world_.manager.DeleteExpired(SteadyNow());
  WaitForSessions(0);
  EXPECT_EQ(lease->sessions(), 0);
}

TEST_F(ClientLeasesTest, EndLeaseEndsItsSessionsAtOnce) {
  const ClientLeasePtr lease = Open("a");
  for (int i = 0; i < 70; ++i) Make("s" + std::to_string(i), lease);
  Make("other", nullptr);
  EXPECT_EQ(lease->sessions(), 70);
  EXPECT_EQ(BlockOn(world_.executor, world_.manager.EndLease(lease)), 70);
  EXPECT_EQ(world_.manager.size(), 1u);
  EXPECT_TRUE(lease->ended());
  EXPECT_EQ(world_.manager.expired(), 0);
}

TEST_F(ClientLeasesTest, AnUnknownLeaseOfAFoundSessionBeginsAnew) {
  const ClientLeasePtr lease = leases_.Adopt("", "a", kGrace);
  EXPECT_GT(lease->end(), SteadyNow() + kGrace - absl::Seconds(30));
  EXPECT_EQ(leases_.Adopt("", "a", kGrace * 2), lease) << "the known one counts";
  EXPECT_EQ(Open("a"), lease);
}

TEST_F(ClientLeasesTest, AFleetDecidesItselfWhenALeaseEnds) {
  const ClientLeasePtr lease = Open("a");
  leases_.SetShared();
  leases_.EndLapsed(lease->end() + kGrace);
  EXPECT_FALSE(lease->ended());
  ASSERT_EQ(leases_.All().size(), 1u);
  leases_.End(lease);
  EXPECT_TRUE(lease->ended());
  EXPECT_TRUE(leases_.All().empty());
}

}  // namespace
}  // namespace gdn::client_leases_test
