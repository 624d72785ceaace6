// Repeatable random inputs for tests: the same seed gives the same numbers on every run.
//
// Thread safety: a Random is for one thread. Ownership: plain value.
//
//   Random random(/*seed=*/7);
//   std::vector<float> x = random.Normal(tokens * features);
//   std::vector<float> beta = random.Uniform(tokens, 0.0f, 1.0f);
#pragma once

#include <cstdint>
#include <vector>

namespace gdn {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next();                                                   // 64 uniform bits (SplitMix64)
  double NextUnit();                                                 // in [0, 1)
  double NextNormal();                                               // mean 0, deviation 1
  int32_t NextInt(int32_t low, int32_t high);                        // in [low, high]
  std::vector<float> Uniform(int64_t count, float low, float high);  // in [low, high]
  std::vector<float> Normal(int64_t count, float deviation = 1.0f);

 private:
  uint64_t state_;
};

}  // namespace gdn
