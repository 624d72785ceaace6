// A whole layer of Qwen3-Next's dimensions and projection layout, with BF16 weights: decode and prefill from
// hidden_states.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/layer/gdn_layer.h"
#include "kernels/layer/layer_weights.h"
#include "tools/gdn_bench/kernel_case.h"

namespace gdn::bench {
namespace {

constexpr int32_t kCpuDecodeBatches[] = {1, 8, 32};
constexpr int32_t kGpuDecodeBatches[] = {1, 8, 32, 128};
constexpr int32_t kPrefillLengths[] = {512, 2048};
constexpr DType kWeightDtype = DType::kBF16;

// The weights of `layers` layers, one after the other in one buffer, as a model holds them.
struct StackedWeights {
  std::shared_ptr<DeviceBuffer> projections;
  std::shared_ptr<DeviceBuffer> small;  // conv [C, W], A_log [HV], dt_bias [HV], norm [V]; shared by the layers
  std::vector<LayerWeights> layers;
};

absl::StatusOr<StackedWeights> MakeWeights(Backend& backend, const LayerDims& dims, int64_t layers) {
  StackedWeights stacked;
  const float range = std::sqrt(3.0f / static_cast<float>(dims.hidden_size));
  const int64_t elements = ProjectionElements(dims);
  GDN_ASSIGN_OR_RETURN(stacked.projections, RandomBuffer(backend, layers * elements, -range, range, kWeightDtype));
  const int64_t conv = dims.conv_channels() * dims.conv_width;
  GDN_ASSIGN_OR_RETURN(stacked.small,
                       RandomBuffer(backend, conv + 2 * int64_t{dims.value_heads} + dims.value_dim, -0.5f, 0.5f));
  const char* at = static_cast<const char*>(stacked.projections->data());
  const auto take = [&at](int64_t rows, int64_t cols) {
    const WeightMatrix matrix{.dtype = kWeightDtype, .data = at, .rows = rows, .cols = cols};
    at += rows * cols * static_cast<int64_t>(DTypeSize(kWeightDtype));
    return matrix;
  };
  for (int64_t layer = 0; layer < layers; ++layer) {
    LayerWeights w;
    w.dims = dims;
    w.layout = ProjectionLayout::kInterleaved;
    w.in_qkv = take(dims.conv_channels() + dims.value_features(), dims.hidden_size);
    w.in_b = take(2 * int64_t{dims.value_heads}, dims.hidden_size);
    w.out = take(dims.hidden_size, dims.value_features());
    w.conv_weight = stacked.small->floats();
    w.a_log = w.conv_weight + conv;
    w.dt_bias = w.a_log + dims.value_heads;
    w.norm_weight = w.dt_bias + dims.value_heads;
    GDN_RETURN_IF_ERROR(ValidateLayerWeights(w));
    stacked.layers.push_back(w);
  }
  return stacked;
}

// A model's layers take turns, each with weights and states of its own, so that a layer finds neither in a cache.
struct LayerFixture {
  StackedWeights weights;
  RandomStatePool pool;
  std::shared_ptr<DeviceBuffer> hidden_states;
  std::shared_ptr<DeviceBuffer> output;
  std::vector<int32_t> cu_seqlens;
  std::vector<int32_t> slots;               // [layers, batch]
  std::vector<int32_t> log_lengths;         // [layers, batch]
  std::vector<int64_t> first_token_counts;  // [layers, batch], of a run
  std::vector<int64_t> token_counts;        // [layers, batch]
  int32_t batch = 0;
  std::unique_ptr<GdnLayerRunner> runner;

  LayerStep Step(size_t layer) const {
    LayerStep step;
    step.weights = &weights.layers[layer];
    step.pool = pool.view;
    step.batch = {.sequences = batch, .cu_seqlens = cu_seqlens.data(), .slots = slots.data() + layer * batch};
    step.token_counts = token_counts.data() + layer * batch;
    step.kind = InputKind::kHiddenStates;
    step.hidden_states = hidden_states->floats();
    step.output = output->floats();
    return step;
  }

