// Rows of the masks and the identities.

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
  const std::vector<int64_t> shape{batch, s.rows, s.cols};
  OperatorCall<TrilParams> call("tril", {{"diagonal", absl::StrCat(s.diagonal)}},
                                {.batch = batch, .rows = s.rows, .cols = s.cols, .diagonal = s.diagonal});
  if (in_place) {
    call.InPlace(&TrilParams::x, &TrilParams::y, "x", "y", shape, MaskedMatrices(batch, s, random));
  } else {
    call.In(&TrilParams::x, "x", shape, MaskedMatrices(batch, s, random)).Out(&TrilParams::y, "y", shape);
  }
  return call.Run(backend, TrilReference, TrilGpu);
}

CaseResult RunCausalMask(int64_t size, Backend& backend, RandomTensor& random) {
  constexpr int64_t kBatch = 3;
  return OperatorCall<CausalMaskParams>("tril", {{"diagonal", "-1"}}, {.batch = kBatch, .size = size})
      .In(&CausalMaskParams::x, "x", {kBatch, size, size}, MaskedMatrices(kBatch, {size, size, -1}, random))
      .Out(&CausalMaskParams::y, "y", {kBatch, size, size})
      .Run(backend, CausalMaskReference, CausalMaskGpu);
}

CaseResult RunEye(int64_t rows, int64_t cols, Backend& backend) {
  constexpr int64_t kBatch = 2;
  return OperatorCall<EyeParams>("eye", {}, {.batch = kBatch, .rows = rows, .cols = cols})
      .Out(&EyeParams::y, "y", {kBatch, rows, cols})
      .Run(backend, EyeReference, EyeGpu);
}

// Of strictly lower matrices: the diagonal is 1 with either sign.
CaseResult RunApplyIdentity(float sign, Backend& backend, RandomTensor& random) {
  constexpr int64_t kBatch = 3;
  constexpr int64_t kSize = 70;
  std::vector<float> x = random.Normal(kBatch * kSize * kSize);
  for (int64_t at = 0; at < kBatch * kSize * kSize; ++at) {
    if (at % kSize >= at / kSize % kSize) x[at] = 0.0f;
  }
  return OperatorCall<ApplyIdentityParams>("apply_identity", {{"sign", absl::StrCat(sign)}},
                                           {.batch = kBatch, .size = kSize, .sign = sign})
      .InPlace(&ApplyIdentityParams::x, &ApplyIdentityParams::y, "x", "y", {kBatch, kSize, kSize}, x)
      .Run(backend, ApplyIdentityReference, ApplyIdentityGpu);
}

}  // namespace

void AddMasksCases(std::vector<ParityCase>& cases) {
  for (const TrilShape& s : {TrilShape{16, 16, 0}, TrilShape{64, 64, -1}, TrilShape{33, 65, 1}, TrilShape{40, 24, 3},
                             TrilShape{9, 70, -4}}) {
    cases.push_back(GpuCase(
        "phases", "tril", Name(s), kExact,
        [s](Backend& backend, RandomTensor& random) { return RunTril(3, s, /*in_place=*/false, backend, random); },
        /*phase=*/2));
  }
  for (const int64_t size : {16, 33, 64, 130}) {
    cases.push_back(GpuCase(
        "phases", "causal_mask", absl::StrCat("C=", size), kExact,
        [size](Backend& backend, RandomTensor& random) { return RunCausalMask(size, backend, random); }, 2));
    cases.push_back(GpuCase(
        "phases", "eye", absl::StrCat(size, "x", size + 7), kExact,
        [size](Backend& backend, RandomTensor&) { return RunEye(size, size + 7, backend); }, 2));
  }
  for (const int64_t diagonal : {-70, -3, -1, 0, 2, 70}) {
    const TrilShape s{33, 66, diagonal};
    cases.push_back(
        GpuCase("shapes", "tril", absl::StrCat(Name(s), " in place"), kExact,
                [s](Backend& backend, RandomTensor& random) { return RunTril(2, s, true, backend, random); }));
  }
  for (const float sign : {1.0f, -1.0f}) {
    cases.push_back(
        GpuCase("shapes", "apply_identity", absl::StrCat("70x70 batch=3 sign=", sign), kExact,
                [sign](Backend& backend, RandomTensor& random) { return RunApplyIdentity(sign, backend, random); }));
  }
}

}  // namespace gdn::parity
