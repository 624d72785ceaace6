// Describes a metric: its name, type, unit, labels and help text.
//
// Thread safety: a value. Ownership: literals.
//
//   constexpr MetricInfo kSteps = metric::Counter("gdn_steps_total", "steps", {"kind"}, "Steps taken.");
#pragma once

#include <array>
#include <string_view>

namespace gdn {

enum class MetricType { kCounter, kGauge, kHistogram };

using MetricLabels = std::array<std::string_view, 3>;

struct MetricInfo {
  std::string_view name;
  MetricType type;
  std::string_view unit;
  MetricLabels labels;
  std::string_view help;
};

namespace metric {

constexpr MetricInfo Counter(std::string_view name, std::string_view unit, const MetricLabels& labels,
                             std::string_view help) {
  return {name, MetricType::kCounter, unit, labels, help};
}
constexpr MetricInfo Gauge(std::string_view name, std::string_view unit, const MetricLabels& labels,
                           std::string_view help) {
  return {name, MetricType::kGauge, unit, labels, help};
}
constexpr MetricInfo Histogram(std::string_view name, std::string_view unit, const MetricLabels& labels,
                               std::string_view help) {
  return {name, MetricType::kHistogram, unit, labels, help};
}

}  // namespace metric
}  // namespace gdn
