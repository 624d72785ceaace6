// Suite "parity", rows 23 to 34: the stages of the chunked path and the triangular solves. Each stage gets what the
// stages before it make by their references, so that a row's difference is its own.

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "kernels/primitives/delta_rule_stages/delta_rule_stages.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/delta_rule_rows.h"
#include "tools/gdn_parity/operator_row.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {
namespace {

constexpr char kSuite[] = "parity";

using Result = absl::StatusOr<Difference>;

// A problem, and every intermediate tensor by the references, on the host.
struct Stages {
  DeltaRuleProblem problem;
  std::vector<int32_t> cu_seqlens, chunk_offsets;
  ChunkedBatch batch;
  std::vector<double> g_sum;
  std::vector<float> a, t, attention, w, u, h, v_new, output, final_state;

  std::vector<int64_t> Gates() const { return {batch.tokens, batch.dims.value_heads}; }
  std::vector<int64_t> Keys() const { return {batch.tokens, batch.dims.key_heads, batch.dims.key_dim}; }
  std::vector<int64_t> Values() const { return {batch.tokens, batch.dims.value_heads, batch.dims.value_dim}; }
  std::vector<int64_t> Ws() const { return {batch.tokens, batch.dims.value_heads, batch.dims.key_dim}; }
  std::vector<int64_t> Matrices() const {
    return {batch.chunks, batch.dims.value_heads, batch.chunk_tokens, batch.chunk_tokens};
  }
  std::vector<int64_t> States(int64_t count) const {
    return {count, batch.dims.value_heads, batch.dims.key_dim, batch.dims.value_dim};
  }
  int64_t k_stride() const { return batch.dims.key_features(); }
  int64_t v_stride() const { return batch.dims.value_features(); }
};

Stages MakeStages(int32_t chunk_tokens, RandomTensor& random) {
  const LayerDims dims{.key_heads = 2, .value_heads = 4, .key_dim = 40, .value_dim = 24};
  Stages s;
  s.problem = RandomDeltaRule(dims, {chunk_tokens + 5, 0, 3, chunk_tokens}, {}, random);
  s.problem.g[7] = -1e4f;  // one token forgets everything
  const OwnedBatch packed(s.problem.lengths);
  s.cu_seqlens = packed.cu_seqlens;
  s.chunk_offsets = {0};
  for (const int32_t length : s.problem.lengths) {
    s.chunk_offsets.push_back(s.chunk_offsets.back() + (length + chunk_tokens - 1) / chunk_tokens);
  }
  s.batch = {.dims = dims,
             .chunk_tokens = chunk_tokens,
             .sequences = static_cast<int32_t>(s.problem.sequences()),
             .tokens = packed.tokens(),
             .chunks = s.chunk_offsets.back(),
             .cu_seqlens = s.cu_seqlens.data(),
             .chunk_offsets = s.chunk_offsets.data()};
  const DeltaRuleProblem& p = s.problem;
  const int64_t matrices = int64_t{s.batch.chunks} * dims.value_heads;
  s.g_sum.resize(p.g.size());
  s.a.resize(matrices * chunk_tokens * chunk_tokens);
  s.t.resize(s.a.size());
  s.attention.resize(s.a.size());
  s.w.resize(p.g.size() * dims.key_dim);
  s.u.resize(p.v.size());
  s.v_new.resize(p.v.size());
  s.output.resize(p.v.size());
  s.h.resize(matrices * dims.key_dim * dims.value_dim);
  s.final_state.resize(p.initial.size());
  CumsumKktReference({s.batch, p.k.data(), s.k_stride(), p.g.data(), p.beta.data(), s.g_sum.data(), s.a.data()});
  UnitLowerInverseReference({matrices, chunk_tokens, s.a.data(), s.t.data()});
  ChunkAttentionReference(
      {s.batch, p.q.data(), p.k.data(), s.k_stride(), s.k_stride(), s.g_sum.data(), s.attention.data()});
  WyReference({s.batch, s.t.data(), p.k.data(), p.v.data(), s.k_stride(), s.v_stride(), p.beta.data(), s.g_sum.data(),
               s.w.data(), s.u.data()});
  ChunkStateReference({s.batch, p.k.data(), s.k_stride(), s.w.data(), s.u.data(), s.g_sum.data(), p.initial.data(),
                       s.h.data(), s.v_new.data(), s.final_state.data()});
  ChunkOutputReference({s.batch, p.q.data(), s.k_stride(), s.h.data(), s.attention.data(), s.v_new.data(),
                        s.g_sum.data(), s.output.data()});
  return s;
}

// The batch with its index arrays on the device.
absl::StatusOr<ChunkedBatch> UploadBatch(const Stages& s, OperatorRow& row) {
  ChunkedBatch batch = s.batch;
  GDN_ASSIGN_OR_RETURN(batch.cu_seqlens,
                       row.In("cu_seqlens", {static_cast<int64_t>(s.cu_seqlens.size())}, s.cu_seqlens));
  GDN_ASSIGN_OR_RETURN(batch.chunk_offsets,
                       row.In("chunk_offsets", {static_cast<int64_t>(s.chunk_offsets.size())}, s.chunk_offsets));
  return batch;
}

OperatorRow StageRow(Backend& backend, const char* op, const Stages& s, Attributes attributes = {}) {
  attributes["chunk_tokens"] = absl::StrCat(s.batch.chunk_tokens);
  return OperatorRow(backend, op, std::move(attributes));
}

Result FusedCumsumKkt(bool wants_a, const Stages& s, Backend& backend, const gpu::Stream& stream) {
  OperatorRow row = StageRow(backend, "cumsum_kkt", s);
  CumsumKktParams p{.k_stride = s.k_stride()};
  GDN_ASSIGN_OR_RETURN(p.batch, UploadBatch(s, row));
  GDN_ASSIGN_OR_RETURN(p.k, row.In("k", s.Keys(), s.problem.k));
  GDN_ASSIGN_OR_RETURN(p.g, row.In("g", s.Gates(), s.problem.g));
  GDN_ASSIGN_OR_RETURN(p.beta, row.In("beta", s.Gates(), s.problem.beta));
  if (wants_a) {
    GDN_ASSIGN_OR_RETURN(void* g_sum, row.data().PoisonedBytes(s.g_sum.size() * sizeof(double)));
    p.g_sum = static_cast<double*>(g_sum);
    GDN_ASSIGN_OR_RETURN(p.a, row.Out("a", s.Matrices(), s.a));
  } else {
    GDN_ASSIGN_OR_RETURN(p.g_sum, row.Out("g_sum", s.Gates(), s.g_sum));
    GDN_ASSIGN_OR_RETURN(p.a, row.data().Poisoned(static_cast<int64_t>(s.a.size())));
  }
  GDN_RETURN_IF_ERROR(CumsumKktGpu(p, stream));
  return row.Finish();
}

Result DecaySums(const Stages& s, Backend& backend, const gpu::Stream& stream) {
  OperatorRow row = StageRow(backend, "chunk_decay_sums", s);
  ChunkDecaySumsParams p;
  GDN_ASSIGN_OR_RETURN(p.batch, UploadBatch(s, row));
  GDN_ASSIGN_OR_RETURN(p.g, row.In("g", s.Gates(), s.problem.g));
  GDN_ASSIGN_OR_RETURN(p.g_sum, row.Out("g_sum", s.Gates(), s.g_sum));
  GDN_RETURN_IF_ERROR(ChunkDecaySumsGpu(p, stream));
  return row.Finish();
}

Result Kkt(bool decays, const Stages& s, Backend& backend, const gpu::Stream& stream) {
  OperatorRow row = StageRow(backend, "chunk_kkt", s, {{"decays", decays ? "1" : "0"}});
  std::vector<float> expected(s.a.size());
  ChunkKktParams p{.batch = s.batch,
                   .k = s.problem.k.data(),
                   .k_stride = s.k_stride(),
                   .beta = s.problem.beta.data(),
                   .g_sum = decays ? s.g_sum.data() : nullptr,
                   .a = expected.data()};
  ChunkKktReference(p);
  GDN_ASSIGN_OR_RETURN(p.batch, UploadBatch(s, row));
  GDN_ASSIGN_OR_RETURN(p.k, row.In("k", s.Keys(), s.problem.k));
  GDN_ASSIGN_OR_RETURN(p.beta, row.In("beta", s.Gates(), s.problem.beta));
  if (decays) {
    GDN_ASSIGN_OR_RETURN(p.g_sum, row.In("g_sum", s.Gates(), s.g_sum));
  }
  GDN_ASSIGN_OR_RETURN(p.a, row.Out("a", s.Matrices(), expected));
  GDN_RETURN_IF_ERROR(ChunkKktGpu(p, stream));
  return row.Finish();
}

Result SolveInPlace(const Stages& s, Backend& backend, const gpu::Stream& stream) {
  OperatorRow row = StageRow(backend, "unit_lower_inverse", s);
  GDN_ASSIGN_OR_RETURN(float* a, row.InPlace("a", "a", s.Matrices(), s.a, s.t));
  GDN_RETURN_IF_ERROR(UnitLowerInverseGpu(
      {.batch = int64_t{s.batch.chunks} * s.batch.dims.value_heads, .size = s.batch.chunk_tokens, .a = a, .inverse = a},
      stream));
  return row.Finish();
}

Result Wy(const Stages& s, Backend& backend, const gpu::Stream& stream) {
  OperatorRow row = StageRow(backend, "wy", s);
  WyParams p{.k_stride = s.k_stride(), .v_stride = s.v_stride()};
  GDN_ASSIGN_OR_RETURN(p.batch, UploadBatch(s, row));
  GDN_ASSIGN_OR_RETURN(p.t, row.In("t", s.Matrices(), s.t));
  GDN_ASSIGN_OR_RETURN(p.k, row.In("k", s.Keys(), s.problem.k));
  GDN_ASSIGN_OR_RETURN(p.v, row.In("v", s.Values(), s.problem.v));
  GDN_ASSIGN_OR_RETURN(p.beta, row.In("beta", s.Gates(), s.problem.beta));
  GDN_ASSIGN_OR_RETURN(p.g_sum, row.In("g_sum", s.Gates(), s.g_sum));
  GDN_ASSIGN_OR_RETURN(p.w, row.Out("w", s.Ws(), s.w));
  GDN_ASSIGN_OR_RETURN(p.u, row.Out("u", s.Values(), s.u));
  GDN_RETURN_IF_ERROR(WyGpu(p, stream));
  return row.Finish();
}

Result ChunkState(const Stages& s, Backend& backend, const gpu::Stream& stream) {
  OperatorRow row = StageRow(backend, "chunk_state", s);
  ChunkStateParams p{.k_stride = s.k_stride()};
  const int64_t sequences = s.problem.sequences();
  GDN_ASSIGN_OR_RETURN(p.batch, UploadBatch(s, row));
  GDN_ASSIGN_OR_RETURN(p.k, row.In("k", s.Keys(), s.problem.k));
  GDN_ASSIGN_OR_RETURN(p.w, row.In("w", s.Ws(), s.w));
  GDN_ASSIGN_OR_RETURN(p.u, row.In("u", s.Values(), s.u));
  GDN_ASSIGN_OR_RETURN(p.g_sum, row.In("g_sum", s.Gates(), s.g_sum));
  GDN_ASSIGN_OR_RETURN(p.initial_state, row.In("initial_state", s.States(sequences), s.problem.initial));
  GDN_ASSIGN_OR_RETURN(p.h, row.Out("h", s.States(s.batch.chunks), s.h));
  GDN_ASSIGN_OR_RETURN(p.v_new, row.Out("v_new", s.Values(), s.v_new));
  GDN_ASSIGN_OR_RETURN(p.final_state, row.Out("final_state", s.States(sequences), s.final_state));
  GDN_RETURN_IF_ERROR(ChunkStateGpu(p, stream));
  return row.Finish();
}

Result ChunkOutput(const Stages& s, Backend& backend, const gpu::Stream& stream) {
  OperatorRow row = StageRow(backend, "chunk_output", s);
  ChunkOutputParams p{.q_stride = s.k_stride()};
  GDN_ASSIGN_OR_RETURN(p.batch, UploadBatch(s, row));
  GDN_ASSIGN_OR_RETURN(p.q, row.In("q", s.Keys(), s.problem.q));
  GDN_ASSIGN_OR_RETURN(p.h, row.In("h", s.States(s.batch.chunks), s.h));
  GDN_ASSIGN_OR_RETURN(p.attention, row.In("attention", s.Matrices(), s.attention));
  GDN_ASSIGN_OR_RETURN(p.v_new, row.In("v_new", s.Values(), s.v_new));
  GDN_ASSIGN_OR_RETURN(p.g_sum, row.In("g_sum", s.Gates(), s.g_sum));
  GDN_ASSIGN_OR_RETURN(p.output, row.Out("output", s.Values(), s.output));
  GDN_RETURN_IF_ERROR(ChunkOutputGpu(p, stream));
  return row.Finish();
}

void Add(const char* test, const std::string& shape, std::function<Result(Backend&, RandomTensor&)> run,
         std::vector<ParityCase>& cases) {
  ParityCase c{kSuite, test, shape, kSumTolerance, std::move(run)};
  c.max_tolerance = kSumTolerance;
  c.gpu_only = true;
  cases.push_back(std::move(c));
}

using StageRun = std::function<Result(const Stages&, Backend&, const gpu::Stream&)>;

// A row with chunks of 16, 32 and 64.
void AddStage(const char* test, StageRun run, std::vector<ParityCase>& cases) {
  Add(
      test, "H=2 HV=4 K=40 V=24 T=C+5,0,3,C C=16,32,64",
      [run = std::move(run)](Backend& backend, RandomTensor& random) -> Result {
        GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
        Difference worst;
        for (const int32_t chunk_tokens : {16, 32, 64}) {
          GDN_ASSIGN_OR_RETURN(const Difference difference, run(MakeStages(chunk_tokens, random), backend, stream));
          worst.Merge(difference);
        }
        return worst;
      },
      cases);
}

}  // namespace

void AddStageCases(std::vector<ParityCase>& cases) {
  const auto with = [](auto function, bool flag) {
    return [=](const Stages& s, Backend& backend, const gpu::Stream& stream) {
      return function(flag, s, backend, stream);
    };
  };
  AddStage("fused_cumsum_kkt_g", with(FusedCumsumKkt, false), cases);
  AddStage("fused_cumsum_kkt_A", with(FusedCumsumKkt, true), cases);
  AddStage("chunk_cumsum", DecaySums, cases);
  AddStage("chunk_A", with(Kkt, true), cases);
  AddStage("chunk_solve_in_place", SolveInPlace, cases);
  AddStage("chunk_w_u", Wy, cases);
  AddStage("chunk_state", ChunkState, cases);
  AddStage("chunk_output", ChunkOutput, cases);
  AddStage("wy_kkt", with(Kkt, false), cases);
}

}  // namespace gdn::parity
