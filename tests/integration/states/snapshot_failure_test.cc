// Every allocation fails in turn in calls that make and use snapshots, and in calls of leases. A refused call leaves
// sessions, snapshots and charges as they were.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/admission/byte_ledger.h"
#include "tests/integration/support/failure_in_turn.h"
#include "tests/integration/support/snapshot_calls.h"

namespace gdn::snapshot_failure_test {
namespace {

using Stub = v1::GdnService::Stub;

class SnapshotFailures : public FailureInTurn {
 protected:
  // Snapshots by key with their states' bits, and the bytes that are charged wherever a session or a snapshot is.
  static std::string Held(const Caller& caller) {
    std::string held;
    const auto listed = Call(caller, &Stub::ListSnapshots, v1::ListSnapshotsRequest());
    for (v1::Snapshot snapshot : listed.reply.snapshots()) {
      snapshot.clear_tier();  // the call may bring it to the device
      snapshot.clear_shared_bytes();
      held += snapshot.ShortDebugString() + "\n";
    }
    EXPECT_EQ(listed.reply.lost_size(), 0);
    for (const BytePool pool : {BytePool::kStates, BytePool::kSnapshots, BytePool::kSessions, BytePool::kCheckpoints}) {
      held += std::to_string(caller.server().server().ledger().held(pool)) + " ";
    }
    const auto sessions = caller.List(1000);
    for (const v1::Session& session : sessions.reply.sessions()) held += session.name() + " ";
    return held;
  }
  // Fails each point of a scenario on a device that has no more room than it needs. A device that is not the CPU makes
  // small pools then, and none has room beside the state that a snapshot or a session begins from.
  void FailEachInFullRoom(const Scenario& scenario) {
    if (GetParam() == "cpu") FailEach(scenario);
  }
  // A limit of the device with room for so many sessions.
  int64_t RoomFor(int64_t sessions) const { return sessions * bytes_ + bytes_ / 4; }
  // Parks the sessions and snapshots, and lets their pool go: the next state needs memory of the device.
  static void FreePool(const Caller& caller, const std::vector<std::string>& sessions,
                       const std::vector<std::string>& keys) {
    for (const std::string& id : sessions) ASSERT_TRUE(caller.Evict(id).ok());
    for (const std::string& key : keys) SendSnapshotDown(caller, key);
    ASSERT_TRUE(TokenFeed::WideOperator().Create(caller, "wide").ok());  // a new pool drops those without a user
  }
  // Prepares by `prepare`, and remembers what is then held.
  std::function<void(const Caller&)> Prepared(std::function<void(const Caller&)> prepare) {
    return [this, prepare](const Caller& caller) {
      prepare(caller);
      before_ = Held(caller);
    };
  }
  // A call that changes nothing if it is refused.
  Scenario Whole(std::string name, std::function<void(const Caller&)> prepare,
                 std::function<Result(const Caller&)> call, std::vector<Examined> sessions,
                 int64_t device_state_bytes = 0) {
    return {.name = std::move(name),
            .prepare = Prepared(std::move(prepare)),
            .call = std::move(call),
            .sessions = std::move(sessions),
            .when_refused = [this](const Caller& caller) { EXPECT_EQ(Held(caller), before_); },
            .device_state_bytes = device_state_bytes};
  }

  static int64_t SessionBytes(const TokenFeed& feed) {
    TestServer server;
    return feed.Create(Caller(server), "probe").reply.state_bytes();
  }

