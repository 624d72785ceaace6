// Rows of the running sums.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/primitives/cumsum/cumsum.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

struct CumsumShape {
  int64_t tokens, features, chunk;
};

std::string Name(const CumsumShape& s) {
  return absl::StrCat("T=", s.tokens, " D=", s.features, s.chunk > 0 ? absl::StrCat(" C=", s.chunk) : "");
}

CaseResult RunCumsum(const CumsumShape& s, std::vector<float> x, bool in_place, Backend& backend) {
  CumsumParams params{.tokens = s.tokens, .features = s.features, .chunk = s.chunk};
  const int64_t workspace = static_cast<int64_t>(CumsumWorkspaceBytes(params) / sizeof(double));
  OperatorCall<CumsumParams> call("cumsum", {{"chunk", absl::StrCat(s.chunk)}}, params);
  if (workspace > 0) call.Scratch(&CumsumParams::workspace, workspace);
  return call.InPlaceIf(in_place, &CumsumParams::x, &CumsumParams::y, "x", "y", {s.tokens, s.features}, std::move(x))
      .Run(backend, CumsumReference, CumsumGpu);
}

// Log decays.
CaseResult RunDecays(const CumsumShape& s, Backend& backend, RandomTensor& random) {
  return RunCumsum(s, random.Uniform(s.tokens * s.features, -1.0f, 0.0f), /*in_place=*/false, backend);
}

CaseResult RunNormal(const CumsumShape& s, bool in_place, Backend& backend, RandomTensor& random) {
  return RunCumsum(s, random.Normal(s.tokens * s.features), in_place, backend);
}

}  // namespace

void AddCumsumCases(std::vector<ParityCase>& cases) {
  cases.push_back(
      GpuCase("parity", "cumsum_scalar", "T=5000", kSumTolerance, std::bind_front(RunDecays, CumsumShape{5000, 1, 0})));
  cases.push_back(
      GpuCase("parity", "cumsum_vector", "T=333 n=12, whole and C=64", kSumTolerance,
              [](Backend& backend, RandomTensor& random) {
                return Worst({RunDecays({333, 12, 0}, backend, random), RunDecays({333, 12, 64}, backend, random)});
              }));
  for (const CumsumShape& s :
       {CumsumShape{1, 1, 0}, CumsumShape{64, 1, 0}, CumsumShape{5000, 1, 0}, CumsumShape{5000, 1, 64},
        CumsumShape{300, 32, 0}, CumsumShape{133, 5, 32}, CumsumShape{200, 33, 100}}) {
    cases.push_back(GpuCase("phases", "cumsum", Name(s), kSumTolerance,
                            std::bind_front(RunNormal, s, /*in_place=*/false), /*phase=*/1));
  }
  // Tiles are 2048 tokens (scalar) and 64 (vector), and 64 vector tiles are scanned at a time: lengths on both sides of
  // each (three rounds of tiles, so that what one hands on reaches past the next), and chunks that divide a tile,
  // straddle tiles and span several. Sums are in double, so the length costs nothing.
  for (const CumsumShape& s :
       {CumsumShape{0, 1, 0},       CumsumShape{1, 1, 0},     CumsumShape{7, 1, 3},      CumsumShape{2049, 1, 0},
        CumsumShape{9000, 1, 0},    CumsumShape{9000, 1, 64}, CumsumShape{9000, 1, 100}, CumsumShape{9000, 1, 5000},
        CumsumShape{9000, 1, 2048}, CumsumShape{65, 3, 0},    CumsumShape{64, 32, 64},   CumsumShape{300, 33, 0},
        CumsumShape{300, 33, 16},   CumsumShape{300, 5, 24},  CumsumShape{300, 5, 130},  CumsumShape{4200, 2, 0},
        CumsumShape{4200, 2, 4096}, CumsumShape{200, 2, 1},   CumsumShape{8400, 1, 0},   CumsumShape{8400, 2, 0},
        CumsumShape{8400, 2, 1000}}) {
    cases.push_back(GpuCase("shapes", "cumsum", absl::StrCat(Name(s), " in place"), kElementwiseTolerance,
                            std::bind_front(RunNormal, s, /*in_place=*/true)));
  }
}

}  // namespace gdn::parity
