// Suite "layer_ops": everything of a layer but the delta rule.

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {
namespace {

constexpr char kSuite[] = "layer_ops";

// Downloads what `params` made on the backend and compares it with what the reference makes.
absl::StatusOr<Difference> CompareDevice(BackendData& data, const float* device, const std::vector<float>& expected) {
  GDN_ASSIGN_OR_RETURN(const std::vector<float> actual, data.Download(device, static_cast<int64_t>(expected.size())));
  return Compare(actual, expected);
}

struct ProjectionCase {
  ProjectionPath path;
  DType dtype;
  int64_t rows, outputs, features;
};

absl::StatusOr<Difference> RunProjection(const ProjectionCase& c, Backend& backend, RandomTensor& random) {
  BackendData data(backend);
  const int64_t x_stride = c.features + 3;
  const int64_t y_stride = c.outputs + 5;
  const std::vector<float> x = random.Normal(c.rows * x_stride);
  const std::vector<float> w = random.Normal(c.outputs * c.features);
  std::vector<char> stored(w.size() * DTypeSize(c.dtype));
  ConvertFromFloat(w.data(), w.size(), c.dtype, stored.data());
  // Between the rows of y lies what the projection must leave alone.
  std::vector<float> expected(c.rows * y_stride, 0.5f);
  std::vector<float> poisoned = expected;
  for (int64_t row = 0; row < c.rows; ++row) std::fill_n(poisoned.begin() + row * y_stride, c.outputs, NAN);
  ProjectionParams params{.path = c.path,
                          .rows = c.rows,
                          .x = x.data(),
                          .x_stride = x_stride,
                          .weight = {c.dtype, stored.data(), c.outputs, c.features},
                          .y = expected.data(),
                          .y_stride = y_stride};
  ProjectionReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, data.Upload(x));
  GDN_ASSIGN_OR_RETURN(params.weight.data, data.UploadBytes(stored.data(), stored.size()));
  GDN_ASSIGN_OR_RETURN(params.y, data.Upload(poisoned));
  GDN_RETURN_IF_ERROR(backend.Projection(params));
  return CompareDevice(data, params.y, expected);
}

void AddProjections(std::vector<ParityCase>& cases) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (ProjectionPath path : {ProjectionPath::kRowStable, ProjectionPath::kSequenceGemm}) {
      const std::string_view name = path == ProjectionPath::kRowStable ? "row_stable" : "sequence_gemm";
      for (const ProjectionCase& c :
           {ProjectionCase{path, dtype, 1, 256, 512}, ProjectionCase{path, dtype, 9, 67, 129},
            ProjectionCase{path, dtype, 70, 300, 200}, ProjectionCase{path, dtype, 33, 1, 7}}) {
        cases.push_back({kSuite, absl::StrCat("projection_", std::string(name), "_", std::string(DTypeName(dtype))),
                         absl::StrCat("rows=", c.rows, " W=[", c.outputs, ",", c.features, "]"), kProjectionTolerance,
                         [c](Backend& backend, RandomTensor& random) { return RunProjection(c, backend, random); }});
      }
    }
  }
}

