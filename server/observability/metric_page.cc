#include "server/observability/metric_page.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

namespace gdn {
namespace {

// By MetricType.
constexpr std::array kTypes = {prometheus::MetricType::Counter, prometheus::MetricType::Gauge,
                               prometheus::MetricType::Histogram};

}  // namespace

prometheus::ClientMetric& MetricPage::NewMetric(const MetricInfo& info, Labels labels) {
  // Metrics with the same name belong to one family.
  auto family = std::ranges::find(families_, info.name, &prometheus::MetricFamily::name);
  if (family == families_.end()) {
    family = families_.emplace(family);
    family->name = info.name;
    family->help = info.help;
    family->type = kTypes[static_cast<size_t>(info.type)];
  }
  prometheus::ClientMetric& metric = family->metric.emplace_back();
  size_t i = 0;
  for (const std::string_view value : labels) {
    metric.label.push_back({.name = std::string(info.labels[i++]), .value = std::string(value)});
  }
  return metric;
}

void MetricPage::Add(const MetricInfo& info, Labels labels, double value) {
  prometheus::ClientMetric& metric = NewMetric(info, labels);
  (info.type == MetricType::kCounter ? metric.counter.value : metric.gauge.value) = value;
}

void MetricPage::Add(const MetricInfo& info, Labels labels, const HistogramCounts& counts, double unit) {
  if (counts.count() == 0) return;
  prometheus::ClientMetric::Histogram& histogram = NewMetric(info, labels).histogram;
  // Rounds once, so that a bound prints as 0.02 and not as 0.019999999999999997.
  const auto scaled = [unit](int64_t value) {
    return unit < 1 ? static_cast<double>(value) / std::round(1 / unit) : static_cast<double>(value) * unit;
  };
  for (size_t i = 0; i < counts.buckets.size(); ++i) {
    histogram.sample_count += static_cast<uint64_t>(counts.buckets[i]);
    if (i == counts.bounds.size()) break;  // the serializer adds +Inf
    histogram.bucket.push_back({.cumulative_count = histogram.sample_count, .upper_bound = scaled(counts.bounds[i])});
  }
  histogram.sample_sum = scaled(counts.sum);
}

std::string MetricPage::Text() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families_);
  return std::move(out).str();
}

}  // namespace gdn
