// Describes a metric: its name, type, unit, labels and help text.
//
// Thread safety: a value. Ownership: literals.
//
//   constexpr MetricInfo kSteps = {"gdn_steps_total", MetricType::kCounter, "steps", {"kind"}, "Steps taken."};
#pragma once

#include <array>
#include <string_view>

namespace gdn {

enum class MetricType { kCounter, kGauge, kHistogram };

struct MetricInfo {
  std::string_view name;
  MetricType type;
  std::string_view unit;
  std::array<std::string_view, 3> labels;
  std::string_view help;
};

}  // namespace gdn
