// Rows of the element-wise operations.

#include "kernels/convert/convert.h"
#include "kernels/primitives/elementwise/elementwise.h"

#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

constexpr int64_t kCount = 10007;  // some blocks and a tail

struct NamedUnary {
  const char* name;
  UnaryOp op;
};

constexpr NamedUnary kUnary[] = {{"exp", UnaryOp::kExp}, {"sigmoid", UnaryOp::kSigmoid},   {"silu", UnaryOp::kSilu},
                                 {"neg", UnaryOp::kNeg}, {"softplus", UnaryOp::kSoftplus}, {"log", UnaryOp::kLog}};
// In the operations' order.
constexpr const char* kBinaryNames[] = {"add", "sub", "mul", "abs_diff", "squared_diff"};

CaseResult RunUnary(const NamedUnary& unary, std::vector<float> x, bool unaligned, Backend& backend) {
  const int64_t count = static_cast<int64_t>(x.size());
  OperatorCall<UnaryParams> call("unary", {{"f", unary.name}}, {.op = unary.op, .count = count});
  if (unaligned) call.Unaligned();
  return call.In(&UnaryParams::x, "x", {count}, std::move(x))
      .Out(&UnaryParams::y, "y", {count})
      .Run(backend, UnaryReference, UnaryGpu);
}

CaseResult RunRandom(const NamedUnary& unary, int64_t count, float spread, bool unaligned, Backend& backend,
                     RandomTensor& random) {
  std::vector<float> x =
      unary.op == UnaryOp::kLog ? random.Uniform(count, 1e-3f, 100.0f) : random.Normal(count, spread);
  return RunUnary(unary, std::move(x), unaligned, backend);
}

CaseResult RunScale(std::string op, int64_t count, float factor, Backend& backend, RandomTensor& random) {
  return OperatorCall<UnaryParams>(std::move(op), {{"f", "scale"}, {"factor", absl::StrCat(factor)}},
                                   {.op = UnaryOp::kScale, .count = count, .factor = factor})
      .In(&UnaryParams::x, "x", {count}, random.Normal(count))
      .Out(&UnaryParams::y, "y", {count})
      .Run(backend, UnaryReference, UnaryGpu);
}

CaseResult RunVectorMultiply(VectorKind kind, Backend& backend, RandomTensor& random) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kCols = 100;
  const int64_t size = kind == VectorKind::kRow ? kCols : kRows;
  return OperatorCall<VectorMultiplyParams>(
             "vector_multiply", {{"vector", kind == VectorKind::kRow ? "row" : "column"}},
             {.vector = kind, .rows = kRows, .cols = kCols, .x_stride = kCols, .y_stride = kCols})
      .In(&VectorMultiplyParams::x, "x", {kRows, kCols}, random.Normal(kRows * kCols))
      .In(&VectorMultiplyParams::v, "v", {size}, random.Normal(size))
      .Out(&VectorMultiplyParams::y, "y", {kRows, kCols})
      .Run(backend, VectorMultiplyReference, VectorMultiplyGpu);
}

// Rows with gaps between them, which stay as they were.
CaseResult RunStridedMultiply(VectorKind kind, int64_t rows, int64_t cols, Backend& backend, RandomTensor& random) {
  constexpr int64_t kVectorStride = 2;
  const int64_t x_stride = cols + 3;
  const int64_t y_stride = cols + 1;
  const int64_t size = (kind == VectorKind::kRow ? cols : rows) * kVectorStride;
  return OperatorCall<VectorMultiplyParams>("", {},
                                            {.vector = kind,
                                             .rows = rows,
                                             .cols = cols,
                                             .x_stride = x_stride,
                                             .v_stride = kVectorStride,
                                             .y_stride = y_stride})
      .In(&VectorMultiplyParams::x, "x", {rows, x_stride}, random.Normal(rows * x_stride))
      .In(&VectorMultiplyParams::v, "v", {size}, random.Normal(size))
      .InOut(&VectorMultiplyParams::y, "y", {rows, y_stride}, std::vector<float>(rows * y_stride, 7.0f))
      .Run(backend, VectorMultiplyReference, VectorMultiplyGpu);
}

CaseResult EveryOperation(Backend& backend, RandomTensor& random) {
  std::vector<CaseResult> calls;
  for (const NamedUnary& unary : kUnary) {
    calls.push_back(RunRandom(unary, kCount, 4.0f, /*unaligned=*/false, backend, random));
  }
  for (const BinaryOp op : {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul}) {
    calls.push_back(RunBinary(op, kCount, /*in_place=*/false, backend, random));
  }
  calls.push_back(RunScale("unary", kCount, 0.125f, backend, random));
  calls.push_back(RunVectorMultiply(VectorKind::kRow, backend, random));
  calls.push_back(RunVectorMultiply(VectorKind::kColumn, backend, random));
  return Worst(calls);
}

struct RoundTripParams {
  const float* x = nullptr;
  uint16_t* bits = nullptr;
  float* y = nullptr;
};

