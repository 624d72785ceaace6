#include "server/session/snapshots/snapshot_book.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/server/session/session_test_support.h"

namespace gdn::snapshot_book_test {
namespace {

using Cause = SnapshotLoss::Cause;

class ManualClock final : public SteadyClock {
 public:
  SteadyTime Now() const override {
    if (on_read) on_read();
    return SteadyTime::FromNanos(now_ns);
  }
  int64_t now_ns = 1'000'000'000;
  std::function<void()> on_read;
};

class SnapshotBookTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 100;

  // A snapshot of the principal that was used at this time; in the pool it counts for 100 bytes.
  std::shared_ptr<Session> Make(const std::string& principal, const std::string& key, int64_t used_s) {
    clock_.now_ns = used_s * 1'000'000'000;
    auto snapshot = std::make_shared<Session>(
        SessionInit{.principal = principal, .id = "+" + key, .spec = OperatorSessionSpec(1), .affinity = key},
        std::vector<SlotClaim>(), &environment_);
    charges_.push_back(ledger_.Charge(BytePool::kSnapshots, snapshot->account(), kBytes));
    book_.Add(snapshot);
    made_.push_back(snapshot);
    return snapshot;
  }
  std::shared_ptr<Session> MakeSession(const std::string& principal, const std::string& id) {
    return std::make_shared<Session>(
        SessionInit{.principal = principal, .id = id, .spec = OperatorSessionSpec(1), .affinity = id},
        std::vector<SlotClaim>(), &environment_);
  }
  std::string Take(const std::string& wanted_by) {
    const auto taken = book_.TakeFirst(*ledger_.AccountOf(wanted_by, ""), kBytes);
    return taken == nullptr ? "" : taken->id().substr(1);
  }
  std::vector<std::string> KeysOf(const SnapshotBook::Losses& losses) {
    std::vector<std::string> keys;
    for (const SnapshotLoss& loss : losses.losses) keys.push_back(loss.key);
    return keys;
  }

