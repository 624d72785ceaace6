#include "server/scheduler/launch_cost.h"

#include <algorithm>

namespace gdn {
namespace {

constexpr double kForget = 15.0 / 16.0;

}  // namespace

LaunchCost::LaunchCost(double fixed_us, double token_us) : fixed_us_(fixed_us), token_us_(token_us) {
  Learn(1, Estimate(1));
  Learn(512, Estimate(512));
}

void LaunchCost::Observe(int64_t tokens, double us) {
  measured_ = true;
  Learn(tokens, us);
}

void LaunchCost::Learn(int64_t tokens, double us) {
  const auto x = static_cast<double>(tokens);
  for (double* sum : {&weight_, &sum_x_, &sum_y_, &sum_xx_, &sum_xy_}) *sum *= kForget;
  weight_ += 1;
  sum_x_ += x;
  sum_y_ += us;
  sum_xx_ += x * x;
  sum_xy_ += x * us;
  const double spread = sum_xx_ - sum_x_ * sum_x_ / weight_;
  // Launches of nearly equal size say nothing about the slope. It then stays, and the fixed part takes the rest.
  if (spread > 1e-3 * sum_xx_) token_us_ = std::max(0.0, (sum_xy_ - sum_x_ * sum_y_ / weight_) / spread);
  fixed_us_ = (sum_y_ - token_us_ * sum_x_) / weight_;
  if (fixed_us_ >= 0) return;
  fixed_us_ = 0;
  token_us_ = sum_xy_ / sum_xx_;  // the best line through the origin
}

int64_t LaunchCost::TokensWithin(double us) const {
  if (us <= fixed_us_) return 0;
  constexpr double kMost = 1 << 30;
  return static_cast<int64_t>(std::min(kMost, (us - fixed_us_) / std::max(token_us_, 1e-6)));
}

}  // namespace gdn
