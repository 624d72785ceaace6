#include "server/admission/byte_ledger.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/error.h"
#include "base/string_cat.h"
#include "base/task/deadline.h"
#include "base/task/inline_executor.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "tests/server/admission/inline_flows.h"

namespace gdn::byte_ledger_test {
namespace {

constexpr BytePool kPool = BytePool::kCalls;

ByteLedgerOptions Limited(int64_t limit) {
  return {.pools = {{kPool, {.limit_bytes = limit, .headroom = 0.125, .flag = "--call-bytes"}}}};
}

std::string PeerOf(int host, int port = 1000) { return StrCat("ipv4:10.0.0.", host, ":", port); }

// Takes pieces until it is refused; how many bytes it got.
int64_t Fill(ByteLedger& ledger, const ByteAccountPtr& account, int64_t piece, std::vector<ByteCharge>& charges) {
  int64_t got = 0;
  for (;;) {
    auto charge = ledger.TryCharge(kPool, account, piece);
    if (!charge.ok()) return got;
    got += charge->bytes();
    charges.push_back(*std::move(charge));
  }
}

TEST(ByteLedger, WhatIsHeldIsGivenBackWithTheCharge) {
  ByteLedger ledger(Limited(1000));
  const ByteAccountPtr account = ledger.AccountOf("", PeerOf(1));
  {
    auto charge = ledger.TryCharge(kPool, account, 300);
    ASSERT_TRUE(charge.ok());
    ASSERT_TRUE(charge->TryGrow(100).ok());
    EXPECT_EQ(ledger.held(kPool, *account), 400);
    charge->ShrinkTo(150);
    EXPECT_EQ(ledger.held(kPool), 150);
    ByteCharge moved = *std::move(charge);
    EXPECT_EQ(ledger.held(kPool), 150);
  }
  EXPECT_EQ(ledger.held(kPool), 0);
  EXPECT_EQ(ledger.held(kPool, *account), 0);
}

TEST(ByteLedger, ARefusalNamesThePoolTheLimitAndTheFlag) {
  ByteLedger ledger(Limited(1000));
  const ByteAccountPtr account = ledger.AccountOf("", PeerOf(1));
  const auto first = ledger.TryCharge(kPool, account, 800);
  const absl::Status status = ledger.TryCharge(kPool, account, 100).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), reason::kBytesExhausted);
  const ErrorMetadataMap expected = {{"pool", "call"}, {"needed", "100"}, {"held", "800"}, {"limit", "1000"}};
  EXPECT_EQ(ErrorMetadata(status), expected);
  EXPECT_NE(std::string(status.message()).find("--call-bytes"), std::string::npos);
}

TEST(ByteLedger, OneCallerAloneLeavesTheHeadroomAndNoMore) {
  ByteLedger ledger(Limited(8000));
  std::vector<ByteCharge> charges;
  EXPECT_EQ(Fill(ledger, ledger.AccountOf("", PeerOf(1)), 10, charges), 7000);
}

TEST(ByteLedger, ASecondAddressFindsRoomWhereTheFirstHasTakenAllItCan) {
  ByteLedger ledger(Limited(8000));
  std::vector<ByteCharge> first, second;
  Fill(ledger, ledger.AccountOf("", PeerOf(1)), 10, first);
  EXPECT_EQ(Fill(ledger, ledger.AccountOf("", PeerOf(2)), 10, second), 1000);
  // The first caller gives bytes back. Only the second gets them, up to its share.
  first.resize(first.size() / 2);
  EXPECT_FALSE(ledger.TryCharge(kPool, ledger.AccountOf("", PeerOf(1)), 3000).ok());
  EXPECT_EQ(Fill(ledger, ledger.AccountOf("", PeerOf(2)), 10, second), 3000);
  EXPECT_EQ(ledger.held(kPool, *ledger.AccountOf("", PeerOf(2))), 4000);
}

TEST(ByteLedger, InventedPrincipalsOfOneAddressShareItsPart) {
  ByteLedger ledger(Limited(8000));
  std::vector<ByteCharge> charges;
  int64_t invented = 0;
  for (int i = 0; i < 1000; ++i) {
    invented += Fill(ledger, ledger.AccountOf(StrCat("principal-", i), PeerOf(1, 2000 + i)), 100, charges);
  }
  EXPECT_EQ(invented, 7000);
  EXPECT_EQ(ledger.AccountOf("a", PeerOf(1)), ledger.AccountOf("b", PeerOf(1, 7)));
  std::vector<ByteCharge> other;
  EXPECT_EQ(Fill(ledger, ledger.AccountOf("honest", PeerOf(2)), 100, other), 1000);
}