void RoundTripReference(const RoundTripParams& p) {
  static_cast<void>(ConvertCpu({.count = kCount, .x = p.x, .y = {p.bits, DType::kBF16}}));
  static_cast<void>(ConvertCpu({.count = kCount, .x = {p.bits, DType::kBF16}, .y = p.y}));
}

absl::Status RoundTripGpu(const RoundTripParams& p, const gpu::Stream& stream) {
  GDN_RETURN_IF_ERROR(ConvertGpu({.count = kCount, .x = p.x, .y = {p.bits, DType::kBF16}}, stream));
  return ConvertGpu({.count = kCount, .x = {p.bits, DType::kBF16}, .y = p.y}, stream);
}

CaseResult Bf16RoundTrip(Backend& backend, RandomTensor& random) {
  return OperatorCall<RoundTripParams>("bf16_round_trip", {}, {})
      .In(&RoundTripParams::x, "x", {kCount}, random.Normal(kCount, 100.0f))
      .Scratch(&RoundTripParams::bits, kCount)
      .Out(&RoundTripParams::y, "y", {kCount})
      .Run(backend, RoundTripReference, RoundTripGpu);
}

void AddElementwisePhases(std::vector<ParityCase>& cases) {
  for (const int64_t count : {1, 1023, 4096}) {
    const auto add = [&](const char* test, CaseRunner run) {
      cases.push_back(
          GpuCase("phases", test, absl::StrCat("n=", count), kElementwiseTolerance, std::move(run), /*phase=*/1));
    };
    add("sigmoid", std::bind_front(RunRandom, kUnary[1], count, 30.0f, /*unaligned=*/false));
    add("exp", std::bind_front(RunRandom, kUnary[0], count, 3.0f, /*unaligned=*/false));
    add("mul", std::bind_front(RunBinary, BinaryOp::kMul, count, /*in_place=*/false));
  }
}

// Every operation with any tail and alignment, and far out, where functions of the layer must stay finite.
void AddElementwiseShapes(std::vector<ParityCase>& cases) {
  for (const NamedUnary& unary : kUnary) {
    for (const int64_t count : {0, 1, 3, 4, 1027}) {
      for (const bool unaligned : {false, true}) {
        cases.push_back(GpuCase("shapes", absl::StrCat("unary_", unary.name),
                                absl::StrCat("n=", count, unaligned ? " unaligned" : ""), kElementwiseTolerance,
                                std::bind_front(RunRandom, unary, count, 3.0f, unaligned)));
      }
    }
  }
  for (const NamedUnary& unary : {kUnary[1], kUnary[2], kUnary[4]}) {
    cases.push_back(GpuCase("shapes", absl::StrCat("unary_", unary.name), "-1e4 .. 1e4", kElementwiseTolerance,
                            [unary](Backend& backend, RandomTensor&) {
                              return RunUnary(unary, {-1e4f, -89.0f, 0.0f, 20.5f, 89.0f, 1e4f}, false, backend);
                            }));
  }
  for (size_t op = 0; op < std::size(kBinaryNames); ++op) {
    cases.push_back(GpuCase("shapes", absl::StrCat("binary_", kBinaryNames[op]), "n=1030 in place",
                            kElementwiseTolerance,
                            std::bind_front(RunBinary, static_cast<BinaryOp>(op), 1030, /*in_place=*/true)));
  }
  // One rounding, the same in float32 and in double; not dumped, as the checker does not round.
  cases.push_back(GpuCase("shapes", "scale", "n=517", kExact, std::bind_front(RunScale, /*op=*/"", 517, -0.3f)));
  // More rows than columns and the other way about: a row vector taken for a column vector would read past its end.
  for (const VectorKind kind : {VectorKind::kRow, VectorKind::kColumn}) {
    for (const auto& shape : {std::pair<int64_t, int64_t>{70, 5}, {5, 70}, {16, 64}}) {
      cases.push_back(GpuCase("shapes", kind == VectorKind::kRow ? "multiply_by_row" : "multiply_by_column",
                              absl::StrCat(shape.first, "x", shape.second, " strided"), kExact,
                              std::bind_front(RunStridedMultiply, kind, shape.first, shape.second)));
    }
  }
}

}  // namespace

CaseResult RunBinary(BinaryOp op, int64_t count, bool in_place, Backend& backend, RandomTensor& random) {
  return OperatorCall<BinaryParams>("binary", {{"f", kBinaryNames[static_cast<size_t>(op)]}},
                                    {.op = op, .count = count})
      .InPlaceIf(in_place, &BinaryParams::a, &BinaryParams::y, "a", "y", {count}, random.Normal(count))
      .In(&BinaryParams::b, "b", {count}, random.Normal(count))
      .Run(backend, BinaryReference, BinaryGpu);
}

void AddElementwiseCases(std::vector<ParityCase>& cases) {
  cases.push_back(GpuCase("parity", "bf16_round_trip", "n=10007", kExact, Bf16RoundTrip));
  cases.push_back(GpuCase("parity", "elementwise", "n=10007, 37x100", kElementwiseTolerance, EveryOperation));
  AddElementwisePhases(cases);
  AddElementwiseShapes(cases);
}

}  // namespace gdn::parity
