#include "tools/gdn_parity/dot2_report.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/gpu/dot2_probe.h"

namespace gdn::parity {
namespace {

using gpu::AnswersLike;
using gpu::Dot2Question;
using gpu::Dot2Variant;

constexpr int kShown = 16;  // answers that differ

std::string Described(const Dot2Variant& variant) {
  constexpr const char* kRoundings[] = {"rounds after the low product, then after the high one",
                                        "rounds after the high product, then after the low one",
                                        "rounds the sum of both products, then the sum with c", "rounds once"};
  return absl::StrCat(kRoundings[static_cast<int>(variant.rounding)], "; subnormal float32 numbers ",
                      variant.flushes_floats ? "count as zero" : "are kept", ", subnormal fp16 numbers ",
                      variant.flushes_halves ? "count as zero" : "are kept");
}

}  // namespace

std::string Dot2Report(const std::vector<float>& answers) {
  const std::vector<Dot2Question> questions = gpu::Dot2Questions();
  if (const std::optional<Dot2Variant> variant = gpu::MatchDot2(answers); variant.has_value()) {
    return absl::StrCat("dot2: ", gpu::Dot2VariantName(*variant), "\n  all ", questions.size(), " answers: it ",
                        Described(*variant), "\n");
  }
  std::string report = "dot2: like no known variant; projections multiply float32 numbers instead\n";
  Dot2Variant nearest;
  ptrdiff_t most = -1;
  for (int number = 0; number < gpu::kDot2Variants; ++number) {
    const Dot2Variant variant = gpu::Dot2VariantOf(number);
    ptrdiff_t agree = 0;
    for (size_t i = 0; i < questions.size(); ++i) agree += AnswersLike(variant, questions[i], answers[i]) ? 1 : 0;
    absl::StrAppendFormat(&report, "  %-10s %d of %d answers agree\n", gpu::Dot2VariantName(variant), agree,
                          questions.size());
    if (agree > most) nearest = variant;
    most = std::max(most, agree);
  }
  absl::StrAppendFormat(&report, "  bits where it differs from %s, at most %d of them:\n",
                        gpu::Dot2VariantName(nearest), kShown);
  int shown = 0;
  for (size_t i = 0; i < questions.size() && shown < kShown; ++i) {
    const Dot2Question& q = questions[i];
    if (AnswersLike(nearest, q, answers[i])) continue;
    absl::StrAppendFormat(&report, "  a %08x b %08x c %08x: %08x, not %08x\n", q.a, q.b, std::bit_cast<uint32_t>(q.c),
                          std::bit_cast<uint32_t>(answers[i]),
                          std::bit_cast<uint32_t>(gpu::Dot2As(nearest, q.a, q.b, q.c)));
    ++shown;
  }
  return report;
}

}  // namespace gdn::parity
