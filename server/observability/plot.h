// A small plot over the last seconds, as HTML with an SVG inside.
//
// Thread safety: a free function on a plain value.
//
//   html += RenderPlot({.title = "Waiting steps", .series = {{.name = "waiting", .values = {1, 2}}}, .seconds = 300});
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace gdn {

struct Plot {
  struct Series {
    std::string name;
    std::vector<std::optional<double>> values;  // one value a second, the newest last; nothing: a gap
  };
  std::string title;
  std::string unit;            // the values' unit, shown beside the title: "tokens/s"
  std::vector<Series> series;  // one or two
  int seconds = 300;           // seconds that the plot shows, up to now; at least the length of each series
  bool by_decades = false;     // a logarithmic axis, so that one large value leaves the others readable
};

std::string RenderPlot(const Plot& plot);

}  // namespace gdn
