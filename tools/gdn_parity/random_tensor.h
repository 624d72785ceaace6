// Random inputs of parity cases; one seed gives one sequence.
//
// Thread safety: a RandomTensor is for one thread. Ownership: plain value.
//
//   RandomTensor random(seed);
//   std::vector<float> x = random.Normal(rows * features);
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace gdn::parity {

// Scales every vector of `dim` elements to this Euclidean length.
inline void SetLengths(std::vector<float>& x, int32_t dim, float length) {
  for (auto begin = x.begin(); begin != x.end(); begin += dim) {
    const double norm = std::sqrt(std::inner_product(begin, begin + dim, begin, 0.0));
    std::for_each(begin, begin + dim, [=](float& value) { value *= static_cast<float>(length / norm); });
  }
}

class RandomTensor {
 public:
  explicit RandomTensor(uint64_t seed) : engine_(seed) {}

  std::vector<float> Normal(int64_t count, float deviation = 1.0f) {
    std::normal_distribution<float> distribution(0.0f, deviation);
    return Draw(count, distribution);
  }

  std::vector<float> Uniform(int64_t count, float low, float high) {
    std::uniform_real_distribution<float> distribution(low, high);
    return Draw(count, distribution);
  }

  // Returns `count` random vectors of `dim` elements, each of this Euclidean length.
  std::vector<float> Directions(int64_t count, int32_t dim, float length) {
    std::vector<float> x = Normal(count * dim);
    SetLengths(x, dim, length);
    return x;
  }

 private:
  template <typename Distribution>
  std::vector<float> Draw(int64_t count, Distribution& distribution) {
    std::vector<float> values(count);
    for (float& value : values) value = distribution(engine_);
    return values;
  }

  std::mt19937_64 engine_;
};

}  // namespace gdn::parity
