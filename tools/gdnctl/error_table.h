// Relative errors of a replay, by layer and path, and the verdict over them.
//
// Thread safety: for one thread at a time. Ownership: plain values.
//
//   ErrorTable table({0, 1, 2}, {"prefill unary", "whole"});
//   table.Record(1, 0, RelativeError(got, want));
//   std::cout << table.Format(1e-5) << table.Verdict(1e-5) << "\n";
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace gdn {

// ||got - want|| / ||want|| in the Euclidean norm, summed in float64. 0 where both are zero; infinity where only `want`
// is zero, where any difference is not finite, or where the sizes differ.
double RelativeError(absl::Span<const float> got, absl::Span<const float> want);

class ErrorTable {
 public:
  // One row for each of `layers`, one column for each of `paths`; every cell begins as "not compared", which no
  // tolerance accepts.
  ErrorTable(std::vector<int32_t> layers, std::vector<std::string> paths);

  // Keeps the larger error where a cell is recorded more than once. `layer` must be one of the layers, `path` an index
  // of the paths.
  void Record(int32_t layer, size_t path, double error);

  // Says that there is nothing to compare a cell with: it is shown as "-" and counts for nothing.
  void Skip(int32_t layer, size_t path);

  struct Cell {
    int32_t layer = 0;
    std::string path;
    double error = 0;  // infinity where it was not compared
  };
  // The largest error; the first in row order among equals.
  Cell Worst() const;

  // Whether every cell that was not skipped was compared and is at most `tolerance`.
  bool Within(double tolerance) const;

  // A header, a line a layer and a last line and column with the worst of each; what is above `tolerance` is marked
  // '!'.
  std::string Format(double tolerance) const;

  // "replay ok: worst relative error 3.2e-07 over 3 layers", or "replay FAILED: ..." naming the worst cell.
  std::string Verdict(double tolerance) const;

 private:
  std::vector<int32_t> layers_;
  std::vector<std::string> paths_;
  std::vector<double> errors_;  // [layers, paths]; negative: not compared, or skipped
};

}  // namespace gdn
