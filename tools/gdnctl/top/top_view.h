// Formats the figures of gdnctl top for a terminal.
//
// Thread safety: free functions on values.
//
//   absl::PrintF("%s", TopView(FiguresBetween(before, now), history, {.rows = 24, .columns = 80}));
#pragma once

#include <string>

#include "absl/types/span.h"
#include "tools/gdnctl/top/top_figures.h"

namespace gdn {

struct TopViewOptions {
  int rows = 24;         // most lines; sessions get the lines that the other parts leave
  int columns = 120;     // longer lines are cut; all columns of numbers fit in 80
  bool colours = false;  // escape sequences for headings and trouble
  bool utf8 = false;     // the terminal shows more than ASCII
};

// Returns lines: the server, its tiers, the caller's steps, and as many of the caller's busiest sessions as fit, at
// least one. "-": there is no rate yet. `history`: the caller's tokens per second in all samples so far, the newest
// last; it is drawn as a row of bars.
std::string TopView(const TopFigures& figures, absl::Span<const double> history, const TopViewOptions& options);

// Returns one bar for each value, scaled to the largest value; the lowest bars if that is 0. There are eight heights,
// or four in ASCII.
std::string Sparkline(absl::Span<const double> values, bool utf8);

}  // namespace gdn
