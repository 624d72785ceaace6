// Suite "parity", rows 1 to 15: primitives and index helpers.

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/cumsum/cumsum.h"
#include "kernels/primitives/elementwise/elementwise.h"
#include "kernels/primitives/l2norm/l2norm.h"
#include "kernels/primitives/reduce/reduce.h"
#include "kernels/primitives/varlen_index/varlen_index.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/operator_row.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {
namespace {

constexpr char kSuite[] = "parity";
constexpr int64_t kCount = 10007;  // some blocks and a tail

using Result = absl::StatusOr<Difference>;
using Run = Result (*)(Backend&, RandomTensor&);

Result RunUnary(const char* name, UnaryOp op, const std::vector<float>& x, Backend& backend) {
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  OperatorRow row(backend, "unary", {{"f", name}});
  const int64_t count = static_cast<int64_t>(x.size());
  std::vector<float> expected(x.size());
  UnaryParams params{.op = op, .count = count, .x = x.data(), .y = expected.data()};
  UnaryReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, row.In("x", {count}, x));
  GDN_ASSIGN_OR_RETURN(params.y, row.Out("y", {count}, expected));
  GDN_RETURN_IF_ERROR(UnaryGpu(params, stream));
  return row.Finish();
}

Result RunBinary(const char* name, BinaryOp op, Backend& backend, RandomTensor& random) {
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  OperatorRow row(backend, "binary", {{"f", name}});
  const std::vector<float> a = random.Normal(kCount);
  const std::vector<float> b = random.Normal(kCount);
  std::vector<float> expected(kCount);
  BinaryParams params{.op = op, .count = kCount, .a = a.data(), .b = b.data(), .y = expected.data()};
  BinaryReference(params);
  GDN_ASSIGN_OR_RETURN(params.a, row.In("a", {kCount}, a));
  GDN_ASSIGN_OR_RETURN(params.b, row.In("b", {kCount}, b));
  GDN_ASSIGN_OR_RETURN(params.y, row.Out("y", {kCount}, expected));
  GDN_RETURN_IF_ERROR(BinaryGpu(params, stream));
  return row.Finish();
}

Result RunReduce(const char* name, ReduceOp op, Backend& backend, RandomTensor& random) {
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  OperatorRow row(backend, "reduce", {{"f", name}});
  const std::vector<float> x = random.Normal(kCount);
  const std::vector<float> y = random.Normal(kCount);
  std::vector<float> expected(1);
  ReduceParams params{.op = op, .count = kCount, .x = x.data(), .y = y.data(), .result = expected.data()};
  ReduceReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, row.In("x", {kCount}, x));
  GDN_ASSIGN_OR_RETURN(params.y, row.In("y", {kCount}, y));
  GDN_ASSIGN_OR_RETURN(params.result, row.Out("result", {1}, expected));
  GDN_ASSIGN_OR_RETURN(void* workspace, row.data().PoisonedBytes(ReduceWorkspaceBytes(kCount)));
  params.workspace = static_cast<double*>(workspace);
  GDN_RETURN_IF_ERROR(ReduceGpu(params, stream));
  return row.Finish();
}

Result AbsDiff(Backend& backend, RandomTensor& random) {
  GDN_ASSIGN_OR_RETURN(Difference worst, RunBinary("abs_diff", BinaryOp::kAbsDiff, backend, random));
  GDN_ASSIGN_OR_RETURN(const Difference sum, RunReduce("abs_diff_sum", ReduceOp::kAbsDiffSum, backend, random));
  GDN_ASSIGN_OR_RETURN(const Difference max, RunReduce("abs_diff_max", ReduceOp::kAbsDiffMax, backend, random));
  worst.Merge(sum);
  worst.Merge(max);
  return worst;
}

Result SquaredDiff(Backend& backend, RandomTensor& random) {
  GDN_ASSIGN_OR_RETURN(Difference worst, RunBinary("squared_diff", BinaryOp::kSquaredDiff, backend, random));
  GDN_ASSIGN_OR_RETURN(const Difference sum, RunReduce("squared_diff_sum", ReduceOp::kSquaredDiff, backend, random));
  worst.Merge(sum);
  return worst;
}

