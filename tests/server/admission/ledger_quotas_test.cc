// Quotas of the ledger: what accounts, and all together, may have at the most.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/string_cat.h"
#include "base/task/deadline.h"
#include "base/task/task.h"
#include "server/admission/byte_ledger.h"
#include "tests/server/admission/inline_flows.h"

namespace gdn::ledger_quotas_test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::string PeerOf(int host, int port = 1000) { return StrCat("ipv4:10.0.0.", host, ":", port); }

std::string MetadataOf(const absl::Status& status, const std::string& key) {
  const ErrorMetadataMap metadata = ErrorMetadata(status);
  const auto it = metadata.find(key);
  return it == metadata.end() ? "none" : it->second;
}

QuotaSettings Each(Quota quota, int64_t limit) {
  QuotaSettings settings;
  settings.each[quota] = limit;
  return settings;
}

Task<void> WaitForCopy(ByteLedger& ledger, ByteAccountPtr account, int64_t bytes, Deadline deadline,
                       std::optional<ByteCharge>& granted) {
  absl::StatusOr<ByteCharge> charge = co_await ledger.WaitForCharge(BytePool::kCopies, account, bytes, deadline);
  if (charge.ok()) granted = *std::move(charge);
}

TEST(LedgerQuotas, AnAccountHasAtMostItsQuotaAndARefusalChangesNothing) {
  ByteLedger ledger({});
  ledger.SetQuotas(Each(Quota::kSessions, 2), 0);
  const ByteAccountPtr a = ledger.AccountOf("", PeerOf(1)), b = ledger.AccountOf("", PeerOf(2));
  auto first = ledger.TryCharge(BytePool::kSessions, a, 1);
  auto second = ledger.TryCharge(BytePool::kSessions, a, 1);
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status third = ledger.TryCharge(BytePool::kSessions, a, 1).status();
  EXPECT_EQ(third.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(third), reason::kQuotaExceeded);
  const ErrorMetadataMap expected = {
      {"quota", "sessions"}, {"of", "caller"}, {"needed", "1"}, {"used", "2"}, {"limit", "2"}};
  EXPECT_EQ(ErrorMetadata(third), expected);
  EXPECT_EQ(ledger.held(BytePool::kSessions, *a), 2);
  EXPECT_EQ(ledger.refusals(Quota::kSessions), 1);
  EXPECT_TRUE(ledger.TryCharge(BytePool::kSessions, b, 1).ok()) << "another's quota is another's";
  first->Release();
  EXPECT_TRUE(ledger.TryCharge(BytePool::kSessions, a, 1).ok());
}

TEST(LedgerQuotas, AllTogetherHaveAtMostTheQuotaOfAll) {
  ByteLedger ledger({});
  QuotaSettings settings = Each(Quota::kStateBytes, 80);
  settings.all[Quota::kStateBytes] = 100;
  ledger.SetQuotas(settings, 0);
  const ByteAccountPtr a = ledger.AccountOf("", PeerOf(1)), b = ledger.AccountOf("", PeerOf(2));
  const auto first = ledger.TryCharge(BytePool::kStates, a, 80);
  EXPECT_EQ(MetadataOf(ledger.TryCharge(BytePool::kStates, b, 21).status(), "of"), "all");
  EXPECT_EQ(MetadataOf(ledger.TryCharge(BytePool::kStates, a, 21).status(), "of"), "caller");
  EXPECT_TRUE(ledger.TryCharge(BytePool::kStates, b, 20).ok());
}

TEST(LedgerQuotas, ChargesThatMustNotBeRefusedAreNot) {
  ByteLedger ledger({});
  ledger.SetQuotas(Each(Quota::kDeviceBytes, 10), 0);
  const ByteAccountPtr a = ledger.AccountOf("", PeerOf(1));
  const ByteCharge there = ledger.Charge(BytePool::kDevice, a, 100);
  EXPECT_EQ(ledger.held(BytePool::kDevice, *a), 100);
  EXPECT_FALSE(ledger.TryCharge(BytePool::kDevice, a, 1).ok());
  EXPECT_TRUE(ledger.TryCharge(BytePool::kDevice, a, 0).ok());
}