TEST(ByteLedger, ListedPrincipalsHaveSharesByWeight) {
  // 3 + 4 + 1 for all others: an eighth of the pool is 1,000.
  ByteLedger ledger(Limited(8000));
  ledger.List("heavy", 4);
  ledger.List("light", 3);
  const ByteAccountPtr heavy = ledger.AccountOf("heavy", PeerOf(1));
  EXPECT_EQ(heavy, ledger.AccountOf("heavy", PeerOf(9)));
  EXPECT_TRUE(heavy->listed());
  EXPECT_EQ(heavy->name(), "heavy");
  std::vector<ByteCharge> strangers, heavys, lights;
  // Strangers cannot touch the headroom: their share is smaller than what they would have to hold for it.
  EXPECT_EQ(Fill(ledger, ledger.AccountOf("", PeerOf(3)), 10, strangers), 7000);
  EXPECT_EQ(Fill(ledger, heavy, 10, heavys), 1000);
  strangers.clear();
  EXPECT_EQ(Fill(ledger, ledger.AccountOf("light", PeerOf(2)), 10, lights), 6000);
  EXPECT_EQ(Fill(ledger, heavy, 10, heavys), 1000);
  lights.resize(100);
  EXPECT_EQ(Fill(ledger, heavy, 10, heavys), 4000);
  EXPECT_DOUBLE_EQ(ledger.SharesHeld(kPool, *heavy), 1.5);
  EXPECT_LT(ledger.SharesHeld(kPool, *ledger.AccountOf("light", "")), 1);
}

TEST(ByteLedger, WhatIsLargerThanThePoolGoesAlone) {
  ByteLedger ledger(Limited(1000));
  const ByteAccountPtr account = ledger.AccountOf("", PeerOf(1));
  auto large = ledger.TryCharge(kPool, account, 5000);
  ASSERT_TRUE(large.ok());
  EXPECT_FALSE(ledger.TryCharge(kPool, account, 1).ok());
  large->Release();
  const auto small = ledger.TryCharge(kPool, account, 1);
  EXPECT_FALSE(ledger.TryCharge(kPool, account, 5000).ok());
}

// Notes how waits end, in their order, and keeps the charges that were granted.
struct Grants {
  std::vector<std::string> order;
  std::vector<ByteCharge> charges;
};

Task<void> WaitAndNote(ByteLedger& ledger, ByteAccountPtr account, int64_t bytes, std::string name, Deadline deadline,
                       Grants& grants) {
  absl::StatusOr<ByteCharge> charge = co_await ledger.WaitForCharge(kPool, account, bytes, deadline);
  if (charge.ok()) {
    grants.order.push_back(name);
    grants.charges.push_back(*std::move(charge));
  } else {
    grants.order.push_back(StrCat(name, " ", absl::StatusCodeToString(charge.status().code())));
  }
}

// Gives it back at once.
Task<void> WaitAndCount(ByteLedger& ledger, ByteAccountPtr account, int64_t bytes, Deadline deadline,
                        std::atomic<int>& granted) {
  const absl::StatusOr<ByteCharge> charge = co_await ledger.WaitForCharge(kPool, account, bytes, deadline);
  if (charge.ok()) granted.fetch_add(1);
}

TEST(ByteLedger, ThoseThatWaitAreGrantedByShareThenByAge) {
  ByteLedger ledger(Limited(1000));
  const ByteAccountPtr one = ledger.AccountOf("", PeerOf(1));
  const ByteAccountPtr two = ledger.AccountOf("", PeerOf(2));
  auto held = ledger.TryCharge(kPool, one, 800);
  Grants grants;
  InlineFlows flows;
  const auto wait = [&](const ByteAccountPtr& account, const std::string& name) {
    flows.group.Spawn(WaitAndNote(ledger, account, 400, name, flows.end.Never(), grants));
  };
  wait(one, "one, first");
  wait(one, "one, second");
  wait(two, "two");
  EXPECT_TRUE(grants.order.empty());
  held->Release();
  // Two is as far from its share as one, and came later; then it holds less.
  EXPECT_EQ(grants.order, (std::vector<std::string>{"one, first", "two"}));
  grants.charges.front().Release();
  EXPECT_EQ(grants.order.back(), "one, second");
  grants.charges.clear();
  EXPECT_EQ(ledger.held(kPool), 0);
}