absl::StatusOr<Difference> RunSplit(ProjectionLayout layout, const LayerDims& dims, int64_t rows, Backend& backend,
                                    RandomTensor& random) {
  BackendData data(backend);
  const std::vector<float> qkvz = random.Normal(rows * (dims.conv_channels() + dims.value_features()));
  const std::vector<float> ba = random.Normal(rows * 2 * dims.value_heads);
  std::vector<float> mixed(rows * dims.conv_channels()), z(rows * dims.value_features());
  std::vector<float> b(rows * dims.value_heads), a(b.size());
  QkvzSplitParams params{.layout = layout,
                         .dims = dims,
                         .rows = rows,
                         .qkvz = qkvz.data(),
                         .ba = ba.data(),
                         .mixed_qkv = mixed.data(),
                         .z = z.data(),
                         .b = b.data(),
                         .a = a.data()};
  QkvzSplitReference(params);
  GDN_ASSIGN_OR_RETURN(params.qkvz, data.Upload(qkvz));
  GDN_ASSIGN_OR_RETURN(params.ba, data.Upload(ba));
  GDN_ASSIGN_OR_RETURN(params.mixed_qkv, data.Poisoned(mixed.size()));
  GDN_ASSIGN_OR_RETURN(params.z, data.Poisoned(z.size()));
  GDN_ASSIGN_OR_RETURN(params.b, data.Poisoned(b.size()));
  GDN_ASSIGN_OR_RETURN(params.a, data.Poisoned(a.size()));
  GDN_RETURN_IF_ERROR(backend.QkvzSplit(params));
  GDN_ASSIGN_OR_RETURN(Difference difference, CompareDevice(data, params.mixed_qkv, mixed));
  GDN_ASSIGN_OR_RETURN(const Difference of_z, CompareDevice(data, params.z, z));
  GDN_ASSIGN_OR_RETURN(const Difference of_b, CompareDevice(data, params.b, b));
  GDN_ASSIGN_OR_RETURN(const Difference of_a, CompareDevice(data, params.a, a));
  for (const Difference& other : {of_z, of_b, of_a}) difference.Merge(other);
  return difference;
}

void AddSplits(std::vector<ParityCase>& cases) {
  for (ProjectionLayout layout : {ProjectionLayout::kInterleaved, ProjectionLayout::kFlat}) {
    for (int32_t group : {1, 3}) {
      const LayerDims dims{
          .key_heads = 4, .value_heads = 4 * group, .key_dim = 24, .value_dim = 40, .conv_width = 4, .hidden_size = 64};
      cases.push_back({kSuite, layout == ProjectionLayout::kFlat ? "qkvz_split_flat" : "qkvz_split_interleaved",
                       absl::StrCat("rows=37 ", LayerDimsToString(dims)), kExact,
                       [layout, dims](Backend& backend, RandomTensor& random) {
                         return RunSplit(layout, dims, 37, backend, random);
                       }});
    }
  }
}

// `calls` calls of the same lengths, each carrying on where the one before stopped.
absl::StatusOr<Difference> RunConv(int32_t width, const std::vector<int32_t>& lengths, int calls, Backend& backend,
                                   RandomTensor& random) {
  BackendData data(backend);
  const LayerDims dims{
      .key_heads = 2, .value_heads = 4, .key_dim = 33, .value_dim = 40, .conv_width = width, .hidden_size = 64};
  const OwnedBatch batch(lengths);
  const int32_t sequences = batch.view().sequences;
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, dims, sequences, /*max_draft=*/3));
  std::vector<int64_t> counts(sequences);
  for (int32_t i = 0; i < sequences; ++i) {
    counts[i] = 5 * i;
    if (i > 0) GDN_RETURN_IF_ERROR(state.Randomize(i, counts[i], random));  // sequence 0 is fresh
  }
  const std::vector<float> weight = random.Normal(dims.conv_channels() * width);
  GDN_ASSIGN_OR_RETURN(const float* device_weight, data.Upload(weight));
  OutputPair outputs;
  for (int call = 0; call < calls; ++call) {
    const std::vector<float> x = random.Normal(batch.tokens() * dims.conv_channels());
    std::vector<float> expected(x.size());
    CausalConv1dParams params{.pool = state.host(),
                              .batch = batch.view(),
                              .token_counts = counts.data(),
                              .x = x.data(),
                              .weight = weight.data(),
                              .y = expected.data()};
    CausalConv1dReference(params);
    params.pool = state.device();
    params.weight = device_weight;
    GDN_ASSIGN_OR_RETURN(params.x, data.Upload(x));
    GDN_ASSIGN_OR_RETURN(params.y, data.Poisoned(x.size()));
    GDN_RETURN_IF_ERROR(backend.CausalConv1d(params));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> actual,
                         data.Download(params.y, static_cast<int64_t>(expected.size())));
    outputs.Append(actual, expected);
    for (int32_t i = 0; i < sequences; ++i) counts[i] += lengths[i];
  }
  Difference difference = Compare(outputs.actual, outputs.expected);
  for (int32_t i = 0; i < sequences; ++i) {
    GDN_ASSIGN_OR_RETURN(const Difference of_slot, state.CompareSlot(i, counts[i]));
    difference.Merge(of_slot);
  }
  return difference;
}

