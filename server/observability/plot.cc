#include "server/observability/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "base/string_cat.h"
#include "server/observability/html.h"

namespace gdn {
namespace {

// Height of the drawing in its own units. The page stretches it.
constexpr double kHeight = 100;

// A vertical axis: converts values to heights, and says which values are written beside it.
class Axis {
 public:
  explicit Axis(const Plot& plot) : by_decades_(plot.by_decades) {
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (const Plot::Series& series : plot.series) {
      for (const auto& value : series.values) {
        if (value.value_or(0) <= 0) continue;
        most = std::max(most, *value);
        least = std::min(least, *value);
      }
    }
    if (most <= 0) return;
    if (!by_decades_) {
      top_ = RoundAbove(most);
      return;
    }
    const double low = std::floor(std::log10(least));
    const double high = std::max(low + 1, std::ceil(std::log10(most)));
    bottom_ = std::pow(10, low);
    top_ = std::pow(10, high);
  }

  double top() const { return top_; }
  // Distance from the upper edge. A value below a logarithmic axis is drawn at its bottom.
  double Height(double value) const {
    const double part =
        by_decades_ ? std::log10(std::max(value, bottom_) / bottom_) / std::log10(top_ / bottom_) : value / top_;
    return kHeight - kHeight * part;
  }
  // Values beside the axis, from the top down: decades, or the whole, half of it and zero.
  std::vector<double> Ticks() const {
    if (!by_decades_) return {top_, top_ / 2, 0};
    std::vector<double> ticks;
    for (double tick = top_; tick > bottom_ / 2; tick /= 10) ticks.push_back(tick);
    return ticks;
  }

 private:
  static double RoundAbove(double most) {
    const double power = std::pow(10, std::floor(std::log10(most)));
    for (const double step : {1.0, 2.0, 5.0}) {
      if (most <= step * power) return step * power;
    }
    return 10 * power;
  }

  const bool by_decades_;
  double bottom_ = 0.1;
  double top_ = 1;
};

std::string PathOf(const Plot& plot, const Plot::Series& series, const Axis& axis) {
  std::string path;
  bool drawing = false;
  const double first = plot.seconds - static_cast<double>(series.values.size());
  for (size_t i = 0; i < series.values.size(); ++i) {
    if (!series.values[i].has_value()) {
      drawing = false;
      continue;
    }
    const double x = first + static_cast<double>(i);
    const double y = axis.Height(*series.values[i]);
    // A single point is a line of length 0, which its round ends make visible.
    absl::StrAppendFormat(&path, "%c%.0f %.1f%s", drawing ? 'L' : 'M', x, y, drawing ? "" : "h0");
    drawing = true;
  }
  return path;
}

// The values as text, for the script that shows the value under the pointer: "1,,13.5".
std::string ValuesOf(const Plot::Series& series) {
  std::string text;
  for (size_t i = 0; i < series.values.size(); ++i) {
    if (i > 0) text += ',';
    if (series.values[i].has_value()) absl::StrAppendFormat(&text, "%.4g", *series.values[i]);
  }
  return text;
}

std::optional<double> Last(const Plot::Series& series) {
  return series.values.empty() ? std::nullopt : series.values.back();
}

}  // namespace

std::string RenderPlot(const Plot& plot) {
  const Axis axis(plot);
  std::string legend, lines, spoken, grid, ticks;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Plot::Series& series = plot.series[i];
    const std::string last = Last(series).has_value() ? ShowNumber(*Last(series)) : "–";
    const std::string name = EscapeHtml(series.name);
    StrAppend(&legend, "<span class=\"key\"><i class=\"c", i, "\"></i>", name, " <b>", last, "</b></span>");
    StrAppend(&lines, "<path class=\"line c", i, "\" data-name=\"", name, "\" data-values=\"", ValuesOf(series),
              "\" d=\"", PathOf(plot, series, axis), "\"/>");
    StrAppend(&spoken, i == 0 ? "" : ", ", name, " now ", last);
  }
  for (const double tick : axis.Ticks()) {
    const auto at = std::lround(axis.Height(tick));
    StrAppend(&grid, "M0 ", at, "H", plot.seconds);
    StrAppend(&ticks, "<span class=\"tick\" style=\"top:", at, "%\">", ShowNumber(tick), "</span>");
  }
  const std::string title = EscapeHtml(plot.title);
  const std::string unit = EscapeHtml(plot.unit);
  return StrCat(
      "<figure class=\"plot\"><figcaption><h3>", title, " <small>", unit, "</small></h3><p>", legend,
      "</p></figcaption><div class=\"area\" data-seconds=\"", plot.seconds, "\">", ticks, "<svg viewBox=\"0 0 ",
      plot.seconds, " ", kHeight, "\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"", title, ", ", unit, ": ",
      spoken, ", axis to ", ShowNumber(axis.top()), "\"><path class=\"grid\" d=\"", grid, "\"/>", lines,
      "</svg></div><p class=\"axis\"><span>", plot.seconds / 60, " min ago</span><span>now</span></p></figure>");
}

}  // namespace gdn