TEST(ByteLedger, AWaitWhoseDeadlinePassesLetsSmallerOnesBehindItGo) {
  ByteLedger ledger(Limited(1000));
  const ByteAccountPtr account = ledger.AccountOf("", PeerOf(1));
  const auto held = ledger.TryCharge(kPool, account, 700);
  Grants grants;
  InlineFlows flows;
  CancelSource client_gone;
  flows.group.Spawn(
      WaitAndNote(ledger, account, 400, "large", flows.end.Until(flows.time.Now() + absl::Seconds(5)), grants));
  flows.group.Spawn(WaitAndNote(ledger, account, 50, "small", flows.end.Never(), grants));
  flows.group.Spawn(WaitAndNote(ledger, account, 300, "as large", client_gone.Never(), grants));
  flows.group.Spawn(WaitAndNote(ledger, account, 60, "as small", flows.end.Never(), grants));
  flows.time.RunFor(absl::Seconds(4));
  EXPECT_TRUE(grants.order.empty());
  flows.time.RunFor(absl::Seconds(1));
  EXPECT_EQ(grants.order, (std::vector<std::string>{"large DEADLINE_EXCEEDED", "small"}));
  client_gone.Cancel();
  EXPECT_EQ(grants.order,
            (std::vector<std::string>{"large DEADLINE_EXCEEDED", "small", "as large CANCELLED", "as small"}));
  EXPECT_EQ(ledger.held(kPool), 700 + 50 + 60);
}

// The threads' timing decides which it is; either way the bytes are right.
TEST(ByteLedger, AChargeThatIsGrantedAsItsDeadlinePassesIsItsWaitersOrIsPassedOn) {
  constexpr int kRounds = 3000;
  ThreadExecutor timers({});
  InlineExecutor executor(timers);  // a wait has begun when Spawn returns, and goes on on the thread that ends it
  ByteLedger ledger(Limited(1000));
  const ByteAccountPtr account = ledger.AccountOf("", PeerOf(1));
  std::atomic<int> granted{0}, granted_behind{0};
  for (int round = 0; round < kRounds; ++round) {
    ByteCharge held = ledger.Charge(kPool, account, 1000);
    const SteadyTime due = timers.Now() + absl::Microseconds(round % 100);
    TaskGroup group(executor);
    group.Spawn(WaitAndCount(ledger, account, 900, due, granted));
    group.Spawn(WaitAndCount(ledger, account, 800, Deadline(), granted_behind));
    while (timers.Now() < due) std::this_thread::yield();
    held.Release();
    group.Wait();
    ASSERT_EQ(ledger.held(kPool), 0) << "round " << round;
  }
  EXPECT_EQ(granted_behind, kRounds);
}

TEST(ByteLedger, AGrantThatIsGivenBackAtOnceLetsTheNextInWithoutDeepStacks) {
  ByteLedger ledger(Limited(1000));
  const ByteAccountPtr account = ledger.AccountOf("", PeerOf(1));
  auto held = ledger.TryCharge(kPool, account, 1000);
  constexpr int kWaiters = 100'000;
  std::atomic<int> granted{0};
  InlineFlows flows;
  for (int i = 0; i < kWaiters; ++i) {
    flows.group.Spawn(WaitAndCount(ledger, account, 900, flows.end.Never(), granted));
    if (i == 500) held->Release();
  }
  EXPECT_EQ(granted, kWaiters);
}

TEST(ByteLedger, AccountsOfAddressesThatHoldNothingAreForgotten) {
  ByteLedger ledger(Limited(1000));
  ledger.List("listed", 1);
  for (int i = 0; i < 200; ++i) ledger.AccountOf("", PeerOf(i));
  EXPECT_EQ(ledger.accounts(), 1u);
  const auto charge = ledger.TryCharge(kPool, ledger.AccountOf("", PeerOf(1)), 10);
  EXPECT_EQ(ledger.accounts(), 2u);
}

TEST(ByteLedger, PoolsWithoutALimitOnlyCount) {
  ByteLedger ledger(Limited(10));
  const ByteAccountPtr one = ledger.AccountOf("", PeerOf(1));
  const ByteAccountPtr two = ledger.AccountOf("", PeerOf(2));
  const auto large = ledger.TryCharge(BytePool::kCopies, one, int64_t{3} << 40);
  const auto small = ledger.TryCharge(BytePool::kCopies, two, int64_t{1} << 40);
  ASSERT_TRUE(small.ok());
  EXPECT_DOUBLE_EQ(ledger.SharesHeld(BytePool::kCopies, *one), 1.5);
  EXPECT_DOUBLE_EQ(ledger.SharesHeld(BytePool::kCopies, *two), 0.5);
}

