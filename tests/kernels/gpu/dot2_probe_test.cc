// Variants of Dot2, and what a backend does about a device's.

#include "kernels/gpu/dot2_probe.h"

#include <cmath>
#include <cstring>

#include "gmock/gmock.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/runtime.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/kernels/narrow_problem.h"
#include "tests/kernels/quantized_problem.h"
#include "tests/support/compare.h"

namespace gdn::gpu {
namespace {

using Dot2Function = float (*)(uint32_t a, uint32_t b, float c);

// Makes the host executor's Dot2 another function.
class WithDot2 {
 public:
  explicit WithDot2(Dot2Function function) { simt::host_dot2 = function; }
  ~WithDot2() { simt::host_dot2 = simt::HostDot2; }
};

template <int kNumber>
float AsVariant(uint32_t a, uint32_t b, float c) {
  return Dot2As(Dot2VariantOf(kNumber), a, b, c);
}
template <int... kNumbers>
std::vector<Dot2Function> Variants(std::integer_sequence<int, kNumbers...>) {
  return {AsVariant<kNumbers>...};
}
std::vector<Dot2Function> Variants() { return Variants(std::make_integer_sequence<int, kDot2Variants>()); }

// The executor's, counted.
int64_t dot2_calls = 0;
float Counting(uint32_t a, uint32_t b, float c) { return ++dot2_calls, simt::HostDot2(a, b, c); }

// No variant: the sum's last bit is cut.
float Truncating(uint32_t a, uint32_t b, float c) { return BitsToFloat(FloatToBits(simt::HostDot2(a, b, c)) & ~1u); }

std::vector<float> AnswersOf(Dot2Function function) {
  std::vector<float> answers;
  for (const Dot2Question& question : Dot2Questions()) answers.push_back(function(question.a, question.b, question.c));
  return answers;
}

TEST(Dot2, EachVariantAnswersUnlikeAllOthers) {
  const std::vector<Dot2Function> variants = Variants();
  for (int number = 0; number < kDot2Variants; ++number) {
    const std::optional<Dot2Variant> match = MatchDot2(AnswersOf(variants[number]));
    ASSERT_TRUE(match.has_value()) << number;
    EXPECT_EQ(Dot2VariantName(*match), Dot2VariantName(Dot2VariantOf(number)));
  }
  EXPECT_EQ(MatchDot2(AnswersOf(Truncating)), std::nullopt);
}

TEST(Dot2, VariantsThatRoundAfterEachProductAreMultiplyAdds) {
  for (const Dot2Question& q : Dot2Questions()) {
    const auto half = [](uint32_t bits) { return FromF16(static_cast<uint16_t>(bits)); };
    const float low = std::fma(half(q.a), half(q.b), q.c);
    const float both = std::fma(half(q.a >> 16), half(q.b >> 16), low);
    const float dot2 = Dot2As({Dot2Rounding::kLowFirst}, q.a, q.b, q.c);
    EXPECT_TRUE(std::isnan(both) ? std::isnan(dot2) : FloatToBits(dot2) == FloatToBits(both)) << q.a << " " << q.b;
    const float once = Dot2As({Dot2Rounding::kOnce}, q.a & 0xffffu, q.b & 0xffffu, q.c);
    const float same = std::fma(half(q.a), half(q.b), q.c) + 0.0f;  // the other product is zero
    EXPECT_TRUE(std::isnan(same) ? std::isnan(once) : once == same) << q.a << " " << q.b;
  }
}

TEST(Dot2, OneRoundingIsThatOfTheExactSum) {
  const auto once = [](float a_low, float b_low, float a_high, float b_high, float c) {
    const uint32_t a = ToF16(a_low) | uint32_t{ToF16(a_high)} << 16, b = ToF16(b_low) | uint32_t{ToF16(b_high)} << 16;
    return Dot2As({Dot2Rounding::kOnce}, a, b, c);
  };
  EXPECT_EQ(once(1, 1, 0x1p-24f, 1, 0x1p-12f), 1.0f + 0x1p-12f);        // a tie, to even
  EXPECT_EQ(once(1, 1, 0x1p-24f, 1, 0x1p-100f), 1.0f + 0x1p-23f);       // above it by nearly nothing
  EXPECT_EQ(once(1, 1, 0x1p-24f, 1, -0x1p-100f), 1.0f);                 // below it
  EXPECT_EQ(once(1024, 1024, 0x1p-24f, 0x1p-24f, -0x1p20f), 0x1p-48f);  // what cancellation leaves
  EXPECT_EQ(once(0x1p-24f, 0x1p-24f, 1, 0, 0x1p100f), 0x1p100f);
}

TEST(Dot2, TheExecutorIsAskedLikeADevice) {
  const Stream stream = *MakeStream(0);
  EXPECT_EQ(*ProbeDot2(stream), simt::kHostDot2);
  {
    const WithDot2 truncating(Truncating);
    EXPECT_EQ(*ProbeDot2(stream), std::nullopt);
  }
  DestroyStream(stream);
}

TEST(Dot2, ABackendTakesItOnlyFromADeviceThatHasProvenIt) {
  const auto proven = *MakeGpuBackend({.math = ProductMath::kHalf});
  EXPECT_TRUE(proven->info().takes_halves);
  EXPECT_THAT(proven->info().numerics_id, testing::EndsWith("-half-dot2lowf"));
  const WithDot2 truncating(Truncating);
  const auto unknown = *MakeGpuBackend({.math = ProductMath::kHalf});
  EXPECT_FALSE(unknown->info().takes_halves);
  EXPECT_THAT(unknown->info().numerics_id, testing::EndsWith("-half-fma"));
}

TEST(Dot2, ExactProductsTakeItForNarrowInputsAndWeightsThatFit) {
  const WithDot2 counting(Counting);
  const auto backend = *MakeGpuBackend({.matrix_units = false});
  EXPECT_TRUE(backend->info().takes_halves);
  EXPECT_THAT(backend->info().numerics_id, testing::EndsWith("-dot2lowf"));
  EXPECT_EQ(backend->info().numerics_id.find("-half"), std::string::npos);
  for (const bool fits : {true, false}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int64_t rows : {1, 8, 9, 33}) {
        NarrowProblem problem(WeightFormat::kBF16, rows, /*outputs=*/21, /*features=*/200, dtype);
        if (!fits) problem.SetWeight(7, 0x1p-40f);
        dot2_calls = 0;
        EXPECT_LE(RelativeNormError(Project(problem.params, *backend), Expected(problem.params)), kTolerance);
        EXPECT_EQ(dot2_calls > 0, fits && dtype != DType::kF32) << DTypeName(dtype) << ", " << rows << " rows";
      }
    }
  }
  for (const WeightFormat format : kWeightFormats) {
    if (IsPlain(format)) continue;
    EXPECT_EQ(backend->info().IntegerHalvesFor(format), HasHalfProducts(format));
    for (const int64_t rows : {1, 4, 8, 9}) {
      NarrowProblem problem(format, rows, /*outputs=*/21, /*features=*/256);
      dot2_calls = 0;
      EXPECT_LE(RelativeNormError(Project(problem.params, *backend), Expected(problem.params)), kTolerance);
      EXPECT_EQ(dot2_calls > 0, HasHalfProducts(format)) << WeightFormatName(format) << ", " << rows << " rows";
    }
  }
  const WithDot2 truncating(Truncating);
  const auto unknown = *MakeGpuBackend({.matrix_units = false});
  EXPECT_FALSE(unknown->info().takes_halves);
  EXPECT_FALSE(unknown->info().IntegerHalvesFor(WeightFormat::kQ8_0));
  EXPECT_EQ(unknown->info().numerics_id.find("-dot2"), std::string::npos);
}

TEST(Dot2, ProjectionsMatchTheReferenceWithEveryVariant) {
  for (const Dot2Function variant : Variants()) {
    const WithDot2 with(variant);
    const auto exact = *MakeGpuBackend({.matrix_units = false});
    const auto backend = *MakeGpuBackend({.math = ProductMath::kHalf});
    for (const int64_t rows : {3, 20}) {
      for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kQ8_0, WeightFormat::kQ4_K}) {
        NarrowProblem narrow(format, rows, /*outputs=*/21, /*features=*/256);
        EXPECT_LE(RelativeNormError(Project(narrow.params, *exact), Expected(narrow.params)), kTolerance)
            << exact->info().numerics_id << " " << WeightFormatName(format);
      }
      Problem problem(WeightFormat::kBF16, rows, /*outputs=*/21, /*features=*/200);
      const std::vector<float> scales = RowScalesOf(problem.params.weight, ProductMath::kHalf);
      problem.params.weight.scales = scales.data();
      problem.params.math = ProductMath::kHalf;
      EXPECT_LE(RelativeNormError(Project(problem.params, *backend), Expected(problem.params)), kTolerance)
          << backend->info().numerics_id;
    }
  }
}

}  // namespace
}  // namespace gdn::gpu
