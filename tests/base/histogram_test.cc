#include "base/histogram.h"

#include <array>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn::histogram_test {
namespace {

using ::testing::ElementsAre;

constexpr std::array<int64_t, 3> kBounds = {10, 20, 40};

TEST(Histogram, CountsEachValueInTheBucketOfItsBound) {
  Histogram<kBounds> histogram;
  for (const int64_t value : {0, 10, 11, 20, 21, 40, 41, 1000}) histogram.Observe(value);
  const HistogramCounts counts = histogram.counts();
  EXPECT_THAT(counts.buckets, ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(std::vector(counts.bounds.begin(), counts.bounds.end()), ElementsAre(10, 20, 40));
  EXPECT_EQ(counts.count(), 8);
  EXPECT_EQ(counts.sum, 1143);
}

TEST(Histogram, TellsWhatCameSinceAndAddsUp) {
  Histogram<kBounds> histogram, other;
  histogram.Observe(15);
  const HistogramCounts before = histogram.counts();
  histogram.Observe(5);
  other.Observe(50);
  HistogramCounts since = histogram.counts().Since(before);
  EXPECT_THAT(since.buckets, ElementsAre(1, 0, 0, 0));
  EXPECT_EQ(since.sum, 5);
  since.Add(other.counts());
  EXPECT_THAT(since.buckets, ElementsAre(1, 0, 0, 1));
  EXPECT_EQ(since.sum, 55);
  EXPECT_EQ(histogram.counts().Since({}).count(), 2);
}

TEST(Histogram, QuantilesLieWithinTheirBucket) {
  Histogram<kBounds> histogram;
  EXPECT_EQ(histogram.counts().Quantile(0.5), 0);
  for (int i = 0; i < 100; ++i) histogram.Observe(15);
  EXPECT_DOUBLE_EQ(histogram.counts().Quantile(0.5), 15);
  EXPECT_DOUBLE_EQ(histogram.counts().Quantile(1), 20);
  for (int i = 0; i < 100; ++i) histogram.Observe(1'000'000);
  EXPECT_DOUBLE_EQ(histogram.counts().Quantile(0.99), 40) << "the last bound: more is not known";
  EXPECT_DOUBLE_EQ(histogram.counts().Quantile(0.5), 20);
}

TEST(Histogram, LosesNothingBetweenThreads) {
  Histogram<kBounds> histogram;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) histogram.Observe(i % 50);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram.counts().count(), 40'000);
  EXPECT_EQ(histogram.counts().sum, 4 * 200 * (49 * 50 / 2));
}

}  // namespace
}  // namespace gdn::histogram_test
