// Rows of the transpose.

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/primitives/transpose/transpose.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {

void AddTransposeCases(std::vector<ParityCase>& cases) {
  struct Matrices {
    int64_t rows, cols, batch = 1;
  };
  // Swapped grid dimensions leave part of a tall or wide matrix unwritten, which is poisoned.
  for (const Matrices& s :
       {Matrices{200, 5}, Matrices{5, 200}, Matrices{32, 96}, Matrices{96, 32}, Matrices{33, 65}, Matrices{1, 70},
        Matrices{70, 1}, Matrices{64, 64}, Matrices{40, 24, 5}, Matrices{24, 40, 5}}) {
    cases.push_back(GpuCase(
        "shapes", "transpose", absl::StrCat(s.rows, "x", s.cols, " batch=", s.batch), kExact,
        [s](Backend& backend, RandomTensor& random) {
          return OperatorCall<TransposeParams>("transpose", {}, {.batch = s.batch, .rows = s.rows, .cols = s.cols})
              .In(&TransposeParams::x, "x", {s.batch, s.rows, s.cols}, random.Normal(s.batch * s.rows * s.cols))
              .Out(&TransposeParams::y, "y", {s.batch, s.cols, s.rows})
              .Run(backend, TransposeReference, TransposeGpu);
        }));
  }
}

}  // namespace gdn::parity
