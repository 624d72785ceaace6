#include "tools/gdnctl/error_table.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn::error_table_test {
namespace {

using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(RelativeError, IsTheNormOfTheDifferenceOverTheNorm) {
  EXPECT_DOUBLE_EQ(RelativeError({3, 4}, {3, 4}), 0);
  EXPECT_DOUBLE_EQ(RelativeError({3, 9}, {3, 4}), 1);
  EXPECT_DOUBLE_EQ(RelativeError({0, 0}, {3, 4}), 1);
  EXPECT_DOUBLE_EQ(RelativeError({30, 40, 0}, {30, 40, 25}), std::sqrt(625.0 / 3125.0));
}

TEST(RelativeError, SeesErrorsFarBelowFloatPrecisionOfTheSum) {
  std::vector<float> want(1'000'000, 1.0f);
  std::vector<float> got = want;
  got[17] += 1e-3f;
  EXPECT_NEAR(RelativeError(got, want), 1e-6, 1e-9);
}

TEST(RelativeError, IsInfiniteWhereThereIsNothingToCompareWith) {
  EXPECT_EQ(RelativeError({1e-30f}, {0}), kInf);
  EXPECT_EQ(RelativeError({0, 0}, {0, 0}), 0);
  EXPECT_EQ(RelativeError({1}, {1, 2}), kInf);
  EXPECT_EQ(RelativeError({}, {1}), kInf);
}

TEST(RelativeError, IsInfiniteForNonFiniteValues) {
  EXPECT_EQ(RelativeError({std::nanf(""), 1}, {1, 1}), kInf);
  EXPECT_EQ(RelativeError({INFINITY, 1}, {1, 1}), kInf);
  EXPECT_EQ(RelativeError({1, 1}, {std::nanf(""), 1}), kInf);
}

class ErrorTableTest : public ::testing::Test {
 protected:
  ErrorTableTest() {
    table_.Record(0, 0, 1e-7);
    table_.Record(0, 1, 2e-7);
    table_.Record(4, 0, 3.24e-7);
    table_.Record(4, 1, 1e-7);
  }
  ErrorTable table_{{0, 4}, {"prefill unary", "whole"}};
};

TEST_F(ErrorTableTest, PassesUpToTheTolerance) {
  EXPECT_TRUE(table_.Within(1e-6));
  EXPECT_TRUE(table_.Within(3.24e-7));
  EXPECT_FALSE(table_.Within(3.23e-7));
  EXPECT_EQ(table_.Verdict(1e-5), "replay ok: worst relative error 3.2e-07 over 2 layers");
  EXPECT_EQ(table_.Verdict(1e-7),
            "replay FAILED: worst relative error 3.2e-07 (layer 4, prefill unary) is above the tolerance 1.0e-07");
}

TEST_F(ErrorTableTest, KeepsTheWorstOfRepeatedRecords) {
  table_.Record(0, 1, 1e-3);
  table_.Record(0, 1, 1e-8);
  EXPECT_EQ(table_.Worst().error, 1e-3);
  EXPECT_EQ(table_.Worst().layer, 0);
  EXPECT_EQ(table_.Worst().path, "whole");
}

TEST_F(ErrorTableTest, FailsOnWhatIsNotANumber) {
  table_.Record(4, 1, std::nan(""));
  EXPECT_FALSE(table_.Within(1e30));
  EXPECT_THAT(table_.Verdict(1), HasSubstr("replay FAILED: worst relative error inf (layer 4, whole)"));
}

TEST_F(ErrorTableTest, AcceptsNoInfiniteTolerance) {
  table_.Record(4, 1, kInf);
  EXPECT_FALSE(table_.Within(kInf));
  EXPECT_FALSE(table_.Within(std::nan("")));
}

TEST(ErrorTable, ASkippedCellCountsForNothingAndIsShownSo) {
  ErrorTable table({0, 1}, {"prefill unary", "whole"});
  for (const int32_t layer : {0, 1}) table.Record(layer, 0, 1e-6);
  table.Record(0, 1, 2e-6);
  table.Skip(1, 1);
  EXPECT_TRUE(table.Within(1e-5)) << table.Format(1e-5);
  EXPECT_EQ(table.Worst().error, 2e-6);
  EXPECT_THAT(table.Format(1e-5), ::testing::HasSubstr(" - "));
  ErrorTable nothing({0}, {"whole"});
  nothing.Skip(0, 0);
  EXPECT_FALSE(nothing.Within(1e-5));
}

TEST(ErrorTable, FailsOnWhatWasNotCompared) {
  ErrorTable table({0}, {"prefill unary", "whole"});
  table.Record(0, 0, 0);
  EXPECT_FALSE(table.Within(1));
  EXPECT_EQ(table.Worst().path, "whole");
  EXPECT_THAT(table.Format(1), HasSubstr("missing!"));
  EXPECT_THAT(ErrorTable({}, {"whole"}).Verdict(1), HasSubstr("FAILED: nothing was compared"));
  EXPECT_FALSE(ErrorTable({}, {"whole"}).Within(1));
}

TEST_F(ErrorTableTest, PrintsTheWorstLastInBothDirections) {
  EXPECT_EQ(table_.Format(2e-7),
            "         prefill             \n"
            "layer      unary       whole       worst\n"
            "    0    1.0e-07     2.0e-07     2.0e-07 \n"
            "    4    3.2e-07!    1.0e-07     3.2e-07!\n"
            "worst    3.2e-07!    2.0e-07     3.2e-07!\n");
}

}  // namespace
}  // namespace gdn::error_table_test
