// Suite "phases", phases 1 to 4: single elements, masks and solves, products, the decay mask.

#include "tools/gdn_parity/phases_cases.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/cumsum/cumsum.h"
#include "kernels/primitives/decay_mask/decay_mask.h"
#include "kernels/primitives/elementwise/elementwise.h"
#include "kernels/primitives/gemm/gemm.h"
#include "kernels/primitives/masks/masks.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"
#include "tools/gdn_parity/backend_data.h"

namespace gdn::parity {
namespace {

absl::StatusOr<Difference> CompareDevice(BackendData& data, const float* device, const std::vector<float>& expected) {
  GDN_ASSIGN_OR_RETURN(const std::vector<float> actual, data.Download(device, static_cast<int64_t>(expected.size())));
  return Compare(actual, expected);
}

absl::StatusOr<Difference> RunUnary(UnaryOp op, int64_t count, float spread, Backend& backend, RandomTensor& random) {
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  const std::vector<float> x = random.Normal(count, spread);
  std::vector<float> expected(count);
  UnaryParams params{.op = op, .count = count, .x = x.data(), .y = expected.data()};
  UnaryReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, data.Upload(x));
  GDN_ASSIGN_OR_RETURN(params.y, data.Poisoned(count));
  GDN_RETURN_IF_ERROR(UnaryGpu(params, stream));
  return CompareDevice(data, params.y, expected);
}

absl::StatusOr<Difference> RunMul(int64_t count, Backend& backend, RandomTensor& random) {
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  const std::vector<float> a = random.Normal(count);
  const std::vector<float> b = random.Normal(count);
  std::vector<float> expected(count);
  BinaryParams params{.op = BinaryOp::kMul, .count = count, .a = a.data(), .b = b.data(), .y = expected.data()};
  BinaryReference(params);
  GDN_ASSIGN_OR_RETURN(params.a, data.Upload(a));
  GDN_ASSIGN_OR_RETURN(params.b, data.Upload(b));
  GDN_ASSIGN_OR_RETURN(params.y, data.Poisoned(count));
  GDN_RETURN_IF_ERROR(BinaryGpu(params, stream));
  return CompareDevice(data, params.y, expected);
}

absl::StatusOr<Difference> RunCumsum(int64_t tokens, int64_t features, int64_t chunk, Backend& backend,
                                     RandomTensor& random) {
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  const std::vector<float> x = random.Normal(tokens * features);
  std::vector<float> expected(x.size());
  CumsumParams params{.tokens = tokens, .features = features, .chunk = chunk, .x = x.data(), .y = expected.data()};
  CumsumReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, data.Upload(x));
  GDN_ASSIGN_OR_RETURN(params.y, data.Poisoned(tokens * features));
  GDN_ASSIGN_OR_RETURN(void* workspace, data.PoisonedBytes(CumsumWorkspaceBytes(params)));
  params.workspace = static_cast<double*>(workspace);
  GDN_RETURN_IF_ERROR(CumsumGpu(params, stream));
  return CompareDevice(data, params.y, expected);
}

void AddPhase1(std::vector<ParityCase>& cases) {
  for (int64_t count : {int64_t{1}, int64_t{1023}, int64_t{4096}}) {
    const std::string shape = absl::StrCat("n=", count);
    cases.push_back(PhaseCase(1, "sigmoid", shape, kElementwiseTolerance, [=](Backend& backend, RandomTensor& random) {
      return RunUnary(UnaryOp::kSigmoid, count, 30.0f, backend, random);
    }));
    cases.push_back(PhaseCase(1, "exp", shape, kElementwiseTolerance, [=](Backend& backend, RandomTensor& random) {
      return RunUnary(UnaryOp::kExp, count, 3.0f, backend, random);
    }));
    cases.push_back(PhaseCase(1, "mul", shape, kElementwiseTolerance,
                              [=](Backend& backend, RandomTensor& random) { return RunMul(count, backend, random); }));
  }
  struct Shape {
    int64_t tokens, features, chunk;
  };
  for (const Shape& c : {Shape{1, 1, 0}, Shape{64, 1, 0}, Shape{5000, 1, 0}, Shape{5000, 1, 64}, Shape{300, 32, 0},
                         Shape{133, 5, 32}, Shape{200, 33, 100}}) {
    cases.push_back(PhaseCase(
        1, "cumsum", absl::StrCat("T=", c.tokens, " D=", c.features, c.chunk > 0 ? absl::StrCat(" C=", c.chunk) : ""),
        kSumTolerance, [=](Backend& backend, RandomTensor& random) {
          return RunCumsum(c.tokens, c.features, c.chunk, backend, random);
        }));
  }
}

