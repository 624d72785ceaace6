// Unit lower triangular inverses and causal solves: properties that rows of gdn_parity cannot show, namely bits,
// exact parts, values worked out by hand, and errors.

#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"

namespace gdn::triangular_solve_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kSizes[] = {1, 5, 16, 17, 24, 32, 33, 48, 63, 64};

// A is strictly lower; NaN elsewhere shows who reads it.
std::vector<float> StrictlyLower(int64_t batch, int32_t size, std::vector<float> a) {
  for (int64_t i = 0; i < batch * size; ++i) {
    for (int64_t j = i % size; j < size; ++j) a[i * size + j] = kNan;
  }
  return a;
}

class TriangularSolve : public GpuTest {
 protected:
  std::vector<float> Inverse(int64_t batch, int32_t size, const std::vector<float>& a, bool in_place) {
    float* device_a = Upload(a);
    float* inverse = in_place ? device_a : Poisoned(static_cast<int64_t>(a.size()));
    EXPECT_EQ(UnitLowerInverseGpu({.batch = batch, .size = size, .a = device_a, .inverse = inverse}, stream()),
              absl::OkStatus());
    return Download(inverse, static_cast<int64_t>(a.size()));
  }
};
GDN_ON_BACKENDS(TriangularSolve, WithGpus({}));
using UnitLowerInverse = TriangularSolve;
GDN_ON_BACKENDS(UnitLowerInverse, WithGpus({}));
using CausalSolve = TriangularSolve;
GDN_ON_BACKENDS(CausalSolve, WithGpus({}));

TEST_P(UnitLowerInverse, InPlaceAndApartGiveTheSameBits) {
  Random random(1);
  for (const int32_t size : kSizes) {
    for (const int64_t batch : {1, 3, 9}) {
      const std::vector<float> a = StrictlyLower(batch, size, random.Normal(batch * size * size, 0.3f));
      EXPECT_TRUE(BitEqual(Inverse(batch, size, a, /*in_place=*/true), Inverse(batch, size, a, /*in_place=*/false)))
          << "size " << size;
    }
  }
}

TEST_P(UnitLowerInverse, KeepsTheUnitDiagonalAndZerosAboveIt) {
  Random random(2);
  for (const int32_t size : kSizes) {
    const std::vector<float> inverse =
        Inverse(2, size, StrictlyLower(2, size, random.Normal(2 * size * size)), /*in_place=*/true);
    for (int64_t row = 0; row < 2 * size; ++row) {
      EXPECT_EQ(inverse[row * size + row % size], 1.0f) << "size " << size << " row " << row;
      for (int64_t column = row % size + 1; column < size; ++column) {
        EXPECT_EQ(inverse[row * size + column], 0.0f) << "size " << size << " row " << row;
      }
    }
  }
}

TEST_P(UnitLowerInverse, OfNothingIsTheIdentity) {
  for (const int32_t size : {16, 32, 64}) {
    const std::vector<float> inverse = Inverse(1, size, std::vector<float>(size * size), /*in_place=*/false);
    for (int32_t i = 0; i < size * size; ++i) ASSERT_EQ(inverse[i], i / size == i % size ? 1.0f : 0.0f);
  }
}

// Keys that all point one way make every entry of A the same; the inverse is 1, -beta, -beta (1 - beta), ...
TEST_P(UnitLowerInverse, HoldsForCorrelatedKeys) {
  for (const int32_t size : {16, 32, 64}) {
    for (const float beta : {0.5f, 0.999f, 1.0f, 2.0f}) {
      const std::vector<float> a = StrictlyLower(1, size, std::vector<float>(size * size, beta));
      const std::vector<float> inverse = Inverse(1, size, a, /*in_place=*/true);
      EXPECT_NEAR(inverse[2 * size], -beta * (1.0f - beta), 1e-6f) << "size " << size << " beta " << beta;
    }
  }
}

TEST_P(UnitLowerInverse, AMatrixKeepsItsBitsInAnyBatch) {
  Random random(3);
  for (const int32_t size : {16, 32, 64}) {
    const int64_t elements = int64_t{size} * size;
    const std::vector<float> a = random.Normal(7 * elements, 0.3f);
    const std::vector<float> together = Inverse(7, size, a, /*in_place=*/false);
    for (int64_t i = 0; i < 7; ++i) {
      const std::vector<float> one(a.begin() + i * elements, a.begin() + (i + 1) * elements);
      const std::vector<float> of_all(together.begin() + i * elements, together.begin() + (i + 1) * elements);
      EXPECT_TRUE(BitEqual(Inverse(1, size, one, /*in_place=*/false), of_all)) << size << " " << i;
    }
  }
}

TEST_P(UnitLowerInverse, ANanStaysInItsMatrix) {
  Random random(4);
  std::vector<float> a = random.Normal(4 * 16 * 16, 0.3f);
  a[16 * 16 + 3 * 16 + 1] = kNan;  // of the second matrix
  const std::vector<float> inverse = Inverse(4, 16, a, /*in_place=*/true);
  EXPECT_FALSE(AllFinite(absl::MakeConstSpan(inverse).subspan(256, 256)));
  EXPECT_TRUE(AllFinite(absl::MakeConstSpan(inverse).subspan(0, 256)));
  EXPECT_TRUE(AllFinite(absl::MakeConstSpan(inverse).subspan(512, 512)));
}

TEST_P(CausalSolve, InPlaceAndApartGiveTheSameBits) {
  Random random(5);
  for (const int32_t size : kSizes) {
    for (const int32_t columns : {1, 31, 32, 40, 100}) {
      const float* a = Upload(StrictlyLower(3, size, random.Normal(3 * size * size, 0.2f)));
      const std::vector<float> b = random.Normal(3 * size * columns);
      const int64_t count = static_cast<int64_t>(b.size());
      float* x = Poisoned(count);
      ASSERT_EQ(CausalSolveGpu({3, size, columns, a, Upload(b), x}, stream()), absl::OkStatus());
      float* in_place = Upload(b);
      ASSERT_EQ(CausalSolveGpu({3, size, columns, a, in_place, in_place}, stream()), absl::OkStatus());
      EXPECT_TRUE(BitEqual(Download(in_place, count), Download(x, count))) << size << " " << columns;
    }
  }
}

TEST_P(TriangularSolve, TakesAnEmptyBatchAndRefusesWhatBreaksTheContract) {
  EXPECT_TRUE(UnitLowerInverseGpu({.batch = 0, .size = 64}, stream()).ok());
  EXPECT_TRUE(CausalSolveGpu({.batch = 0, .size = 64, .columns = 1}, stream()).ok());
  EXPECT_THAT(UnitLowerInverseGpu({.batch = 1, .size = 65}, stream()), IsInvalid(""));
  EXPECT_THAT(UnitLowerInverseGpu({.batch = 1, .size = 16}, stream()), IsInvalid(""));
  EXPECT_THAT(CausalSolveGpu({.batch = 1, .size = 16, .columns = 0}, stream()), IsInvalid(""));
}

}  // namespace
}  // namespace gdn::triangular_solve_test