void AddConvs(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* test, int32_t width, const std::vector<int32_t>& lengths, int calls) {
    cases.push_back({kSuite, test, absl::StrCat("W=", width, " T=", absl::StrJoin(lengths, ","), " calls=", calls),
                     kElementwiseTolerance, [=](Backend& backend, RandomTensor& random) {
                       return RunConv(width, lengths, calls, backend, random);
                     }});
  };
  for (int32_t width : {2, 3, 4, 9}) {
    add("causal_conv1d_prefill", width, {100}, 1);
    add("causal_conv1d_prefill", width, {1, 2, 0, 70, 5}, 3);
    add("causal_conv1d_decode", width, {1, 1, 1, 1, 1, 1, 1}, 20);
    add("causal_conv1d_decode", width, {2, 1, 3}, 10);
  }
}

absl::StatusOr<Difference> RunGating(ALogConvention convention, float spread, Backend& backend, RandomTensor& random) {
  constexpr int32_t kHeads = 12;
  constexpr int64_t kRows = 65;
  BackendData data(backend);
  std::vector<float> a = random.Normal(kRows * kHeads, spread);
  const std::vector<float> b = random.Normal(kRows * kHeads, spread);
  std::vector<float> a_log = random.Normal(kHeads);
  if (convention == ALogConvention::kNegativeExp) {
    for (float& rate : a_log) rate = -std::exp(rate);
  }
  const std::vector<float> dt_bias = random.Normal(kHeads);
  std::vector<float> g(a.size()), beta(a.size());
  GatingParams params{.convention = convention,
                      .value_heads = kHeads,
                      .rows = kRows,
                      .a = a.data(),
                      .b = b.data(),
                      .a_log = a_log.data(),
                      .dt_bias = dt_bias.data(),
                      .g = g.data(),
                      .beta = beta.data()};
  GatingReference(params);
  GDN_ASSIGN_OR_RETURN(params.a, data.Upload(a));
  GDN_ASSIGN_OR_RETURN(params.b, data.Upload(b));
  GDN_ASSIGN_OR_RETURN(params.a_log, data.Upload(a_log));
  GDN_ASSIGN_OR_RETURN(params.dt_bias, data.Upload(dt_bias));
  GDN_ASSIGN_OR_RETURN(params.g, data.Poisoned(g.size()));
  GDN_ASSIGN_OR_RETURN(params.beta, data.Poisoned(beta.size()));
  GDN_RETURN_IF_ERROR(backend.Gating(params));
  GDN_ASSIGN_OR_RETURN(Difference difference, CompareDevice(data, params.g, g));
  GDN_ASSIGN_OR_RETURN(const Difference of_beta, CompareDevice(data, params.beta, beta));
  difference.Merge(of_beta);
  return difference;
}

void AddGatings(std::vector<ParityCase>& cases) {
  for (ALogConvention convention : {ALogConvention::kRaw, ALogConvention::kNegativeExp}) {
    for (float spread : {1.0f, 200.0f, 1e4f}) {
      cases.push_back(
          {kSuite, convention == ALogConvention::kRaw ? "gating_a_log" : "gating_ssm_a",
           absl::StrCat("rows=65 HV=12 |a|~", spread), kElementwiseTolerance,
           [=](Backend& backend, RandomTensor& random) { return RunGating(convention, spread, backend, random); }});
    }
  }
}