// The masked part of the input is NaN: a mask that multiplies would let it through.
absl::StatusOr<Difference> RunTril(int64_t rows, int64_t cols, int64_t diagonal, bool causal_mask, Backend& backend,
                                   RandomTensor& random) {
  constexpr int64_t kBatch = 3;
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  std::vector<float> x = random.Normal(kBatch * rows * cols);
  for (int64_t at = 0; at < kBatch * rows * cols; ++at) {
    if (at % cols > at / cols % rows + diagonal) x[at] = std::numeric_limits<float>::quiet_NaN();
  }
  std::vector<float> expected(x.size());
  GDN_ASSIGN_OR_RETURN(const float* device_x, data.Upload(x));
  GDN_ASSIGN_OR_RETURN(float* y, data.Poisoned(kBatch * rows * cols));
  if (causal_mask) {
    CausalMaskParams params{.batch = kBatch, .size = rows, .x = x.data(), .y = expected.data()};
    CausalMaskReference(params);
    params.x = device_x;
    params.y = y;
    GDN_RETURN_IF_ERROR(CausalMaskGpu(params, stream));
  } else {
    TrilParams params{
        .batch = kBatch, .rows = rows, .cols = cols, .diagonal = diagonal, .x = x.data(), .y = expected.data()};
    TrilReference(params);
    params.x = device_x;
    params.y = y;
    GDN_RETURN_IF_ERROR(TrilGpu(params, stream));
  }
  return CompareDevice(data, y, expected);
}

absl::StatusOr<Difference> RunEye(int64_t rows, int64_t cols, Backend& backend) {
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  std::vector<float> expected(2 * rows * cols);
  EyeParams params{.batch = 2, .rows = rows, .cols = cols, .y = expected.data()};
  EyeReference(params);
  GDN_ASSIGN_OR_RETURN(params.y, data.Poisoned(2 * rows * cols));
  GDN_RETURN_IF_ERROR(EyeGpu(params, stream));
  return CompareDevice(data, params.y, expected);
}

// X of (I - A) X = B; what is on A's diagonal and above it is NaN, never to be read.
absl::StatusOr<Difference> RunSolve(int32_t size, int32_t columns, Backend& backend, RandomTensor& random) {
  constexpr int64_t kBatch = 2;
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  std::vector<float> a = random.Normal(kBatch * size * size, 0.2f);
  for (int64_t at = 0; at < kBatch * size * size; ++at) {
    if (at % size >= at / size % size) a[at] = std::numeric_limits<float>::quiet_NaN();
  }
  const std::vector<float> b = random.Normal(kBatch * size * columns);
  std::vector<float> expected(b.size());
  CausalSolveParams params{
      .batch = kBatch, .size = size, .columns = columns, .a = a.data(), .b = b.data(), .x = expected.data()};
  CausalSolveReference(params);
  GDN_ASSIGN_OR_RETURN(params.a, data.Upload(a));
  GDN_ASSIGN_OR_RETURN(params.b, data.Upload(b));
  GDN_ASSIGN_OR_RETURN(params.x, data.Poisoned(kBatch * size * columns));
  GDN_RETURN_IF_ERROR(CausalSolveGpu(params, stream));
  return CompareDevice(data, params.x, expected);
}

