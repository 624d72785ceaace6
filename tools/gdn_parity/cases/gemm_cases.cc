#include "tools/gdn_parity/cases/gemm_cases.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const char* LayoutName(GemmLayout layout) {
  return layout == GemmLayout::kNN ? "nn" : layout == GemmLayout::kNT ? "nt" : "tn";
}

std::string Name(const GemmShape& s) { return absl::StrCat(s.m, "x", s.n, "x", s.k, " batch=", s.batch); }

using Launch = absl::Status (*)(const GemmParams&, const gpu::Stream&);

// C is compared whole: what lies between its rows is to stay as it was.
CaseResult RunGemm(const GemmProblem& p, Launch launch, Backend& backend) {
  const GemmParams& params = p.params;
  const auto shape = [&params](const std::vector<float>& x, int64_t stride) -> std::vector<int64_t> {
    return {params.batch, static_cast<int64_t>(x.size()) / params.batch / stride, stride};
  };
  const bool plain = params.c_stride == params.n && params.alpha == 1.0f && params.beta == 0.0f;
  return OperatorCall<GemmParams>(plain ? "gemm" : "", {{"layout", LayoutName(params.layout)}}, params)
      .In(&GemmParams::a, "a", shape(p.a, params.a_stride), p.a)
      .In(&GemmParams::b, "b", shape(p.b, params.b_stride), p.b)
      .InOut(&GemmParams::c, "c", shape(p.c, params.c_stride), p.c)
      .Run(backend, GemmReference, launch);
}

struct PhaseRow {
  const char* test;
  GemmLayout layout;
  Launch launch;
  GemmShape shape;
};

}  // namespace

GemmProblem RandomGemm(GemmLayout layout, const GemmShape& shape, RandomTensor& random) {
  const bool tn = layout == GemmLayout::kTN;
  const bool nt = layout == GemmLayout::kNT;
  GemmProblem p;
  p.params = {.layout = layout, .batch = shape.batch, .m = shape.m, .n = shape.n, .k = shape.k};
  p.params.a_stride = (tn ? shape.m : shape.k) + shape.padding;
  p.params.b_stride = (nt ? shape.k : shape.n) + shape.padding;
  p.params.c_stride = shape.n + shape.padding;
  p.params.a_batch_stride = (tn ? shape.k : shape.m) * p.params.a_stride;
  p.params.b_batch_stride = (nt ? shape.n : shape.k) * p.params.b_stride;
  p.params.c_batch_stride = shape.m * p.params.c_stride;
  p.a = random.Normal(shape.batch * p.params.a_batch_stride);
  p.b = random.Normal(shape.batch * p.params.b_batch_stride);
  p.c = random.Normal(shape.batch * p.params.c_batch_stride);
  const auto fill_gaps = [&shape](std::vector<float>& x, int64_t stride) {
    for (int64_t at = 0; at < static_cast<int64_t>(x.size()); ++at) {
      if (at % stride >= stride - shape.padding) x[at] = kNan;
    }
  };
  fill_gaps(p.a, p.params.a_stride);
  fill_gaps(p.b, p.params.b_stride);
  return p;
}

void AddGemmCases(std::vector<ParityCase>& cases) {
  for (const PhaseRow& row : {PhaseRow{"gemm_nt_naive_small", GemmLayout::kNT, GemmNaiveGpu, {4, 4, 8}},
                              PhaseRow{"gemm_nt_naive_small", GemmLayout::kNT, GemmNaiveGpu, {7, 5, 3, 2}},
                              PhaseRow{"gemm_nt_naive_64", GemmLayout::kNT, GemmNaiveGpu, {64, 64, 64}},
                              PhaseRow{"gemm_tn_naive", GemmLayout::kTN, GemmNaiveGpu, {64, 33, 40}},
                              PhaseRow{"gemm_tn_naive", GemmLayout::kTN, GemmNaiveGpu, {24, 64, 64, 2}},
                              PhaseRow{"gemm_nt_tiled", GemmLayout::kNT, GemmGpu, {64, 64, 64}},
                              PhaseRow{"gemm_nt_tiled", GemmLayout::kNT, GemmGpu, {65, 33, 40, 2}},
                              PhaseRow{"gemm_nt_tiled", GemmLayout::kNT, GemmGpu, {5, 70, 17, 3}},
                              PhaseRow{"gemm_nt_tiled_128", GemmLayout::kNT, GemmGpu, {128, 128, 128}},
                              PhaseRow{"gemm_nt_tiled_128", GemmLayout::kNT, GemmGpu, {64, 64, 128, 2}}}) {
    cases.push_back(GpuCase(
        "phases", row.test, Name(row.shape), kSumTolerance,
        [row](Backend& backend, RandomTensor& random) {
          GemmProblem problem = RandomGemm(row.layout, row.shape, random);
          problem.c.assign(problem.c.size(), kNan);  // without beta it is not read
          return RunGemm(problem, row.launch, backend);
        },
        /*phase=*/3));
  }
  for (const GemmLayout layout : {GemmLayout::kNN, GemmLayout::kNT, GemmLayout::kTN}) {
    const auto add = [&](const GemmShape& shape, const char* what, float alpha, float beta, Launch launch) {
      cases.push_back(GpuCase("shapes", absl::StrCat("gemm_", LayoutName(layout)),
                              absl::StrCat(Name(shape), " gap=", shape.padding, what), kSumTolerance,
                              [=](Backend& backend, RandomTensor& random) {
                                GemmProblem problem = RandomGemm(layout, shape, random);
                                problem.params.alpha = alpha;
                                problem.params.beta = beta;
                                return RunGemm(problem, launch, backend);
                              }));
    };
    for (const GemmShape& shape : {GemmShape{64, 64, 64, 1, 0}, GemmShape{65, 3, 17, 2, 0}, GemmShape{3, 70, 16, 1, 4},
                                   GemmShape{40, 24, 33, 3, 1}, GemmShape{1, 1, 1, 1, 0}, GemmShape{24, 100, 8, 1, 0},
                                   GemmShape{31, 31, 31, 2, 1}, GemmShape{62, 62, 62, 1, 2}}) {
      add(shape, "", 1.0f, 0.0f, GemmGpu);
    }
    add({70, 33, 50, 2, 3}, " naive alpha=-0.7 beta=1.3", -0.7f, 1.3f, GemmNaiveGpu);
  }
}

}  // namespace gdn::parity
