#include "server/observability/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/string_cat.h"
#include "server/observability/html.h"

namespace gdn {
namespace {

// The drawing's own units; the page stretches it.
constexpr double kHeight = 100;

// A round number above all values.
double Top(const Plot& plot) {
  double most = 0;
  for (const Plot::Series& series : plot.series) {
    for (const auto& value : series.values) most = std::max(most, value.value_or(0));
  }
  if (most <= 0) return 1;
  const double power = std::pow(10, std::floor(std::log10(most)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (most <= step * power) return step * power;
  }
  return 10 * power;
}

std::string PathOf(const Plot& plot, const Plot::Series& series, double top) {
  std::string path;
  bool drawing = false;
  const double first = plot.seconds - static_cast<double>(series.values.size());
  for (size_t i = 0; i < series.values.size(); ++i) {
    if (!series.values[i].has_value()) {
      drawing = false;
      continue;
    }
    const double x = first + static_cast<double>(i);
    const double y = kHeight - kHeight * *series.values[i] / top;
    std::array<char, 96> point;
    // A point alone is a line of no length, which has round ends.
    std::snprintf(point.data(), point.size(), drawing ? "L%.0f %.1f" : "M%.0f %.1fh0", x, y);
    path += point.data();
    drawing = true;
  }
  return path;
}

std::optional<double> Last(const Plot::Series& series) {
  return series.values.empty() ? std::nullopt : series.values.back();
}

}  // namespace

std::string RenderPlot(const Plot& plot) {
  const double top = Top(plot);
  std::string legend, lines, spoken;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Plot::Series& series = plot.series[i];
    const std::string last = Last(series).has_value() ? ShowNumber(*Last(series)) : "–";
    const std::string name = EscapeHtml(series.name);
    StrAppend(&legend, "<span class=\"key\"><i class=\"c", i, "\"></i>", name, " <b>", last, "</b></span>");
    StrAppend(&lines, "<path class=\"line c", i, "\" d=\"", PathOf(plot, series, top), "\"/>");
    StrAppend(&spoken, i == 0 ? "" : ", ", name, " now ", last);
  }
  const std::string title = EscapeHtml(plot.title);
  const std::string unit = EscapeHtml(plot.unit);
  return StrCat("<figure class=\"plot\"><figcaption><h3>", title, " <small>", unit, "</small></h3><p>", legend,
                "</p></figcaption><div class=\"area\"><span class=\"top\">", ShowNumber(top),
                "</span><svg viewBox=\"0 0 ", plot.seconds, " ", kHeight,
                "\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"", title, ", ", unit, ": ", spoken,
                ", axis to ", ShowNumber(top), "\"><path class=\"grid\" d=\"M0 0H", plot.seconds, "M0 50H",
                plot.seconds, "M0 100H", plot.seconds, "\"/>", lines, "</svg></div><p class=\"axis\"><span>",
                plot.seconds / 60, " min ago</span><span>now</span></p></figure>");
}

}  // namespace gdn