void AddPhase2(std::vector<ParityCase>& cases) {
  struct Shape {
    int64_t rows, cols, diagonal;
  };
  for (const Shape& c : {Shape{16, 16, 0}, Shape{64, 64, -1}, Shape{33, 65, 1}, Shape{40, 24, 3}, Shape{9, 70, -4}}) {
    cases.push_back(PhaseCase(2, "tril", absl::StrCat(c.rows, "x", c.cols, " diagonal=", c.diagonal), kExact,
                              [=](Backend& backend, RandomTensor& random) {
                                return RunTril(c.rows, c.cols, c.diagonal, false, backend, random);
                              }));
  }
  for (int64_t size : {16, 33, 64, 130}) {
    cases.push_back(PhaseCase(
        2, "causal_mask", absl::StrCat("C=", size), kExact,
        [=](Backend& backend, RandomTensor& random) { return RunTril(size, size, -1, true, backend, random); }));
    cases.push_back(PhaseCase(2, "eye", absl::StrCat(size, "x", size + 7), kExact,
                              [=](Backend& backend, RandomTensor&) { return RunEye(size, size + 7, backend); }));
  }
  const auto add_solve = [&cases](const char* test, int32_t size, int32_t columns) {
    cases.push_back(
        PhaseCase(2, test, absl::StrCat("n=", size, " columns=", columns), kSumTolerance,
                  [=](Backend& backend, RandomTensor& random) { return RunSolve(size, columns, backend, random); }));
  };
  add_solve("solve_tri_small", 1, 5);
  add_solve("solve_tri_small", 4, 8);
  add_solve("solve_tri_small", 16, 16);
  add_solve("solve_tri_small", 17, 3);
  add_solve("solve_tri_64", 64, 64);
  add_solve("solve_tri_64", 64, 33);
}

struct GemmCase {
  const char* test;
  GemmLayout layout;
  bool tiled;
  int64_t m, n, k;
  int64_t batch = 1;
};

absl::StatusOr<Difference> RunGemm(const GemmCase& c, Backend& backend, RandomTensor& random) {
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  const std::vector<float> a = random.Normal(c.batch * c.m * c.k);
  const std::vector<float> b = random.Normal(c.batch * c.n * c.k);
  std::vector<float> expected(c.batch * c.m * c.n);
  GemmParams params{.layout = c.layout,
                    .batch = c.batch,
                    .m = c.m,
                    .n = c.n,
                    .k = c.k,
                    .a = a.data(),
                    .a_stride = c.layout == GemmLayout::kTN ? c.m : c.k,
                    .a_batch_stride = c.m * c.k,
                    .b = b.data(),
                    .b_stride = c.layout == GemmLayout::kNT ? c.k : c.n,
                    .b_batch_stride = c.n * c.k,
                    .c = expected.data(),
                    .c_stride = c.n,
                    .c_batch_stride = c.m * c.n};
  GemmReference(params);
  GDN_ASSIGN_OR_RETURN(params.a, data.Upload(a));
  GDN_ASSIGN_OR_RETURN(params.b, data.Upload(b));
  GDN_ASSIGN_OR_RETURN(params.c, data.Poisoned(c.batch * c.m * c.n));
  GDN_RETURN_IF_ERROR(c.tiled ? GemmGpu(params, stream) : GemmNaiveGpu(params, stream));
  return CompareDevice(data, params.c, expected);
}