  ManualClock clock_;
  ByteLedger ledger_{{.pools = {{BytePool::kSnapshots, {.limit_bytes = 900, .headroom = 0}}}}};
  SessionEnvironment environment_{ledger_, clock_};
  SnapshotBook book_{ledger_, clock_};
  std::vector<ByteCharge> charges_;
  std::vector<std::shared_ptr<Session>> made_;
};

TEST_F(SnapshotBookTest, TakesTheLeastRecentlyUsedFirstAndEachOnce) {
  const auto a = Make("p", "a", 1);
  Make("p", "b", 2);
  const auto c = Make("p", "c", 3);
  clock_.now_ns = 9'000'000'000;
  a->Touch();
  EXPECT_EQ(Take("p"), "b");
  EXPECT_TRUE(book_.evicting());
  EXPECT_EQ(Take("p"), "c");
  EXPECT_EQ(Take("p"), "a");
  EXPECT_EQ(Take("p"), "") << "all are taken";
  book_.PutBack(*c);
  EXPECT_EQ(Take("p"), "") << "it could not be ended, and is passed over for a while";
  clock_.now_ns += 1'000'000'000;
  EXPECT_EQ(Take("p"), "c");
  for (const auto& snapshot : made_) book_.Remove(*snapshot);
  EXPECT_FALSE(book_.evicting());
  EXPECT_EQ(book_.size(), 0);
}

TEST_F(SnapshotBookTest, TakesFromTheAccountThatIsFurthestOverItsShare) {
  for (const char* principal : {"p", "q"}) ledger_.List(principal, 1);  // a third each: 300 bytes
  Make("q", "q1", 1);
  for (int i = 0; i < 5; ++i) Make("p", "p" + std::to_string(i), 10 + i);
  EXPECT_EQ(Take("q"), "p0") << "although q's is older";
  EXPECT_EQ(Take("p"), "p1");
  for (int i = 2; i < 5; ++i) EXPECT_EQ(Take("p"), "p" + std::to_string(i));
  EXPECT_EQ(Take("p"), "") << "p would be over its share, and q is within its own";
  EXPECT_EQ(Take("q"), "q1");
}

TEST_F(SnapshotBookTest, NumbersLossesByAMarkOfEachPrincipal) {
  EXPECT_EQ(book_.MarkOf("p"), 0);
  EXPECT_FALSE(book_.LossesAfter("p", 0).incomplete);
  EXPECT_TRUE(book_.LossesAfter("p", 7).incomplete) << "a mark of another process";
  Make("p", "a", 1);
  const int64_t mark = book_.MarkOf("p");
  EXPECT_GT(mark, 0);
  EXPECT_LT(mark, int64_t{1} << 53);
  book_.NoteLost("p", "a", Cause::kEvicted);
  book_.NoteLost("p", "b", Cause::kDamaged);
  book_.NoteLost("q", "c", Cause::kEvicted);
  EXPECT_EQ(book_.MarkOf("p"), mark + 2);
  EXPECT_NE(book_.MarkOf("q"), book_.MarkOf("p"));
  EXPECT_EQ(KeysOf(book_.LossesAfter("p", 0)), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(KeysOf(book_.LossesAfter("p", mark)), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(KeysOf(book_.LossesAfter("p", mark + 1)), std::vector<std::string>{"b"});
  EXPECT_TRUE(KeysOf(book_.LossesAfter("p", mark + 2)).empty());
  EXPECT_FALSE(book_.LossesAfter("p", mark).incomplete);
  EXPECT_TRUE(book_.LossesAfter("p", mark - 1).incomplete);
  EXPECT_TRUE(book_.LossesAfter("p", mark + 3).incomplete);
  EXPECT_EQ(book_.CauseOf("p", "b"), Cause::kDamaged);
  EXPECT_EQ(book_.CauseOf("p", "c"), std::nullopt);
  EXPECT_EQ(book_.evicted(), 2);
  EXPECT_EQ(book_.damaged(), 1);
}

TEST_F(SnapshotBookTest, SessionsKnowTheMarkOfTheirPrincipal) {
  SnapshotBook& book = environment_.snapshots();
  const auto session = MakeSession("p", "s");
  const auto other = MakeSession("q", "s");
  EXPECT_EQ(session->snapshot_loss_mark(), 0);
  book.Add(Make("p", "a", 1));
  const int64_t mark = book.MarkOf("p");
  EXPECT_EQ(session->snapshot_loss_mark(), mark);
  book.NoteLost("p", "a", Cause::kEvicted);
  EXPECT_EQ(session->snapshot_loss_mark(), mark + 1);
  EXPECT_EQ(MakeSession("p", "later")->snapshot_loss_mark(), mark + 1);
  EXPECT_EQ(other->snapshot_loss_mark(), 0) << "although both are of one account";
  ASSERT_EQ(session->account(), other->account());
  book.NoteLost("q", "a", Cause::kDamaged);
  EXPECT_EQ(other->snapshot_loss_mark(), book.MarkOf("q"));
  EXPECT_EQ(session->snapshot_loss_mark(), mark + 1);
}

TEST_F(SnapshotBookTest, SessionsReadTheMarkWhileTheBookIsBusy) {
  SnapshotBook& book = environment_.snapshots();
  const auto session = MakeSession("p", "s");
  book.Add(Make("p", "a", 1));
  const int64_t mark = book.MarkOf("p");
  absl::Notification busy, read;
  clock_.on_read = [&] {  // the book reads the clock under its mutex
    if (busy.HasBeenNotified()) return;
    busy.Notify();
    EXPECT_TRUE(read.WaitForNotificationWithTimeout(absl::Seconds(5))) << "the mark waits for the book";
  };
  std::thread taker([&] { book.TakeFirst(*session->account(), kBytes); });
  busy.WaitForNotification();
  EXPECT_EQ(session->snapshot_loss_mark(), mark);
  read.Notify();
  taker.join();
}

TEST_F(SnapshotBookTest, SessionsSeeThatTheirPrincipalIsForgotten) {
  SnapshotBook& book = environment_.snapshots();
  const auto session = MakeSession("p", "s");
  book.NoteLost("p", "a", Cause::kEvicted);
  EXPECT_NE(session->snapshot_loss_mark(), 0);
  for (size_t i = 0; i < SnapshotBook::kMostPrincipals + 10; ++i) {
    book.NoteLost("p" + std::to_string(i), "a", Cause::kEvicted);
  }
  EXPECT_EQ(session->snapshot_loss_mark(), 0);
  book.NoteLost("p", "b", Cause::kEvicted);
  EXPECT_EQ(session->snapshot_loss_mark(), book.MarkOf("p"));
}

TEST_F(SnapshotBookTest, RemembersABoundedNumberOfLossesAndSaysSo) {
  constexpr auto kMost = static_cast<int64_t>(SnapshotBook::kMostLosses);
  for (int64_t i = 0; i < kMost; ++i) book_.NoteLost("p", std::to_string(i), Cause::kEvicted);
  EXPECT_FALSE(book_.LossesAfter("p", 0).incomplete);
  book_.NoteLost("p", "one more", Cause::kEvicted);
  const auto losses = book_.LossesAfter("p", 0);
  EXPECT_TRUE(losses.incomplete);
  EXPECT_EQ(static_cast<int64_t>(losses.losses.size()), kMost);
  EXPECT_EQ(losses.losses.front().key, "1");
  EXPECT_FALSE(book_.LossesAfter("p", losses.mark - 5).incomplete);
}

TEST_F(SnapshotBookTest, RemembersABoundedNumberOfPrincipals) {
  Make("kept", "k", 1);
  const int64_t kept = book_.MarkOf("kept");
  for (size_t i = 0; i < SnapshotBook::kMostPrincipals + 10; ++i) {
    book_.NoteLost("p" + std::to_string(i), "a", Cause::kEvicted);
  }
  EXPECT_EQ(book_.MarkOf("kept"), kept) << "it has a snapshot";
  EXPECT_EQ(book_.MarkOf("p0"), 0) << "the client sees the change";
  EXPECT_TRUE(book_.LossesAfter("p0", 5).incomplete);
  EXPECT_NE(book_.MarkOf("p" + std::to_string(SnapshotBook::kMostPrincipals + 9)), 0);
  const size_t records = SnapshotBook::kMostAllLosses / SnapshotBook::kMostLosses + 2;
  for (size_t i = 0; i < records; ++i) {
    for (size_t j = 0; j < SnapshotBook::kMostLosses; ++j)
      book_.NoteLost("q" + std::to_string(i), "a", Cause::kEvicted);
  }
  size_t all = 0;
  for (size_t i = 0; i < records; ++i) all += book_.LossesAfter("q" + std::to_string(i), 0).losses.size();
  EXPECT_LE(all, SnapshotBook::kMostAllLosses);
  EXPECT_GT(all, SnapshotBook::kMostAllLosses / 2);
}

}  // namespace
}  // namespace gdn::snapshot_book_test
