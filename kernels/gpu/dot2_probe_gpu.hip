// Asks a device what its Dot2 computes: dot2_probe.h.
//
// Threads: one a question.

#include <cmath>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"
#include "kernels/gpu/dot2_probe.h"
#include "kernels/gpu/launch.h"
#include "kernels/gpu/runtime.h"

namespace gdn::gpu {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void Dot2ProbeKernel(const Dot2Question* questions, float* answers,
                                                            int32_t count) {
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count) answers[i] = Dot2(questions[i].a, questions[i].b, questions[i].c);
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// A linear congruential generator's upper bits: the same questions everywhere.
class Numbers {
 public:
  uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }

 private:
  uint64_t state_ = 47;
};

}  // namespace

std::vector<Dot2Question> Dot2Questions() {
  std::vector<Dot2Question> questions;
  // Zeros, ones and their neighbours, the ends of the subnormal and the normal range, an infinity, a NaN.
  constexpr uint32_t kHalves[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x1400, 0x3bff,
                                  0x3c00, 0xbc00, 0x3c01, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00};
  constexpr float kFloats[] = {0.0f,      -0.0f,     1.0f,       -1.0f,     0x1p24f,  -0x1.000002p0f,  0x1p-24f,
                               0x1p-48f,  0x1p-126f, -0x1p-127f, 0x1p-149f, 0x1p100f, 0x1.fffffep127f, INFINITY,
                               -INFINITY, NAN};
  for (const uint32_t a : kHalves) {
    for (const uint32_t b : kHalves) {
      for (const float c : kFloats) {
        questions.push_back({a, b, c});  // also without any product, so that a subnormal c is left alone
        questions.push_back({a | 0x3c000000u, b | 0xbc010000u, c});
        questions.push_back({0x3c01u | a << 16, 0x2c00u | b << 16, c});
      }
    }
  }
  Numbers numbers;
  for (int i = 0; i < 8192; ++i) {
    const uint32_t a = numbers.Next(), b = numbers.Next(), c = numbers.Next();
    // Magnitudes of the products for most of c: there roundings differ. Few halves are not finite.
    const int exponent = static_cast<int>(c >> 24) % 80 - 48;
    const float near = std::ldexp(1.0f + static_cast<float>(c & 0x7fffffu) * 0x1p-23f, exponent);
    questions.push_back({a, b, i % 8 == 7 ? dot2::FloatOf(c) : (c & 0x800000u) != 0 ? -near : near});
  }
  return questions;
}

bool AnswersLike(const Dot2Variant& variant, const Dot2Question& question, float answer) {
  const float expected = Dot2As(variant, question.a, question.b, question.c);
  return std::isnan(answer) ? std::isnan(expected) : BitsOf(answer) == BitsOf(expected);
}

std::optional<Dot2Variant> MatchDot2(const std::vector<float>& answers) {
  const std::vector<Dot2Question> questions = Dot2Questions();
  for (int number = 0; number < kDot2Variants; ++number) {
    const Dot2Variant variant = Dot2VariantOf(number);
    size_t same = 0;
    while (same < questions.size() && AnswersLike(variant, questions[same], answers[same])) ++same;
    if (same == questions.size()) return variant;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<float>> AskDot2(const Stream& stream) {
  const std::vector<Dot2Question> questions = Dot2Questions();
  std::vector<float> answers(questions.size());
  const size_t bytes = questions.size() * sizeof(Dot2Question);
  const size_t answer_bytes = answers.size() * sizeof(float);
  GDN_ASSIGN_OR_RETURN(void* const memory, DeviceMalloc(bytes + answer_bytes));
  const absl::Cleanup free = [memory] { DeviceFree(memory); };
  auto* const on_device = static_cast<Dot2Question*>(memory);
  auto* const answered = reinterpret_cast<float*>(on_device + questions.size());
  GDN_RETURN_IF_ERROR(CopyToDevice(on_device, questions.data(), bytes, stream));
  const auto count = static_cast<int32_t>(questions.size());
  GDN_RETURN_IF_ERROR(Launch("dot2_probe", Dot2ProbeKernel, {CeilDivide(count, kThreads)}, kThreads, stream,
                             static_cast<const Dot2Question*>(on_device), answered, count));
  GDN_RETURN_IF_ERROR(CopyToHost(answers.data(), answered, answer_bytes, stream));
  GDN_RETURN_IF_ERROR(SynchronizeStream(stream));
  return answers;
}

absl::StatusOr<std::optional<Dot2Variant>> ProbeDot2(const Stream& stream) {
  GDN_ASSIGN_OR_RETURN(const std::vector<float> answers, AskDot2(stream));
  return MatchDot2(answers);
}

}  // namespace gdn::gpu
