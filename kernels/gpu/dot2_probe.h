// Asks a device what its Dot2 computes, and compares the answers with the variants of dot2.h.
//
// The questions are known numbers: ties and near ties of rounding, subnormal numbers, infinities and NaN, and random
// numbers of all magnitudes. Each two variants differ on some of them.
// Thread safety: as gpu/stream.h; waits for the stream. Ownership: none.
//
//   GDN_ASSIGN_OR_RETURN(const std::optional<Dot2Variant> variant, ProbeDot2(stream));
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gpu/dot2.h"
#include "kernels/gpu/stream.h"

namespace gdn::gpu {

struct Dot2Question {
  uint32_t a, b;
  float c;
};
std::vector<Dot2Question> Dot2Questions();

// True if the variant answers the question so, bit for bit (a NaN for a NaN).
bool AnswersLike(const Dot2Variant& variant, const Dot2Question& question, float answer);
// Returns the variant that gives these answers to Dot2Questions(); nullopt if none does.
std::optional<Dot2Variant> MatchDot2(const std::vector<float>& answers);

// Returns the device's answers to Dot2Questions().
absl::StatusOr<std::vector<float>> AskDot2(const Stream& stream);
// Returns the variant that answers like the device; nullopt if none does.
absl::StatusOr<std::optional<Dot2Variant>> ProbeDot2(const Stream& stream);

}  // namespace gdn::gpu