absl::StatusOr<Difference> RunL2Norm(int32_t key_dim, bool normalize, Backend& backend, RandomTensor& random) {
  constexpr int32_t kHeads = 3;
  constexpr int64_t kRows = 29;
  BackendData data(backend);
  const int64_t stride = 2 * kHeads * key_dim + 11;  // q, k and then something else, as in mixed_qkv
  // Norms near 1e-3, where the epsilon shows, up to 1.
  std::vector<float> x = random.Normal(kRows * stride);
  for (int64_t i = 0; i < kRows * stride; ++i) x[i] *= std::pow(10.0f, -static_cast<float>(i / stride % 5));
  std::vector<float> q(kRows * kHeads * key_dim), k(q.size());
  QkL2NormParams params{.key_heads = kHeads,
                        .key_dim = key_dim,
                        .rows = kRows,
                        .normalize = normalize,
                        .scale = 0.25f,
                        .q = x.data(),
                        .k = x.data() + kHeads * key_dim,
                        .in_stride = stride,
                        .q_out = q.data(),
                        .k_out = k.data()};
  QkL2NormReference(params);
  GDN_ASSIGN_OR_RETURN(params.q, data.Upload(x));
  params.k = params.q + kHeads * key_dim;
  GDN_ASSIGN_OR_RETURN(params.q_out, data.Poisoned(q.size()));
  GDN_ASSIGN_OR_RETURN(params.k_out, data.Poisoned(k.size()));
  GDN_RETURN_IF_ERROR(backend.QkL2Norm(params));
  GDN_ASSIGN_OR_RETURN(Difference difference, CompareDevice(data, params.q_out, q));
  GDN_ASSIGN_OR_RETURN(const Difference of_k, CompareDevice(data, params.k_out, k));
  difference.Merge(of_k);
  return difference;
}

absl::StatusOr<Difference> RunRmsNorm(int32_t value_dim, float spread, Backend& backend, RandomTensor& random) {
  constexpr int64_t kRows = 77;
  BackendData data(backend);
  const std::vector<float> x = random.Normal(kRows * value_dim);
  const std::vector<float> z = random.Normal(kRows * value_dim, spread);
  const std::vector<float> weight = random.Normal(value_dim);
  std::vector<float> y(x.size());
  GatedRmsNormParams params{
      .value_dim = value_dim, .rows = kRows, .x = x.data(), .z = z.data(), .weight = weight.data(), .y = y.data()};
  GatedRmsNormReference(params);
  GDN_ASSIGN_OR_RETURN(params.x, data.Upload(x));
  GDN_ASSIGN_OR_RETURN(params.z, data.Upload(z));
  GDN_ASSIGN_OR_RETURN(params.weight, data.Upload(weight));
  GDN_ASSIGN_OR_RETURN(params.y, data.Poisoned(y.size()));
  GDN_RETURN_IF_ERROR(backend.GatedRmsNorm(params));
  return CompareDevice(data, params.y, y);
}

void AddNorms(std::vector<ParityCase>& cases) {
  for (int32_t dim : {16, 100, 128}) {
    for (bool normalize : {true, false}) {
      cases.push_back(
          {kSuite, normalize ? "qk_l2norm" : "qk_scale", absl::StrCat("rows=29 H=3 K=", dim), kElementwiseTolerance,
           [=](Backend& backend, RandomTensor& random) { return RunL2Norm(dim, normalize, backend, random); }});
    }
    for (float spread : {1.0f, 100.0f}) {
      cases.push_back(
          {kSuite, "gated_rmsnorm", absl::StrCat("rows=77 V=", dim, " |z|~", spread), kElementwiseTolerance,
           [=](Backend& backend, RandomTensor& random) { return RunRmsNorm(dim, spread, backend, random); }});
    }
  }
}

}  // namespace

void AddLayerOpsCases(std::vector<ParityCase>& cases) {
  AddProjections(cases);
  AddSplits(cases);
  AddConvs(cases);
  AddGatings(cases);
  AddNorms(cases);
}

}  // namespace gdn::parity
