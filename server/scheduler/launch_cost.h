// Estimates how long a launch takes on the device, from earlier launches: a fixed part, and a part for each token.
//
// The estimate is a straight line through the measurements (least squares with forgetting). A new measurement has a
// weight of one sixteenth, so the line follows a clock that falls or a batch that grows. Until the first measurement,
// the line is the one that the constructor gets.
// Thread safety: a plain value.
//
//   LaunchCost cost(/*fixed_us=*/40, /*token_us=*/3);
//   cost.Observe(/*tokens=*/32, /*us=*/155);
//   double us = cost.Estimate(64);
#pragma once

#include <cstdint>

namespace gdn {

class LaunchCost {
 public:
  LaunchCost(double fixed_us, double token_us);

  void Observe(int64_t tokens, double us);
  bool measured() const { return measured_; }  // true after the first Observe

  double Estimate(int64_t tokens) const { return fixed_us_ + token_us_ * static_cast<double>(tokens); }
  // Returns the most tokens that take no longer than `us` by the estimate, at most 2^30; 0 if one token takes longer.
  int64_t TokensWithin(double us) const;

 private:
  void Learn(int64_t tokens, double us);

  bool measured_ = false;
  double fixed_us_;
  double token_us_;
  double weight_ = 0, sum_x_ = 0, sum_y_ = 0, sum_xx_ = 0, sum_xy_ = 0;
};

}  // namespace gdn
