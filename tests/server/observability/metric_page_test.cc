#include "server/observability/metric_page.h"

#include <regex>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn::metric_page_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricCatalog, EveryMetricHasItsUnitInItsNameAndAHelp) {
  std::set<std::string_view> names;
  for (const MetricInfo* const info : metric::kAll) {
    const std::string name(info->name);
    SCOPED_TRACE(name);
    EXPECT_TRUE(names.insert(info->name).second) << "twice";
    EXPECT_TRUE(std::regex_match(name, std::regex("gdn_[a-z_]+")));
    const bool counts = info->type == MetricType::kCounter;
    EXPECT_EQ(name.ends_with("_total"), counts);
    const std::string stem = counts ? name.substr(0, name.size() - 6) : name;
    // A count of things says what it counts; sizes and times have their unit at the end.
    const bool counts_things = counts && info->unit != "bytes" && info->unit != "seconds";
    if (!counts_things) {
      EXPECT_TRUE(stem.ends_with("_" + std::string(info->unit))) << info->unit;
    }
    EXPECT_FALSE(info->unit.empty());
    EXPECT_GT(info->help.size(), 12u);
    EXPECT_TRUE(info->help.ends_with("."));
    for (const std::string_view label : info->labels) {
      for (const char* const unbounded : {"session", "principal", "id", "peer", "address", "token", "user"}) {
        EXPECT_NE(label, unbounded);
      }
    }
  }
}

TEST(MetricPage, WritesCountersGaugesAndHistograms) {
  MetricPage page;
  page.Add(metric::kSteps, {"decode"}, int64_t{3});
  page.Add(metric::kQueuedSteps, {}, int64_t{2});
  page.Add(metric::kSteps, {"prefill"}, int64_t{4});
  LatencyHistogram latency;
  latency.Observe(15'000);
  latency.Observe(70'000'000'000);
  page.AddSeconds(metric::kQueueDuration, {"decode"}, latency.counts());
  page.AddSeconds(metric::kQueueDuration, {"prefill"}, LatencyHistogram().counts());
  RowHistogram rows;
  rows.Observe(5);
  page.Add(metric::kBatchRows, {"decode"}, rows.counts());
  const std::string text = page.Text();
  EXPECT_THAT(text, HasSubstr("# TYPE gdn_steps_total counter\ngdn_steps_total{kind=\"decode\"} 3\n"
                              "gdn_steps_total{kind=\"prefill\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE gdn_queued_steps gauge\ngdn_queued_steps 2\n"));
  EXPECT_THAT(text, HasSubstr("gdn_queue_duration_seconds_count{kind=\"decode\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("gdn_queue_duration_seconds_bucket{kind=\"decode\",le=\"1e-05\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("gdn_queue_duration_seconds_bucket{kind=\"decode\",le=\"2e-05\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("gdn_queue_duration_seconds_bucket{kind=\"decode\",le=\"50\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("gdn_queue_duration_seconds_bucket{kind=\"decode\",le=\"+Inf\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("gdn_batch_rows_bucket{kind=\"decode\",le=\"4\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("gdn_batch_rows_bucket{kind=\"decode\",le=\"8\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("{kind=\"prefill\",le"))) << "what has seen nothing is left out";
}

TEST(MetricPage, EscapesLabels) {
  MetricPage page;
  page.Add(metric::kBuildInfo, {"a\"b\\c\nd", "cpu", "n"}, int64_t{1});
  EXPECT_THAT(page.Text(), HasSubstr("version=\"a\\\"b\\\\c\\nd\""));
}

}  // namespace
}  // namespace gdn::metric_page_test