  const TokenFeed feed_ = TokenFeed::Operator(2);
  const int64_t bytes_ = SessionBytes(feed_);
  std::string before_;
};

INSTANTIATE_TEST_SUITE_P(On, SnapshotFailures, testing::ValuesIn(WithOneGpu({"cpu"})),
                         [](const auto& backend) { return backend.param; });

TEST_P(SnapshotFailures, OfTakingOnesLeavesTheSessionAndNoSnapshot) {
  TestEveryPoint();
  const auto take = [](const Caller& caller) { return ResultOf(Take(caller, "a", "k")); };
  const auto take_and_use = [](const Caller& caller) {
    const auto taken = Take(caller, "a", "k");
    return taken.ok() ? ResultOf(Begin(caller, "b", "k")) : ResultOf(taken);
  };
  for (const int64_t decoded : {5, 14}) {
    const std::string at = " at " + std::to_string(decoded);
    const int64_t next = 4 + decoded;
    const auto full = [this, decoded](const Caller& caller) {
      feed_.Start(caller, "a", {0, 4}, decoded);
      feed_.Start(caller, "f", {0, 4}, 5);
    };
    const auto parked = [this, full](const Caller& caller) {
      full(caller);
      ASSERT_TRUE(caller.Evict("a").ok());
      feed_.Start(caller, "g", {0, 4}, 5);
    };
    const auto unused = [this, decoded](const Caller& caller) {
      feed_.Start(caller, "a", {0, 4}, decoded);
      FreePool(caller, {"a"}, {});
    };
    const std::vector<Examined> both = {{"a", next, &feed_}, {"f", 9, &feed_}};
    const std::vector<Examined> begun = {{"b", next, &feed_}, {"a", next, &feed_}};
    FailEachInFullRoom(Whole("snapshot that takes room" + at, full, take, both, RoomFor(2)));
    FailEachInFullRoom(Whole("snapshot of a parked session that takes room" + at, parked, take, both, RoomFor(2)));
    FailEach(Whole("snapshot of a parked session in a new pool" + at, unused, take, {{"a", next, &feed_}}));
    FailEachInFullRoom({"snapshot and a session from it" + at, full, take_and_use, begun, nullptr, RoomFor(2)});
    FailEachInFullRoom(
        {"snapshot of a parked session, and a session from it" + at, parked, take_and_use, begun, nullptr, RoomFor(2)});
    if (HasFatalFailure()) return;
  }
  // With several pools the first is full, so the snapshot and the session are copies.
  const auto full_pool = [this](const Caller& caller) {
    feed_.Start(caller, "a", {0, 4}, 14);
    ASSERT_TRUE(caller.Prefill(feed_.Prefill("a", {0, 4}, /*layer=*/1)).ok());
    for (int i = 0; caller.Info().reply.state_bytes_used() < 9 * bytes_; ++i) {
      ASSERT_TRUE(feed_.Create(caller, "other" + std::to_string(i)).ok());
    }
  };
  FailEach({"snapshot and a session beside a full pool",
            full_pool,
            take_and_use,
            {{"a", 18, &feed_}, {"b", 18, &feed_}},
            nullptr,
            RoomFor(16)});
  EXPECT_GT(refused_, 0);
  Report("snapshots");
}

// The first error of the entries, so that the call counts as refused and is sent again.
Result FirstError(const Outcome<v1::SnapshotSessionsResponse>& taken) {
  if (!taken.ok()) return ResultOf(taken);
  for (const v1::SnapshotResult& result : taken.reply.results()) {
    if (!result.has_error()) continue;
    const google::rpc::Status& error = result.error();
    return {grpc::Status(static_cast<grpc::StatusCode>(error.code()), error.message(), error.SerializeAsString())};
  }
  return ResultOf(taken);
}

TEST_P(SnapshotFailures, OfTakingManyLeavesEachEntryDoneOrNotBegun) {
  TestEveryPoint();
  FailEach({.name = "snapshots of three sessions",
            .prepare =
                [this](const Caller& caller) {
                  feed_.Start(caller, "a", {0, 4}, 5);
                  feed_.Start(caller, "b", {0, 4}, 3);
                  ASSERT_TRUE(feed_.Create(caller, "c").ok());
                  FreePool(caller, {"a", "b", "c"}, {});
                },
            .call =
                [](const Caller& caller) {
                  v1::SnapshotSessionsRequest request;
                  for (const char* id : {"a", "b", "c"})
                    *request.add_requests() = SnapshotOf(id, std::string("of-") + id);
                  return FirstError(Call(caller, &Stub::SnapshotSessions, request));
                },
            .sessions = {{"a", 9, &feed_}, {"b", 7, &feed_}, {"c", 0, &feed_}},
            .when_refused =
                [](const Caller& caller) {
                  const auto listed = Call(caller, &Stub::ListSnapshots, v1::ListSnapshotsRequest());
                  int64_t bytes = 0;
                  for (const v1::Snapshot& snapshot : listed.reply.snapshots()) bytes += snapshot.state_bytes();
                  EXPECT_EQ(caller.server().server().ledger().held(BytePool::kSnapshots), bytes);
                }});
  EXPECT_GT(refused_, 0);
  Report("many snapshots");
}

TEST_P(SnapshotFailures, OfStartingFromOneLeavesItAndNoSession) {
  TestEveryPoint();
  const auto begin = [](const Caller& caller) { return ResultOf(Begin(caller, "b", "k")); };
  const auto fork = [](const Caller& caller) { return ResultOf(ForkKey(caller, "k", {"b", "c"})); };
  for (const int64_t decoded : {5, 14}) {
    const std::string at = " at " + std::to_string(decoded);
    const int64_t next = 4 + decoded;
    const auto taken = [this, decoded, next](const Caller& caller) {
      feed_.Start(caller, "a", {0, 4}, decoded);
      ASSERT_TRUE(Take(caller, "a", "k").ok());
      feed_.DecodeAll(caller, "a", {next, 3});
    };
    const auto parked = [this, taken](const Caller& caller) {
      taken(caller);
      SendSnapshotDown(caller, "k");
      feed_.Start(caller, "f", {0, 4}, 5);
    };
    const auto unused = [taken](const Caller& caller) {
      taken(caller);
      FreePool(caller, {"a"}, {"k"});
    };
    const std::vector<Examined> begun = {{"b", next, &feed_}, {"a", next + 3, &feed_}};
    const std::vector<Examined> forked = {{"b", next, &feed_}, {"c", next, &feed_}, {"a", next + 3, &feed_}};
    FailEachInFullRoom(Whole("session from a snapshot" + at, taken, begin, begun, RoomFor(2)));
    FailEachInFullRoom(Whole("session from a parked snapshot" + at, parked, begin, begun, RoomFor(2)));
    FailEach(Whole("session from a parked snapshot in a new pool" + at, unused, begin, begun));
    FailEachInFullRoom(Whole("forks of a snapshot" + at, taken, fork, forked, RoomFor(3)));
    FailEachInFullRoom(Whole("forks of a parked snapshot" + at, parked, fork, forked, RoomFor(3)));
    FailEach(Whole("forks of a parked snapshot in a new pool" + at, unused, fork, forked));
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(refused_, 0);
  Report("sessions from snapshots");
}

template <typename Request>
Request OfLease(const std::string& id) {
  Request request;
  request.set_name("leases/" + id);
  return request;
}

Outcome<v1::OpenLeaseResponse> Open(const Caller& caller) {
  v1::OpenLeaseRequest request;
  request.set_lease_id("lease");
  request.mutable_grace()->set_seconds(3600);
  return Call(caller, &Stub::OpenLease, request);
}

TEST_P(SnapshotFailures, OfLeasesLeaveThemAndTheirSessions) {
  TestEveryPoint();
  const auto create = [this](const Caller& caller, const std::string& id) {
    v1::CreateSessionRequest request = feed_.Creation(id);
    request.set_lease("leases/lease");
    return caller.Create(request);
  };
  const auto opened = [this](const Caller& caller) {
    ASSERT_TRUE(Open(caller).ok());
    for (const char* id : {"other", "f"}) feed_.Start(caller, id, {0, 4}, 5);
  };
  const auto leased = [this, create, opened](const Caller& caller) {
    opened(caller);
    for (const char* id : {"a", "b"}) {
      ASSERT_TRUE(create(caller, id).ok());
      feed_.DecodeAll(caller, id, {0, 9});
    }
    ASSERT_TRUE(Take(caller, "a", "k").ok());
    feed_.DecodeAll(caller, "a", {9, 2});
    SendSnapshotDown(caller, "k");
    ASSERT_TRUE(caller.Evict("b").ok());
  };
  FailEach(Whole(
      "opened lease",
      [this](const Caller& caller) {
        feed_.Start(caller, "other", {0, 4}, 5);
      },
      [](const Caller& caller) { return ResultOf(Open(caller)); }, {{"other", 9, &feed_}}));
  FailEachInFullRoom(Whole(
      "session in a lease", opened, [create](const Caller& caller) { return ResultOf(create(caller, "a")); },
      {{"a", 0, &feed_}, {"other", 9, &feed_}}, RoomFor(2)));
  FailEach(Whole(
      "session in a lease and a new pool",
      [opened](const Caller& caller) {
        opened(caller);
        FreePool(caller, {"other", "f"}, {});
      },
      [create](const Caller& caller) { return ResultOf(create(caller, "a")); },
      {{"a", 0, &feed_}, {"other", 9, &feed_}}));
  FailEach(Whole("renewed lease", leased,
                 [](const Caller& caller) {
                   return ResultOf(Call(caller, &Stub::RenewLease, OfLease<v1::RenewLeaseRequest>("lease")));
                 },
                 {{"a", 11, &feed_}, {"b", 9, &feed_}, {"other", 9, &feed_}}));
  FailEach({.name = "ended lease",
            .prepare = leased,
            .call =
                [](const Caller& caller) {
                  const auto ended = Call(caller, &Stub::EndLease, OfLease<v1::EndLeaseRequest>("lease"));
                  EXPECT_EQ(ended.reply.ended_sessions(), ended.ok() ? 3 : 0);
                  if (ended.ok()) {
                    EXPECT_EQ(caller.server().server().ledger().held(BytePool::kSnapshots), 0);
                  }
                  return ResultOf(ended);
                },
            .sessions = {{"other", 9, &feed_}}});
  EXPECT_GT(refused_, 0);
  Report("leases");
}

}  // namespace
}  // namespace gdn::snapshot_failure_test
