#include "server/admission/token_bucket.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

namespace gdn::token_bucket_test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(TokenBucket, HasNoLimitUntilOneIsSetNorOnceItIsTakenAway) {
  TokenBucket bucket;
  EXPECT_TRUE(bucket.Take(std::numeric_limits<int64_t>::max(), 0).taken);
  bucket.Limit(1, 1, 0);
  EXPECT_TRUE(bucket.Take(1, 0).taken);
  EXPECT_FALSE(bucket.Take(1, 0).taken);
  bucket.Unlimit();
  EXPECT_TRUE(bucket.Take(1'000'000, 0).taken);
  EXPECT_EQ(bucket.Left(0), TokenBucket::kNever);
}

TEST(TokenBucket, BeginsFullAndSaysToTheNanosecondWhenThereIsEnough) {
  TokenBucket bucket;
  bucket.Limit(3, 10, 5 * kSecond);
  EXPECT_TRUE(bucket.Take(10, 5 * kSecond).taken);
  const TokenBucket::Taking refused = bucket.Take(2, 5 * kSecond);
  EXPECT_FALSE(refused.taken);
  EXPECT_EQ(refused.wait_ns, 666'666'667) << "2/3 s, rounded up";
  EXPECT_EQ(refused.left, 0);
  EXPECT_FALSE(bucket.Take(2, 5 * kSecond + 666'666'666).taken) << "a nanosecond too soon";
  EXPECT_TRUE(bucket.Take(2, 5 * kSecond + 666'666'667).taken);
}

TEST(TokenBucket, LosesNoPartOfATokenHoweverOftenItIsAsked) {
  TokenBucket bucket;
  bucket.Limit(7, 7, 0);
  ASSERT_TRUE(bucket.Take(7, 0).taken);
  int64_t taken = 0;
  for (int64_t now = 0; now <= 10 * kSecond; now += 1'000'003) taken += bucket.Take(1, now).taken ? 1 : 0;
  EXPECT_EQ(taken, 69) << "10 s of 7, but for the last, which comes after the last asking";
}

TEST(TokenBucket, HoldsNoMoreThanItsBurstAndOverflowsNever) {
  TokenBucket bucket;
  bucket.Limit(kMostTokens, kMostTokens, std::numeric_limits<int64_t>::min());
  ASSERT_TRUE(bucket.Take(kMostTokens, std::numeric_limits<int64_t>::min()).taken);
  EXPECT_EQ(bucket.Left(std::numeric_limits<int64_t>::max()), kMostTokens);
  EXPECT_TRUE(bucket.Take(kMostTokens, std::numeric_limits<int64_t>::max()).taken);
  EXPECT_FALSE(bucket.Take(1, std::numeric_limits<int64_t>::max()).taken);
}

TEST(TokenBucket, MoreThanTheBurstNeverComesAndTakesNothing) {
  TokenBucket bucket;
  bucket.Limit(100, 10, 0);
  for (const int64_t tokens : {int64_t{11}, std::numeric_limits<int64_t>::max()}) {
    const TokenBucket::Taking refused = bucket.Take(tokens, 0);
    EXPECT_FALSE(refused.taken);
    EXPECT_EQ(refused.wait_ns, TokenBucket::kNever);
    EXPECT_EQ(refused.left, 10);
  }
  EXPECT_TRUE(bucket.Take(10, 0).taken);
}

TEST(TokenBucket, ATimeThatGoesBackBringsNothingAndIsNotPaidTwice) {
  TokenBucket bucket;
  bucket.Limit(1, 100, 50 * kSecond);
  ASSERT_TRUE(bucket.Take(100, 50 * kSecond).taken);
  EXPECT_FALSE(bucket.Take(1, 10 * kSecond).taken);
  EXPECT_FALSE(bucket.Take(1, 50 * kSecond).taken) << "the 40 s were there already";
  EXPECT_TRUE(bucket.Take(1, 51 * kSecond).taken);
}

TEST(TokenBucket, WhatIsGivenBackIsThereAgainUpToTheBurst) {
  TokenBucket bucket;
  bucket.Limit(1, 10, 0);
  ASSERT_TRUE(bucket.Take(6, 0).taken);
  bucket.GiveBack(4);
  EXPECT_EQ(bucket.Left(0), 8);
  bucket.GiveBack(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(bucket.Left(0), 10);
}

TEST(TokenBucket, ALowerLimitTakesAwayWhatFindsNoRoomAndAHigherOneGivesNothing) {
  TokenBucket bucket;
  bucket.Limit(10, 100, 0);
  ASSERT_TRUE(bucket.Take(50, 0).taken);
  bucket.Limit(10, 20, 0);
  EXPECT_EQ(bucket.Left(0), 20);
  bucket.Limit(1000, 1000, kSecond);
  EXPECT_EQ(bucket.Left(kSecond), 20) << "the second before was of the old limit";
  EXPECT_EQ(bucket.Left(kSecond + kSecond / 10), 120);
}

TEST(TokenBucket, ManyThreadsTakeTogetherWhatOneCould) {
  TokenBucket bucket;
  constexpr int kThreads = 4;
  constexpr int64_t kTries = 5000;
  bucket.Limit(1000, 500, 0);
  std::atomic<int64_t> taken{0}, clock{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = 0; i < kTries; ++i) {
        const int64_t now = clock.fetch_add(kSecond / 10'000);  // 2 s in all
        if (bucket.Take(1, now).taken) taken.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(taken.load(), 500 + 2 * 1000);
  EXPECT_GE(taken.load(), 500 + 2 * 1000 - kThreads) << "each may have come with an older time at the end";
}

}  // namespace
}  // namespace gdn::token_bucket_test