// Whatever comes: the pool's limit is kept, an account within its share is refused only where the pool is full, and in
// the end nothing is held.
TEST(ByteLedger, KeepsItsRuleOverRandomLoads) {
  for (int seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    constexpr int64_t kLimit = 100'000;
    ByteLedger ledger(Limited(kLimit));
    ledger.List("a", 2);
    ledger.List("b", 0.5);
    const std::vector<ByteAccountPtr> accounts = {ledger.AccountOf("a", ""), ledger.AccountOf("b", ""),
                                                  ledger.AccountOf("c", PeerOf(1)), ledger.AccountOf("d", PeerOf(2)),
                                                  ledger.AccountOf("e", PeerOf(3))};
    std::vector<ByteCharge> charges;
    for (int i = 0; i < 3000; ++i) {
      if (random() % 3 == 0 && !charges.empty()) {
        std::swap(charges[random() % charges.size()], charges.back());
        charges.pop_back();
        continue;
      }
      const ByteAccountPtr& account = accounts[random() % accounts.size()];
      const auto bytes = static_cast<int64_t>(random() % 2000);
      const int64_t total = ledger.held(kPool);
      const double before = ledger.SharesHeld(kPool, *account);
      auto charge = ledger.TryCharge(kPool, account, bytes);
      if (charge.ok()) {
        const bool over = ledger.SharesHeld(kPool, *account) > 1;
        ASSERT_TRUE(total == 0 || ledger.held(kPool) <= (over ? kLimit * 7 / 8 : kLimit)) << "seed " << seed;
        charges.push_back(*std::move(charge));
      } else if (total + bytes <= kLimit * 7 / 8) {
        FAIL() << "refused with room for all; seed " << seed;
      } else if (total + bytes <= kLimit && account->listed()) {
        const double share = account->name() == "a" ? kLimit * 2 / 3.5 : kLimit * 0.5 / 3.5;
        ASSERT_GT(before * share + static_cast<double>(bytes), share) << "refused within its share; seed " << seed;
      }
    }
    charges.clear();
    EXPECT_EQ(ledger.held(kPool), 0);
    for (const ByteAccountPtr& account : accounts) EXPECT_EQ(ledger.held(kPool, *account), 0);
  }
}

TEST(ByteLedger, TellsWhatEachAccountHolds) {
  ByteLedger ledger(Limited(1000));
  ledger.List("a", 3);
  const ByteAccountPtr listed = ledger.AccountOf("a", PeerOf(1));
  auto first = ledger.TryCharge(kPool, listed, 300);
  {
    const ByteAccountPtr peer = ledger.AccountOf("", PeerOf(2));
    const ByteCharge second = ledger.Charge(kPool, peer, 100);
    auto usage = ledger.usage();
    std::ranges::sort(usage, std::ranges::greater(), &ByteLedger::Usage::listed);
    ASSERT_EQ(usage.size(), 2u);
    EXPECT_EQ(usage[0].name, "a");
    EXPECT_EQ(usage[0].weight, 3);
    EXPECT_EQ(usage[0].held[static_cast<size_t>(kPool)], 300);
    EXPECT_DOUBLE_EQ(usage[0].shares[static_cast<size_t>(kPool)], ledger.SharesHeld(kPool, *listed));
    EXPECT_FALSE(usage[1].listed);
    EXPECT_EQ(usage[1].name, peer->name());
    EXPECT_EQ(usage[1].held[static_cast<size_t>(kPool)], 100);
  }
  EXPECT_EQ(ledger.usage().size(), 1u);
}

TEST(ByteLedger, ManyThreadsLeaveNothingBehind) {
  ByteLedger ledger(Limited(10'000));
  std::atomic<int> granted{0};
  InlineFlows flows;
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const ByteAccountPtr account = ledger.AccountOf("", PeerOf(t));
        auto charge = ledger.TryCharge(kPool, account, 100 + i % 3000);
        flows.group.Spawn(WaitAndCount(ledger, account, 50 + i % 5000, Deadline(), granted));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  flows.group.Wait();
  EXPECT_EQ(granted, kThreads * kRounds);
  EXPECT_EQ(ledger.held(kPool), 0);
  EXPECT_EQ(ledger.accounts(), 0u);
}

}  // namespace
}  // namespace gdn::byte_ledger_test