Result MaxReduce(Backend& backend, RandomTensor& random) { return RunReduce("max", ReduceOp::kMax, backend, random); }
Result SumReduce(Backend& backend, RandomTensor& random) { return RunReduce("sum", ReduceOp::kSum, backend, random); }

// float32 -> bf16 -> float32.
Result Bf16RoundTrip(Backend& backend, RandomTensor& random) {
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  OperatorRow row(backend, "bf16_round_trip");
  const std::vector<float> x = random.Normal(kCount, 100.0f);
  std::vector<uint16_t> bits(kCount);
  std::vector<float> expected(kCount);
  ConvertReference({.from = DType::kF32, .to = DType::kBF16, .count = kCount, .x = x.data(), .y = bits.data()});
  ConvertReference({.from = DType::kBF16, .to = DType::kF32, .count = kCount, .x = bits.data(), .y = expected.data()});
  GDN_ASSIGN_OR_RETURN(const float* device_x, row.In("x", {kCount}, x));
  GDN_ASSIGN_OR_RETURN(float* device_y, row.Out("y", {kCount}, expected));
  GDN_ASSIGN_OR_RETURN(void* device_bits, row.data().PoisonedBytes(kCount * sizeof(uint16_t)));
  GDN_RETURN_IF_ERROR(
      ConvertGpu({.from = DType::kF32, .to = DType::kBF16, .count = kCount, .x = device_x, .y = device_bits}, stream));
  GDN_RETURN_IF_ERROR(
      ConvertGpu({.from = DType::kBF16, .to = DType::kF32, .count = kCount, .x = device_bits, .y = device_y}, stream));
  return row.Finish();
}

Result L2NormForward(Backend& backend, RandomTensor& random) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kWidth = 100;
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  OperatorRow row(backend, "l2norm", {{"epsilon", "1e-6"}});
  const std::vector<float> x = random.Normal(kRows * kWidth, 0.01f);
  std::vector<float> expected(x.size());
  L2NormParams params{.rows = kRows, .width = kWidth, .x = x.data(), .y = expected.data()};
  L2NormReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, row.In("x", {kRows, kWidth}, x));
  GDN_ASSIGN_OR_RETURN(params.y, row.Out("y", {kRows, kWidth}, expected));
  GDN_RETURN_IF_ERROR(L2NormGpu(params, stream));
  return row.Finish();
}

Result L2NormBackward(Backend& backend, RandomTensor& random) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kWidth = 100;
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  OperatorRow row(backend, "l2norm_backward", {{"epsilon", "1e-6"}});
  const std::vector<float> x = random.Normal(kRows * kWidth);
  const std::vector<float> dy = random.Normal(kRows * kWidth);
  std::vector<float> expected(x.size());
  L2NormBackwardParams params{.rows = kRows, .width = kWidth, .x = x.data(), .dy = dy.data(), .dx = expected.data()};
  L2NormBackwardReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, row.In("x", {kRows, kWidth}, x));
  GDN_ASSIGN_OR_RETURN(params.dy, row.In("dy", {kRows, kWidth}, dy));
  GDN_ASSIGN_OR_RETURN(params.dx, row.Out("dx", {kRows, kWidth}, expected));
  GDN_RETURN_IF_ERROR(L2NormBackwardGpu(params, stream));
  return row.Finish();
}

Result RunScale(Backend& backend, RandomTensor& random) {
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  OperatorRow row(backend, "unary", {{"f", "scale"}, {"factor", "0.125"}});
  const std::vector<float> x = random.Normal(kCount);
  std::vector<float> expected(kCount);
  ScaleParams params{.count = kCount, .factor = 0.125f, .x = x.data(), .y = expected.data()};
  ScaleReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, row.In("x", {kCount}, x));
  GDN_ASSIGN_OR_RETURN(params.y, row.Out("y", {kCount}, expected));
  GDN_RETURN_IF_ERROR(ScaleGpu(params, stream));
  return row.Finish();
}