  // L tokens, so that every session's log is folded once. Each run begins at the same counts, so that it is the same
  // work again, to the last index array.
  absl::Status RunDecode() {
    token_counts = first_token_counts;
    for (int32_t token = 0; token < kLogCapacity; ++token) {
      for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
        GDN_RETURN_IF_ERROR(runner->Decode(Step(layer), log_lengths.data() + layer * batch));
        for (int32_t i = 0; i < batch; ++i) ++token_counts[layer * batch + i];
      }
    }
    return absl::OkStatus();
  }
};

absl::StatusOr<std::shared_ptr<LayerFixture>> MakeLayerFixture(Backend& backend, const LayerDims& dims, int64_t layers,
                                                               int32_t batch, int32_t tokens_each) {
  auto fixture = std::make_shared<LayerFixture>();
  GDN_ASSIGN_OR_RETURN(fixture->weights, MakeWeights(backend, dims, layers));
  const int32_t slot_count = static_cast<int32_t>(layers) * batch;
  GDN_ASSIGN_OR_RETURN(fixture->pool, MakeStatePool(backend, dims, slot_count));
  const int64_t rows = int64_t{batch} * tokens_each;
  GDN_ASSIGN_OR_RETURN(fixture->hidden_states, RandomBuffer(backend, rows * dims.hidden_size, -1.0f, 1.0f));
  GDN_ASSIGN_OR_RETURN(fixture->output, RandomBuffer(backend, rows * dims.hidden_size, 0.0f, 1.0f));
  for (int32_t i = 0; i <= batch; ++i) fixture->cu_seqlens.push_back(i * tokens_each);
  fixture->slots.resize(static_cast<size_t>(slot_count));
  std::iota(fixture->slots.begin(), fixture->slots.end(), 0);
  fixture->batch = batch;
  fixture->runner = std::make_unique<GdnLayerRunner>(backend);
  return fixture;
}

double LayerWeightBytes(const LayerDims& dims) {
  return static_cast<double>(ProjectionElements(dims)) * static_cast<double>(DTypeSize(kWeightDtype));
}

absl::StatusOr<PreparedCase> PrepareLayerDecode(const CaseSetting& setting, const LayerDims& dims, int32_t batch) {
  const double state_bytes = sizeof(float) * static_cast<double>(dims.state_elements());
  const double layer_bytes = LayerWeightBytes(dims) + batch * state_bytes;
  const int64_t layers =
      std::max<int64_t>(2, static_cast<int64_t>(std::ceil(static_cast<double>(setting.rotation_bytes) / layer_bytes)));
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeLayerFixture(setting.backend, dims, layers, batch, /*tokens_each=*/1));
  const int64_t slots = layers * batch;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int32_t log_length = static_cast<int32_t>(slot * kLogCapacity / slots);
    fixture->log_lengths.push_back(log_length);
    fixture->first_token_counts.push_back(log_length);
  }
  return PreparedCase{.cost = LayerDecodeCost(dims, kWeightDtype, batch),
                      .steps = layers * kLogCapacity,
                      .working_set_bytes = static_cast<double>(layers) * layer_bytes,
                      .run = [fixture] { return fixture->RunDecode(); }};
}

absl::StatusOr<PreparedCase> PrepareLayerPrefill(Backend& backend, const LayerDims& dims, int32_t sequences,
                                                 int32_t tokens_each) {
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeLayerFixture(backend, dims, /*layers=*/1, sequences, tokens_each));
  fixture->token_counts.assign(static_cast<size_t>(sequences), 0);
  const Cost cost = LayerPrefillCost(dims, kWeightDtype, sequences, tokens_each);
  return PreparedCase{.cost = cost, .working_set_bytes = cost.bytes_read + cost.bytes_written, .run = [fixture] {
                        return fixture->runner->Prefill(fixture->Step(0));
                      }};
}

// Qwen3.5's largest layers.
LayerDims LargeLayerDims() {
  LayerDims dims = BenchLayerDims();
  dims.value_heads = 48;
  dims.hidden_size = 2560;
  return dims;
}

KernelCase DecodeCase(const std::string& name, const LayerDims& dims, int32_t batch) {
  return {absl::StrCat("layer_decode/BF16/", name, "B=", batch),
          [=](const CaseSetting& setting) { return PrepareLayerDecode(setting, dims, batch); }};
}

KernelCase PrefillCase(const std::string& name, const LayerDims& dims, int32_t sequences, int32_t tokens_each) {
  const std::string batch = sequences == 1 ? "" : absl::StrCat("B=", sequences, "/");
  return {absl::StrCat("layer_prefill/BF16/", name, batch, "T=", tokens_each), [=](const CaseSetting& setting) {
            return PrepareLayerPrefill(setting.backend, dims, sequences, tokens_each);
          }};
}

}  // namespace

KernelCase LayerDecodeCase(int32_t batch) { return DecodeCase("", BenchLayerDims(), batch); }

KernelCase LayerPrefillCase(int32_t sequences, int32_t tokens_each) {
  return PrefillCase("", BenchLayerDims(), sequences, tokens_each);
}

std::vector<KernelCase> LayerCases(CaseList list) {
  const auto batches =
      list == CaseList::kGpu ? absl::MakeConstSpan(kGpuDecodeBatches) : absl::MakeConstSpan(kCpuDecodeBatches);
  std::vector<KernelCase> cases;
  for (const int32_t batch : batches) cases.push_back(LayerDecodeCase(batch));
  for (const int32_t tokens : kPrefillLengths) cases.push_back(LayerPrefillCase(/*sequences=*/1, tokens));
  if (list == CaseList::kGpu) {
    cases.push_back(LayerPrefillCase(/*sequences=*/8, /*tokens_each=*/2048));
    cases.push_back(DecodeCase("HV=48,D=2560/", LargeLayerDims(), /*batch=*/32));
    cases.push_back(PrefillCase("HV=48,D=2560/", LargeLayerDims(), /*sequences=*/1, /*tokens_each=*/2048));
  }
  return cases;
}

}  // namespace gdn::bench