void AddPhase3(std::vector<ParityCase>& cases) {
  for (const GemmCase& c : {GemmCase{"gemm_nt_naive_small", GemmLayout::kNT, false, 4, 4, 8},
                            GemmCase{"gemm_nt_naive_small", GemmLayout::kNT, false, 7, 5, 3, 2},
                            GemmCase{"gemm_nt_naive_64", GemmLayout::kNT, false, 64, 64, 64},
                            GemmCase{"gemm_tn_naive", GemmLayout::kTN, false, 64, 33, 40},
                            GemmCase{"gemm_tn_naive", GemmLayout::kTN, false, 24, 64, 64, 2},
                            GemmCase{"gemm_nt_tiled", GemmLayout::kNT, true, 64, 64, 64},
                            GemmCase{"gemm_nt_tiled", GemmLayout::kNT, true, 65, 33, 40, 2},
                            GemmCase{"gemm_nt_tiled", GemmLayout::kNT, true, 5, 70, 17, 3},
                            GemmCase{"gemm_nt_tiled_128", GemmLayout::kNT, true, 128, 128, 128},
                            GemmCase{"gemm_nt_tiled_128", GemmLayout::kNT, true, 64, 64, 128, 2}}) {
    cases.push_back(PhaseCase(3, c.test, absl::StrCat(c.m, "x", c.n, "x", c.k, " batch=", c.batch), kSumTolerance,
                              [c](Backend& backend, RandomTensor& random) { return RunGemm(c, backend, random); }));
  }
}

// `outlier` of the tokens' decay, once among tokens that do not forget: a float32 running sum loses the small ones there.
absl::StatusOr<Difference> RunDecayMask(int32_t size, float strongest, float outlier, Backend& backend,
                                        RandomTensor& random) {
  constexpr int64_t kBatch = 2;
  BackendData data(backend);
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  std::vector<float> g = random.Uniform(kBatch * size, strongest, 0.0f);
  g[size / 2] += outlier;
  std::vector<float> mask(kBatch * size * size), from_start(kBatch * size), to_end(kBatch * size);
  DecayMaskParams params{.batch = kBatch,
                         .size = size,
                         .g = g.data(),
                         .g_batch_stride = size,
                         .mask = mask.data(),
                         .from_start = from_start.data(),
                         .to_end = to_end.data()};
  DecayMaskReference(params);
  GDN_ASSIGN_OR_RETURN(params.g, data.Upload(g));
  GDN_ASSIGN_OR_RETURN(params.mask, data.Poisoned(static_cast<int64_t>(mask.size())));
  GDN_ASSIGN_OR_RETURN(params.from_start, data.Poisoned(kBatch * size));
  GDN_ASSIGN_OR_RETURN(params.to_end, data.Poisoned(kBatch * size));
  GDN_RETURN_IF_ERROR(DecayMaskGpu(params, stream));
  GDN_ASSIGN_OR_RETURN(Difference difference, CompareDevice(data, params.mask, mask));
  GDN_ASSIGN_OR_RETURN(const Difference of_start, CompareDevice(data, params.from_start, from_start));
  GDN_ASSIGN_OR_RETURN(const Difference of_end, CompareDevice(data, params.to_end, to_end));
  difference.Merge(of_start);
  difference.Merge(of_end);
  return difference;
}

void AddPhase4(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* test, int32_t size, float strongest, float outlier) {
    cases.push_back(PhaseCase(
        4, test, absl::StrCat("C=", size, " g>=", strongest, outlier < 0 ? absl::StrCat(" one at ", outlier) : ""),
        kElementwiseTolerance, [=](Backend& backend, RandomTensor& random) {
          return RunDecayMask(size, strongest, outlier, backend, random);
        }));
  };
  for (int32_t size : {1, 4, 16}) add("decay_mask_small", size, -1.0f, 0.0f);
  add("decay_mask_64", 64, -1.0f, 0.0f);
  add("decay_mask_64", 64, -20.0f, 0.0f);
  add("decay_mask_64", 64, -0.01f, -1e4f);
}

}  // namespace

void AddPrimitivePhases(std::vector<ParityCase>& cases) {
  AddPhase1(cases);
  AddPhase2(cases);
  AddPhase3(cases);
  AddPhase4(cases);
}

void AddPhasesCases(std::vector<ParityCase>& cases) {
  AddPrimitivePhases(cases);
  AddChunkPhases(cases);
}

}  // namespace gdn::parity
