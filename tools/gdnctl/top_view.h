// How gdnctl top shows its figures in a terminal.
//
// Thread safety: free functions on values.
//
//   absl::PrintF("%s", TopView(FiguresBetween(before, now), history, {.rows = 24, .columns = 80}));
#pragma once

#include <string>

#include "absl/types/span.h"
#include "tools/gdnctl/top_figures.h"

namespace gdn {

struct TopViewOptions {
  int rows = 24;         // lines at most; sessions get what the rest leaves
  int columns = 120;     // longer lines are cut; all columns of numbers fit in 80
  bool colours = false;  // escape sequences for headings and trouble
  bool utf8 = false;     // whether the terminal shows more than ASCII
};

// Lines: the server, its tiers, the caller's steps, the caller's busiest sessions. "-" stands for a rate over no time.
// `history` has the caller's tokens a second of the looks so far, the newest last; it is drawn as a row of bars.
std::string TopView(const TopFigures& figures, absl::Span<const double> history, const TopViewOptions& options);

// One bar a value, each as high as its part of the largest. Eight heights, or with ASCII alone four.
std::string Sparkline(absl::Span<const double> values, bool utf8);

}  // namespace gdn
