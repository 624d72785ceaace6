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

// Returns ||got - want|| / ||want|| in the Euclidean norm, summed in float64. 0 if both are zero. Infinity if only
// `want` is zero, a difference is not finite, or the sizes differ.
double RelativeError(absl::Span<const float> got, absl::Span<const float> want);

class ErrorTable {
 public:
  // One row for each of `layers`, one column for each of `paths`; every cell begins as "not compared", which no
  // tolerance accepts.
  ErrorTable(std::vector<int32_t> layers, std::vector<std::string> paths);

  // Records an error; if the cell has one already, keeps the larger. `layer` must be one of the layers, `path` an index
  // of the paths.
  void Record(int32_t layer, size_t path, double error);

  // Marks a cell that cannot be compared: it is shown as "-" and does not count.
  void Skip(int32_t layer, size_t path);

  struct Cell {
    int32_t layer = 0;
    std::string path;
    double error = 0;  // infinity if the cell was not compared
  };
  // Returns the cell with the largest error; the first in row order if several are equal. If all cells were skipped,
  // layer is -1 and the error is infinite.
  Cell Worst() const;

  // True if every cell that was not skipped was compared, with an error of at most `tolerance`, and not all were
  // skipped. False for an infinite tolerance.
  bool Within(double tolerance) const;

  // Returns a header, a line for each layer, and a last line and column with maxima. Errors above `tolerance` are
  // marked '!'.
  std::string Format(double tolerance) const;

  // Returns "replay ok: worst relative error 3.2e-07 over 3 layers", or "replay FAILED: ..." with the worst cell.
  std::string Verdict(double tolerance) const;

 private:
  std::vector<int32_t> layers_;
  std::vector<std::string> paths_;
  std::vector<double> errors_;  // [layers, paths]; negative: not compared, or skipped
};

}  // namespace gdn
