// Rows of the masks and the identities.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/primitives/masks/masks.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

struct TrilShape {
  int64_t rows, cols, diagonal;
};

std::string Name(const TrilShape& s) { return absl::StrCat(s.rows, "x", s.cols, " diagonal=", s.diagonal); }

// Random matrices whose masked part is NaN: a mask that multiplies would let it through.
std::vector<float> MaskedMatrices(int64_t batch, const TrilShape& s, RandomTensor& random) {
  std::vector<float> x = random.Normal(batch * s.rows * s.cols);
  for (int64_t at = 0; at < batch * s.rows * s.cols; ++at) {
    if (at % s.cols > at / s.cols % s.rows + s.diagonal) x[at] = std::numeric_limits<float>::quiet_NaN();
  }
  return x;
}

CaseResult RunTril(int64_t batch, const TrilShape& s, bool in_place, Backend& backend, RandomTensor& random) {
  return OperatorCall<TrilParams>("tril", {{"diagonal", absl::StrCat(s.diagonal)}},
                                  {.batch = batch, .rows = s.rows, .cols = s.cols, .diagonal = s.diagonal})
      .InPlaceIf(in_place, &TrilParams::x, &TrilParams::y, "x", "y", {batch, s.rows, s.cols},
                 MaskedMatrices(batch, s, random))
      .Run(backend, TrilReference, TrilGpu);
}

CaseResult RunEye(int64_t rows, int64_t cols, Backend& backend, RandomTensor&) {
  constexpr int64_t kBatch = 2;
  return OperatorCall<IdentityParams>("eye", {}, {.batch = kBatch, .rows = rows, .cols = cols})
      .Out(&IdentityParams::y, "y", {kBatch, rows, cols})
      .Run(backend, IdentityReference, IdentityGpu);
}

// Of strictly lower matrices: the diagonal is 1 with either sign.
CaseResult RunApplyIdentity(float sign, Backend& backend, RandomTensor& random) {
  constexpr int64_t kBatch = 3;
  constexpr int64_t kSize = 70;
  std::vector<float> x = random.Normal(kBatch * kSize * kSize);
  for (int64_t at = 0; at < kBatch * kSize * kSize; ++at) {
    if (at % kSize >= at / kSize % kSize) x[at] = 0.0f;
  }
  return OperatorCall<IdentityParams>("apply_identity", {{"sign", absl::StrCat(sign)}},
                                      {.batch = kBatch, .rows = kSize, .cols = kSize, .sign = sign})
      .InPlaceIf(true, &IdentityParams::x, &IdentityParams::y, "x", "y", {kBatch, kSize, kSize}, x)
      .Run(backend, IdentityReference, IdentityGpu);
}

}  // namespace

void AddMasksCases(std::vector<ParityCase>& cases) {
  for (const TrilShape& s : {TrilShape{16, 16, 0}, TrilShape{64, 64, -1}, TrilShape{33, 65, 1}, TrilShape{40, 24, 3},
                             TrilShape{9, 70, -4}}) {
    cases.push_back(GpuCase("phases", "tril", Name(s), kExact, std::bind_front(RunTril, 3, s, /*in_place=*/false),
                            /*phase=*/2));
  }
  for (const int64_t size : {16, 33, 64, 130}) {
    cases.push_back(GpuCase("phases", "causal_mask", absl::StrCat("C=", size), kExact,
                            std::bind_front(RunTril, 3, TrilShape{size, size, -1}, /*in_place=*/false), 2));
    cases.push_back(GpuCase("phases", "eye", absl::StrCat(size, "x", size + 7), kExact,
                            std::bind_front(RunEye, size, size + 7), 2));
  }
  for (const int64_t diagonal : {-70, -3, -1, 0, 2, 70}) {
    const TrilShape s{33, 66, diagonal};
    cases.push_back(GpuCase("shapes", "tril", absl::StrCat(Name(s), " in place"), kExact,
                            std::bind_front(RunTril, 2, s, /*in_place=*/true)));
  }
  for (const float sign : {1.0f, -1.0f}) {
    cases.push_back(GpuCase("shapes", "apply_identity", absl::StrCat("70x70 batch=3 sign=", sign), kExact,
                            std::bind_front(RunApplyIdentity, sign)));
  }
}

}  // namespace gdn::parity