Result RunVectorMultiply(VectorKind kind, Backend& backend, RandomTensor& random) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kCols = 100;
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  OperatorRow row(backend, "vector_multiply", {{"vector", kind == VectorKind::kRow ? "row" : "column"}});
  const std::vector<float> x = random.Normal(kRows * kCols);
  const std::vector<float> v = random.Normal(kind == VectorKind::kRow ? kCols : kRows);
  std::vector<float> expected(x.size());
  VectorMultiplyParams params{.vector = kind,
                              .rows = kRows,
                              .cols = kCols,
                              .x = x.data(),
                              .x_stride = kCols,
                              .v = v.data(),
                              .y = expected.data(),
                              .y_stride = kCols};
  VectorMultiplyReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, row.In("x", {kRows, kCols}, x));
  GDN_ASSIGN_OR_RETURN(params.v, row.In("v", {static_cast<int64_t>(v.size())}, v));
  GDN_ASSIGN_OR_RETURN(params.y, row.Out("y", {kRows, kCols}, expected));
  GDN_RETURN_IF_ERROR(VectorMultiplyGpu(params, stream));
  return row.Finish();
}

Result Elementwise(Backend& backend, RandomTensor& random) {
  Difference worst;
  const auto merge = [&worst](const Result& result) {
    if (result.ok()) worst.Merge(*result);
    return result.status();
  };
  const std::pair<const char*, UnaryOp> unary[] = {{"exp", UnaryOp::kExp},
                                                   {"sigmoid", UnaryOp::kSigmoid},
                                                   {"silu", UnaryOp::kSilu},
                                                   {"neg", UnaryOp::kNeg},
                                                   {"softplus", UnaryOp::kSoftplus}};
  for (const auto& [name, op] : unary) {
    GDN_RETURN_IF_ERROR(merge(RunUnary(name, op, random.Normal(kCount, 4.0f), backend)));
  }
  GDN_RETURN_IF_ERROR(merge(RunUnary("log", UnaryOp::kLog, random.Uniform(kCount, 1e-3f, 100.0f), backend)));
  const std::pair<const char*, BinaryOp> binary[] = {
      {"add", BinaryOp::kAdd}, {"sub", BinaryOp::kSub}, {"mul", BinaryOp::kMul}};
  for (const auto& [name, op] : binary) GDN_RETURN_IF_ERROR(merge(RunBinary(name, op, backend, random)));
  GDN_RETURN_IF_ERROR(merge(RunScale(backend, random)));
  GDN_RETURN_IF_ERROR(merge(RunVectorMultiply(VectorKind::kRow, backend, random)));
  GDN_RETURN_IF_ERROR(merge(RunVectorMultiply(VectorKind::kColumn, backend, random)));
  return worst;
}

Result RunCumsum(int64_t tokens, int64_t features, int64_t chunk, Backend& backend, RandomTensor& random) {
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  OperatorRow row(backend, "cumsum", {{"chunk", absl::StrCat(chunk)}});
  const std::vector<float> x = random.Uniform(tokens * features, -1.0f, 0.0f);
  std::vector<float> expected(x.size());
  CumsumParams params{.tokens = tokens, .features = features, .chunk = chunk, .x = x.data(), .y = expected.data()};
  CumsumReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, row.In("x", {tokens, features}, x));
  GDN_ASSIGN_OR_RETURN(params.y, row.Out("y", {tokens, features}, expected));
  if (const size_t bytes = CumsumWorkspaceBytes(params); bytes > 0) {
    GDN_ASSIGN_OR_RETURN(void* workspace, row.data().PoisonedBytes(bytes));
    params.workspace = static_cast<double*>(workspace);
  }
  GDN_RETURN_IF_ERROR(CumsumGpu(params, stream));
  return row.Finish();
}

Result CumsumScalar(Backend& backend, RandomTensor& random) { return RunCumsum(5000, 1, 0, backend, random); }
Result CumsumVector(Backend& backend, RandomTensor& random) {
  GDN_ASSIGN_OR_RETURN(Difference worst, RunCumsum(333, 12, 0, backend, random));
  GDN_ASSIGN_OR_RETURN(const Difference chunked, RunCumsum(333, 12, 64, backend, random));
  worst.Merge(chunked);
  return worst;
}

