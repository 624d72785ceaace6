// The reply to one scrape: values of the catalogue's metrics (server/observability/metric_catalog.h) in Prometheus'
// text form.
//
// Thread safety: for one thread. Ownership: copies what it is given; the infos are constants.
//
//   MetricPage page;
//   page.Add(metric::kTierUsedBytes, {"host"}, used);
//   return page.Text();
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>

#include "base/histogram.h"
#include "server/observability/metric_catalog.h"

namespace gdn {

class MetricPage {
 public:
  using Labels = std::initializer_list<std::string_view>;  // values, in the order of the info's labels

  // Adds a value of a counter or a gauge.
  void Add(const MetricInfo& info, Labels labels, double value);
  void Add(const MetricInfo& info, Labels labels, int64_t value) { Add(info, labels, static_cast<double>(value)); }
  // Adds a histogram. `unit` is the size of one of the counts' values in the metric's unit. An empty histogram is left
  // out.
  void Add(const MetricInfo& info, Labels labels, const HistogramCounts& counts, double unit = 1);
  // Adds a histogram of nanoseconds, in seconds.
  void AddSeconds(const MetricInfo& info, Labels labels, const HistogramCounts& counts) {
    Add(info, labels, counts, 1e-9);
  }

  std::string Text() const;

 private:
  prometheus::ClientMetric& NewMetric(const MetricInfo& info, Labels labels);

  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace gdn
