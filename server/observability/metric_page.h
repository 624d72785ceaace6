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

  // Adds one sample to the page: the present value of a counter or a gauge with these label values, at most as many as
  // the info has labels. Call once for each set of label values; values are not summed.
  void Add(const MetricInfo& info, Labels labels, double value);
  void Add(const MetricInfo& info, Labels labels, int64_t value) { Add(info, labels, static_cast<double>(value)); }
  // Adds the counts of a histogram with these label values. `unit`: one unit of the counted values in the metric's unit
  // (1e-9 if nanoseconds are counted and the metric is in seconds). An empty histogram is left out.
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