// One of the four index helpers; `made` is its place among the params' outputs.
Result RunIndex(const char* name, int32_t* VarlenIndexParams::*made, bool by_token, Backend& backend) {
  constexpr int32_t kChunk = 64;
  GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
  OperatorRow row(backend, "varlen_index", {{"f", name}, {"chunk", absl::StrCat(kChunk)}});
  const OwnedBatch batch({5, 0, 64, 1, 130, 0});
  const int32_t sequences = batch.view().sequences;
  const size_t size = by_token ? batch.tokens() : std::string(name) == "lengths" ? sequences : sequences + 1;
  std::vector<int32_t> expected(size);
  VarlenIndexParams params{
      .sequences = sequences, .tokens = batch.tokens(), .chunk = kChunk, .cu_seqlens = batch.cu_seqlens.data()};
  params.*made = expected.data();
  VarlenIndexReference(params);
  GDN_ASSIGN_OR_RETURN(params.cu_seqlens, row.In("cu_seqlens", {sequences + 1}, batch.cu_seqlens));
  GDN_ASSIGN_OR_RETURN(params.*made, row.Out("index", {static_cast<int64_t>(size)}, expected));
  GDN_RETURN_IF_ERROR(VarlenIndexGpu(params, stream));
  return row.Finish();
}

Result Lengths(Backend& backend, RandomTensor&) {
  return RunIndex("lengths", &VarlenIndexParams::lengths, false, backend);
}
Result PositionIds(Backend& backend, RandomTensor&) {
  return RunIndex("position_ids", &VarlenIndexParams::position_ids, true, backend);
}
Result SequenceIds(Backend& backend, RandomTensor&) {
  return RunIndex("sequence_ids", &VarlenIndexParams::sequence_ids, true, backend);
}
Result ChunkOffsets(Backend& backend, RandomTensor&) {
  return RunIndex("chunk_offsets", &VarlenIndexParams::chunk_offsets, false, backend);
}

void Add(const char* test, const char* shape, double tolerance, bool gpu_only, Run run,
         std::vector<ParityCase>& cases) {
  ParityCase c{kSuite, test, shape, tolerance, run};
  c.max_tolerance = tolerance;
  c.gpu_only = gpu_only;
  cases.push_back(std::move(c));
}

}  // namespace

void AddParityCases(std::vector<ParityCase>& cases) {
  Add("abs_diff", "n=10007", kElementwiseTolerance, true, AbsDiff, cases);
  Add("squared_diff", "n=10007", kElementwiseTolerance, true, SquaredDiff, cases);
  Add("max_reduce", "n=10007", kExact, true, MaxReduce, cases);
  Add("sum_reduce", "n=10007", kSumTolerance, true, SumReduce, cases);
  Add("bf16_round_trip", "n=10007", kExact, true, Bf16RoundTrip, cases);
  Add("l2norm_fwd", "rows=37 n=100", kElementwiseTolerance, true, L2NormForward, cases);
  Add("l2norm_bwd", "rows=37 n=100", kSumTolerance, true, L2NormBackward, cases);
  Add("elementwise", "n=10007, 37x100", kElementwiseTolerance, true, Elementwise, cases);
  Add("cumsum_scalar", "T=5000", kSumTolerance, true, CumsumScalar, cases);
  Add("cumsum_vector", "T=333 n=12, whole and C=64", kSumTolerance, true, CumsumVector, cases);
  Add("index_lengths", "T=5,0,64,1,130,0", kExact, true, Lengths, cases);
  Add("index_position_ids", "T=5,0,64,1,130,0", kExact, true, PositionIds, cases);
  Add("index_sequence_ids", "T=5,0,64,1,130,0", kExact, true, SequenceIds, cases);
  Add("index_chunk_offsets", "T=5,0,64,1,130,0 C=64", kExact, true, ChunkOffsets, cases);
}

}  // namespace gdn::parity