TEST(LedgerQuotas, OnlyWhatEndsByItselfIsWorthWaitingFor) {
  ByteLedger ledger({});
  QuotaSettings settings;
  for (const Quota quota : {Quota::kCallBytes, Quota::kCopyBytes, Quota::kSessions, Quota::kDiskBytes}) {
    settings.each[quota] = 10;
  }
  ledger.SetQuotas(settings, 0);
  const ByteAccountPtr a = ledger.AccountOf("", PeerOf(1));
  for (const auto& [pool, retry] : {std::pair(BytePool::kCalls, "100"), std::pair(BytePool::kCopies, "100"),
                                    std::pair(BytePool::kSessions, "none"), std::pair(BytePool::kDisk, "none")}) {
    const ByteCharge there = ledger.Charge(pool, a, 5);
    EXPECT_EQ(MetadataOf(ledger.TryCharge(pool, a, 6).status(), "retry_after_ms"), retry);
    EXPECT_EQ(MetadataOf(ledger.TryCharge(pool, a, 11).status(), "retry_after_ms"), "none") << "it never fits";
  }
}

TEST(LedgerQuotas, ListedPrincipalsHaveTheirOwnAndOthersTheDefault) {
  ByteLedger ledger({});
  ledger.List("search", 1);
  ledger.List("mail", 1);
  QuotaSettings settings = Each(Quota::kSessions, 1);
  settings.principals["search"].limits[Quota::kSessions] = 3;
  settings.principals["later"].limits[Quota::kSessions] = 4;
  ledger.SetQuotas(settings, 0);
  EXPECT_EQ(ledger.AccountOf("search", PeerOf(1))->quota(Quota::kSessions), 3);
  EXPECT_EQ(ledger.AccountOf("mail", PeerOf(1))->quota(Quota::kSessions), 1);
  EXPECT_EQ(ledger.AccountOf("whoever", PeerOf(1))->quota(Quota::kSessions), 1);
  ledger.List("later", 1);
  EXPECT_EQ(ledger.AccountOf("later", PeerOf(1))->quota(Quota::kSessions), 4);
}

TEST(LedgerQuotas, ALoweredQuotaTakesNothingAwayAndLetsNothingIn) {
  ByteLedger ledger({});
  ledger.SetQuotas(Each(Quota::kSessions, 3), 0);
  const ByteAccountPtr a = ledger.AccountOf("", PeerOf(1));
  std::vector<ByteCharge> charges;
  for (int i = 0; i < 3; ++i) charges.push_back(*ledger.TryCharge(BytePool::kSessions, a, 1));
  ledger.SetQuotas(Each(Quota::kSessions, 1), 0);
  EXPECT_EQ(ledger.held(BytePool::kSessions, *a), 3);
  charges.pop_back();
  charges.pop_back();
  EXPECT_FALSE(ledger.TryCharge(BytePool::kSessions, a, 1).ok()) << "one is there, which is as many as may be";
  charges.pop_back();
  EXPECT_TRUE(ledger.TryCharge(BytePool::kSessions, a, 1).ok());
  ledger.SetQuotas({}, 0);
  EXPECT_EQ(a->quota(Quota::kSessions), kNoQuota);
}

TEST(LedgerQuotas, WhoWaitsForItsOwnQuotaKeepsNobodyWaiting) {
  ByteLedger ledger({.pools = {{BytePool::kCopies, {.limit_bytes = 100, .headroom = 0}}}});
  ledger.SetQuotas(Each(Quota::kCopyBytes, 50), 0);
  const ByteAccountPtr a = ledger.AccountOf("", PeerOf(1)), b = ledger.AccountOf("", PeerOf(2));
  auto held = ledger.TryCharge(BytePool::kCopies, a, 40);
  std::optional<ByteCharge> of_a, of_b;
  InlineFlows flows;
  flows.group.Spawn(WaitForCopy(ledger, a, 20, flows.end.Never(), of_a));
  EXPECT_FALSE(of_a.has_value());
  flows.group.Spawn(WaitForCopy(ledger, b, 30, flows.end.Never(), of_b));
  EXPECT_TRUE(of_b.has_value());
  EXPECT_FALSE(of_a.has_value());
  held->Release();
  EXPECT_TRUE(of_a.has_value());
}

