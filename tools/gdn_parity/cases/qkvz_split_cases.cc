// Rows of qkvz_split: a permutation, so exact.

#include <functional>

#include "absl/strings/str_cat.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

CaseResult RunQkvzSplit(ProjectionLayout layout, const LayerDims& dims, int64_t rows, Backend& backend,
                        RandomTensor& random) {
  using Params = QkvzSplitParams;
  const int64_t channels = dims.conv_channels(), values = dims.value_features(), heads = dims.value_heads;
  std::vector<float> qkvz = random.Normal(rows * (channels + values));
  return OperatorCall<Params>("qkvz_split",
                              {{"layout", layout == ProjectionLayout::kFlat ? "flat" : "interleaved"},
                               {"key_heads", absl::StrCat(dims.key_heads)},
                               {"value_heads", absl::StrCat(dims.value_heads)},
                               {"key_dim", absl::StrCat(dims.key_dim)},
                               {"value_dim", absl::StrCat(dims.value_dim)}},
                              {.layout = layout, .dims = dims, .rows = rows})
      .In(&Params::qkvz, "qkvz", {rows, channels + values}, std::move(qkvz))
      .In(&Params::ba, "ba", {rows, 2 * heads}, random.Normal(rows * 2 * heads))
      .Out(&Params::mixed_qkv, "mixed_qkv", {rows, channels})
      .Out(&Params::z, "z", {rows, values})
      .Out(&Params::b, "b", {rows, heads})
      .Out(&Params::a, "a", {rows, heads})
      .Run(backend, QkvzSplitReference, &Backend::QkvzSplit);
}

CaseResult RunBothQkvzSplit(const LayerDims& dims, int64_t rows, Backend& backend, RandomTensor& random) {
  return Worst({RunQkvzSplit(ProjectionLayout::kInterleaved, dims, rows, backend, random),
                RunQkvzSplit(ProjectionLayout::kFlat, dims, rows, backend, random)});
}

}  // namespace

void AddQkvzSplitCases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* suite, ProjectionLayout layout, const LayerDims& dims, int64_t rows) {
    cases.push_back({suite, layout == ProjectionLayout::kFlat ? "qkvz_split_flat" : "qkvz_split_interleaved",
                     absl::StrCat("rows=", rows, " ", LayerDimsToString(dims)), kExact,
                     std::bind_front(RunQkvzSplit, layout, dims, rows)});
  };
  for (const ProjectionLayout layout : {ProjectionLayout::kInterleaved, ProjectionLayout::kFlat}) {
    for (const int32_t group : {1, 3}) add("layer_ops", layout, {4, 4 * group, 24, 40, 4, 64}, 37);
    for (const int32_t group : {1, 2, 3}) {
      for (const int64_t rows : {1, 5, 300}) add("shapes", layout, {3, 3 * group, 7, 5, 4, 8}, rows);
    }
    for (const LayerDims& dims : {LayerDims{2, 4, 8, 12, 4, 16}, LayerDims{1, 1, 33, 3, 4, 8}}) {
      add("shapes", layout, dims, 5);
    }
  }
  cases.push_back({"parity", "qkvzba_split", "rows=19 H=4 HV=12 K=24 V=40, both layouts", kExact,
                   std::bind_front(RunBothQkvzSplit, LayerDims{4, 12, 24, 40, 4, 64}, 19), kExact});
}

}  // namespace gdn::parity
