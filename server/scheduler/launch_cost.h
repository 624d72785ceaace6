// What a launch takes on the device, learned from what earlier ones took: a fixed part and a part for each token.
//
// A straight line through the measurements, of which each new one counts a sixteenth (least squares with forgetting),
// so that it follows a clock that falls or a batch that grows. Until there are any, the line it is made with.
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
  bool measured() const { return measured_; }  // anything was observed

  double Estimate(int64_t tokens) const { return fixed_us_ + token_us_ * static_cast<double>(tokens); }
  // The most tokens that take no longer than `us`; 0 where one would.
  int64_t TokensWithin(double us) const;

 private:
  void Learn(int64_t tokens, double us);

  bool measured_ = false;
  double fixed_us_;
  double token_us_;
  double weight_ = 0, sum_x_ = 0, sum_y_ = 0, sum_xx_ = 0, sum_xy_ = 0;
};

}  // namespace gdn