TEST(LedgerQuotas, WhatIsLargerThanTheQuotaWaitsAndGoesAlone) {
  ByteLedger ledger({});
  ledger.SetQuotas(Each(Quota::kCopyBytes, 50), 0);
  const ByteAccountPtr a = ledger.AccountOf("", PeerOf(1));
  auto held = ledger.TryCharge(BytePool::kCopies, a, 1);
  std::optional<ByteCharge> large;
  InlineFlows flows;
  flows.group.Spawn(WaitForCopy(ledger, a, 60, flows.end.Never(), large));
  EXPECT_FALSE(large.has_value());
  held->Release();
  EXPECT_TRUE(large.has_value());
}

TEST(LedgerQuotas, TokensAreTakenByTheRateAndTheRefusalSaysWhenToComeAgain) {
  ByteLedger ledger({});
  QuotaSettings settings = Each(Quota::kTokensPerSecond, 100);
  settings.each[Quota::kTokenBurst] = 10;
  ledger.SetQuotas(settings, 0);
  const ByteAccountPtr a = ledger.AccountOf("", PeerOf(1)), b = ledger.AccountOf("", PeerOf(2));
  EXPECT_TRUE(ledger.TakeTokens(a, 10, 0).ok());
  const absl::Status refused = ledger.TakeTokens(a, 5, 0);
  EXPECT_EQ(ErrorReason(refused), reason::kQuotaExceeded);
  const ErrorMetadataMap expected = {
      {"quota", "tokens-per-second"}, {"of", "caller"}, {"needed", "5"}, {"used", "10"}, {"limit", "100"},
      {"retry_after_ms", "50"}};
  EXPECT_EQ(ErrorMetadata(refused), expected);
  EXPECT_TRUE(ledger.TakeTokens(b, 10, 0).ok());
  EXPECT_TRUE(ledger.TakeTokens(a, 5, kSecond / 20).ok());
  const absl::Status never = ledger.TakeTokens(a, 11, kSecond);
  EXPECT_EQ(MetadataOf(never, "quota"), "token-burst");
  EXPECT_EQ(MetadataOf(never, "limit"), "10");
  EXPECT_EQ(MetadataOf(never, "retry_after_ms"), "none");
  EXPECT_EQ(ledger.refusals(Quota::kTokensPerSecond), 1);
  EXPECT_EQ(ledger.refusals(Quota::kTokenBurst), 1);
  ledger.GiveTokensBack(a, 5);
}

TEST(LedgerQuotas, WhatAllMayNotTakeIsNotTakenFromTheAccountEither) {
  ByteLedger ledger({});
  QuotaSettings settings = Each(Quota::kTokensPerSecond, 10);
  settings.all[Quota::kTokensPerSecond] = 12;
  ledger.SetQuotas(settings, 0);
  const ByteAccountPtr a = ledger.AccountOf("", PeerOf(1)), b = ledger.AccountOf("", PeerOf(2));
  EXPECT_TRUE(ledger.TakeTokens(a, 8, 0).ok());
  EXPECT_EQ(MetadataOf(ledger.TakeTokens(b, 8, 0), "of"), "all");
  EXPECT_TRUE(ledger.TakeTokens(b, 4, 0).ok());
  ledger.GiveTokensBack(a, 8);
  EXPECT_TRUE(ledger.TakeTokens(b, 6, 0).ok()) << "the 8 that were refused were not kept";
}

TEST(LedgerQuotas, AnAddressThatComesAndGoesHasOneBucket) {
  ByteLedger ledger({});
  ledger.SetQuotas(Each(Quota::kTokensPerSecond, 10), 0);
  EXPECT_TRUE(ledger.TakeTokens(ledger.AccountOf("x", PeerOf(1)), 10, 0).ok());
  EXPECT_FALSE(ledger.TakeTokens(ledger.AccountOf("y", PeerOf(1, 2000)), 1, 0).ok());
  for (int host = 2; host < 100; ++host) {
    EXPECT_TRUE(ledger.TakeTokens(ledger.AccountOf("z", PeerOf(host)), 1, 0).ok());
  }
  EXPECT_FALSE(ledger.TakeTokens(ledger.AccountOf("y", PeerOf(1, 3000)), 1, 0).ok());
}

