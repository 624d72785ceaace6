// Rows and relative errors of the measurements of long decodes.
//
// Thread safety: plain values. Ownership: none.
//
//   for (int64_t row = NextDriftRow(0, 5000); ...; row = NextDriftRow(done, 5000))  // 1000, 5000
//   Difference outputs;  outputs.Add(actual, exact, count);  outputs.relative();
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace gdn::bench {

inline constexpr int32_t kDriftCallTokens = 16;  // a call of T tokens gives the bits of T calls of one
inline constexpr int64_t kDriftOutputs = 1000;   // the last tokens whose outputs a row is about

// Returns the tokens of the next row after `tokens`: 1,000 or ten times as many, at most `last`.
inline int64_t NextDriftRow(int64_t tokens, int64_t last) {
  int64_t row = kDriftOutputs;
  while (row <= tokens) row *= 10;
  return std::min(row, last);
}

// Sums of squares, of differences and of what is exact.
struct Difference {
  double difference = 0;
  double whole = 0;

  template <typename Exact>
  void Add(const float* x, const Exact* exact, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const double error = double{x[i]} - double{exact[i]};
      difference += error * error;
      whole += double{exact[i]} * double{exact[i]};
    }
  }
  double relative() const { return whole > 0 ? std::sqrt(difference / whole) : 0.0; }
};

}  // namespace gdn::bench
