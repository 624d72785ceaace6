// Rows of the decay mask.

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/primitives/decay_mask/decay_mask.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

constexpr int64_t kBatch = 2;

CaseResult RunDecayMask(int32_t size, std::vector<float> g, bool mask_alone, Backend& backend) {
  OperatorCall<DecayMaskParams> call("decay_mask", {}, {.batch = kBatch, .size = size, .g_batch_stride = size});
  call.In(&DecayMaskParams::g, "g", {kBatch, size}, std::move(g))
      .Out(&DecayMaskParams::mask, "mask", {kBatch, size, size});
  if (!mask_alone) {
    call.Out(&DecayMaskParams::from_start, "from_start", {kBatch, size})
        .Out(&DecayMaskParams::to_end, "to_end", {kBatch, size});
  }
  return call.Run(backend, DecayMaskReference, DecayMaskGpu);
}

}  // namespace

void AddDecayMaskCases(std::vector<ParityCase>& cases) {
  // `outlier` is one token's decay among tokens that do not forget: a float32 running sum loses the small ones there.
  const auto add = [&cases](const char* test, int32_t size, float strongest, float outlier) {
    cases.push_back(GpuCase(
        "phases", test,
        absl::StrCat("C=", size, " g>=", strongest, outlier < 0 ? absl::StrCat(" one at ", outlier) : ""),
        kElementwiseTolerance,
        [=](Backend& backend, RandomTensor& random) {
          std::vector<float> g = random.Uniform(kBatch * size, strongest, 0.0f);
          g[size / 2] += outlier;
          return RunDecayMask(size, std::move(g), /*mask_alone=*/false, backend);
        },
        /*phase=*/4));
  };
  for (const int32_t size : {1, 4, 16}) add("decay_mask_small", size, -1.0f, 0.0f);
  add("decay_mask_64", 64, -1.0f, 0.0f);
  add("decay_mask_64", 64, -20.0f, 0.0f);
  add("decay_mask_64", 64, -0.01f, -1e4f);
  // e^{G_i} e^{-G_j} would be 0 times infinity.
  for (const int32_t size : {5, 64, 256}) {
    cases.push_back(GpuCase("shapes", "decay_mask", absl::StrCat("C=", size, " one at -1e4, one at -200"),
                            kElementwiseTolerance, [size](Backend& backend, RandomTensor&) {
                              std::vector<float> g(kBatch * size, -1e-3f);
                              g[2] = -1e4f;
                              g[size + 1] = -200.0f;
                              return RunDecayMask(size, std::move(g), /*mask_alone=*/true, backend);
                            }));
  }
}

}  // namespace gdn::parity