TEST(LedgerQuotas, AddressesWhoseBucketsAreFullAgainAreForgotten) {
  ByteLedger ledger({});
  ledger.SetQuotas(Each(Quota::kTokensPerSecond, 10), 0);
  for (int second = 0; second < 1000; ++second) {
    const ByteAccountPtr account = ledger.AccountOf("x", StrCat("ipv4:10.1.", second / 250, ".", second % 250, ":1"));
    EXPECT_TRUE(ledger.TakeTokens(account, 5, second * kSecond).ok());
  }
  EXPECT_LE(ledger.accounts(), 130U);
}

TEST(LedgerQuotas, SeveralCallersTogetherTakeNoMoreThanTheRateAndHinderNobodyElse) {
  constexpr int64_t kRate = 500, kSeconds = 4;
  ByteLedger ledger({});
  QuotaSettings settings;
  ledger.List("greedy", 1);
  ledger.List("modest", 1);
  settings.principals["greedy"].limits[Quota::kTokensPerSecond] = kRate;
  ledger.SetQuotas(settings, 0);
  const ByteAccountPtr greedy = ledger.AccountOf("greedy", ""), modest = ledger.AccountOf("modest", "");
  std::atomic<int64_t> clock{0}, taken{0};
  std::atomic<int> modest_refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 4000; ++i) {
        if (ledger.TakeTokens(greedy, 3, clock.fetch_add(kSeconds * kSecond / 16'000)).ok()) taken += 3;
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 4000; ++i) {
      if (!ledger.TakeTokens(modest, 1000, clock.fetch_add(kSeconds * kSecond / 16'000)).ok()) ++modest_refused;
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(taken, kRate + kRate * kSeconds);
  EXPECT_GT(taken, kRate);
  EXPECT_EQ(modest_refused, 0);
}

TEST(LedgerQuotas, AnAccountSeesItsQuotasAndItsUseOfThem) {
  ByteLedger ledger({});
  QuotaSettings settings = Each(Quota::kSessions, 5);
  settings.each[Quota::kTokensPerSecond] = 100;
  settings.each[Quota::kTokenBurst] = 50;
  settings.each[Quota::kIdleTtl] = kSecond;
  ledger.SetQuotas(settings, 0);
  const ByteAccountPtr a = ledger.AccountOf("", PeerOf(1));
  const ByteCharge charge = ledger.Charge(BytePool::kSessions, a, 2);
  ASSERT_TRUE(ledger.TakeTokens(a, 30, 0).ok());
  std::string told;
  for (const ByteLedger::QuotaUse& use : ledger.QuotasOf(a, 0)) {
    StrAppend(&told, QuotaName(use.quota), " ", use.used, "/", use.limit, "; ");
  }
  EXPECT_EQ(told, "sessions 2/5; tokens-per-second 0/100; token-burst 30/50; idle-ttl 0/1000000000; ");
}

TEST(LedgerQuotas, AWeightThatChangesIsTheShareFromThenOn) {
  ByteLedger ledger({.pools = {{BytePool::kCalls, {.limit_bytes = 1200}}}});
  ledger.List("a", 1);
  ledger.List("b", 1);
  const ByteAccountPtr a = ledger.AccountOf("a", "");
  const ByteCharge charge = ledger.Charge(BytePool::kCalls, a, 400);
  EXPECT_DOUBLE_EQ(ledger.SharesHeld(BytePool::kCalls, *a), 1);
  ledger.List("a", 4);
  EXPECT_EQ(ledger.AccountOf("a", ""), a);
  EXPECT_DOUBLE_EQ(ledger.SharesHeld(BytePool::kCalls, *a), 0.5) << "4 of 6 parts are its";
  EXPECT_EQ(a->turn().weight, 4);
}

}  // namespace
}  // namespace gdn::ledger_quotas_test
