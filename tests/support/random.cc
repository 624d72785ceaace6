#include "tests/support/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gdn {

uint64_t Random::Next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double Random::NextUnit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

double Random::NextNormal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - NextUnit()));
  return radius * std::cos(2.0 * std::numbers::pi * NextUnit());
}

int32_t Random::NextInt(int32_t low, int32_t high) {
  const uint64_t range = static_cast<uint64_t>(int64_t{high} - low) + 1;
  return static_cast<int32_t>(low + static_cast<int64_t>(Next() % range));
}

std::vector<float> Random::Uniform(int64_t count, float low, float high) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::clamp(static_cast<float>(low + (double{high} - low) * NextUnit()), low, high);
  }
  return values;
}

std::vector<float> Random::Normal(int64_t count, float deviation) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(deviation * NextNormal());
  return values;
}

}  // namespace gdn
