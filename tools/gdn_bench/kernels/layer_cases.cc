// A whole layer of Qwen3-Next's dimensions and projection layout, with BF16 weights: decode and prefill from
// hidden_states.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/layer/gdn_layer.h"
#include "kernels/layer/layer_weights.h"
#include "tools/gdn_bench/kernels/kernel_case.h"

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
    const WeightMatrix matrix = PlainMatrix(kWeightDtype, at, rows, cols);
    at += rows * cols * static_cast<int64_t>(DTypeSize(kWeightDtype));
    return matrix;
  };
  for (int64_t layer = 0; layer < layers; ++layer) {
    LayerWeights w;
    w.spec.dims = dims;
    w.spec.projections = ProjectionLayout::kInterleaved;
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

absl::StatusOr<std::shared_ptr<LayerFixture>> MakeLayerFixture(const CaseSetting& setting, const LayerDims& dims,
                                                               int64_t layers, int32_t batch, int32_t tokens_each,
                                                               int32_t max_draft = kBenchMaxDraft) {
  Backend& backend = setting.backend;
  auto fixture = std::make_shared<LayerFixture>();
  GDN_ASSIGN_OR_RETURN(fixture->weights, MakeWeights(backend, dims, layers));
  const int32_t slot_count = static_cast<int32_t>(layers) * batch;
  GDN_ASSIGN_OR_RETURN(fixture->pool, MakeStatePool(backend, dims, slot_count, setting.state_dtype, max_draft));
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

// Layers whose decodes are launched as server/batcher/launch_lane.h does it.
class ServedLayers {
 public:
  static constexpr DType kDType = DType::kBF16;

  static absl::StatusOr<std::shared_ptr<ServedLayers>> Make(Backend& backend, std::shared_ptr<LayerFixture> layers) {
    auto served = std::make_shared<ServedLayers>(backend, std::move(layers));
    for (Lane& lane : served->lanes_) {
      GDN_ASSIGN_OR_RETURN(lane.in, DeviceBuffer::Make(backend, served->in_bytes()));
      GDN_ASSIGN_OR_RETURN(lane.host_in, HostBuffer::Make(backend, served->in_bytes()));
      GDN_ASSIGN_OR_RETURN(lane.out, DeviceBuffer::Make(backend, served->row_bytes_));
      GDN_ASSIGN_OR_RETURN(lane.host_out, HostBuffer::Make(backend, served->row_bytes_));
      std::memset(lane.host_in.data(), 0, served->in_bytes());
    }
    GDN_RETURN_IF_ERROR(backend.Synchronize());
    return served;
  }

  // Sessions lie in any slots of the pool.
  ServedLayers(Backend& backend, std::shared_ptr<LayerFixture> layers)
      : backend_(backend),
        layers_(std::move(layers)),
        row_bytes_(RoundUp64(layers_->batch * layers_->weights.layers[0].spec.dims.hidden_size * DTypeSize(kDType))) {
    std::shuffle(layers_->slots.begin(), layers_->slots.end(), std::mt19937());
    layers_->token_counts = layers_->first_token_counts;
  }
  ServedLayers(const ServedLayers&) = delete;
  ~ServedLayers() {
    for (Lane& lane : lanes_) static_cast<void>(Await(lane));  // a run has reported failures
  }

  // L tokens of each layer. Sessions come in another order each time, at counts that go on from run to run.
  absl::Status Run() {
    GDN_RETURN_IF_ERROR(backend_.UseThread());
    for (int32_t token = 0; token < kLogCapacity; ++token) {
      for (size_t layer = 0; layer < layers_->weights.layers.size(); ++layer) GDN_RETURN_IF_ERROR(Decode(layer));
    }
    return absl::OkStatus();
  }

 private:
  struct Lane {
    DeviceBuffer in, out;
    HostBuffer host_in, host_out;
    bool under_way = false;
    Fence fence;
  };

  static size_t RoundUp64(size_t bytes) { return (bytes + 63) / 64 * 64; }
  size_t in_bytes() const { return row_bytes_ + backend_.BatchArrayBytes(layers_->batch); }

  absl::Status Await(Lane& lane) {
    if (!std::exchange(lane.under_way, false)) return absl::OkStatus();
    return backend_.WaitFence(lane.fence);
  }

  absl::Status Decode(size_t layer) {
    LayerFixture& l = *layers_;
    Lane& lane = lanes_[launches_++ % lanes_.size()];
    GDN_RETURN_IF_ERROR(Await(lane));
    const auto rotate = [&](auto& of_layers) {
      const auto begin = of_layers.begin() + static_cast<ptrdiff_t>(layer) * l.batch;
      std::rotate(begin, begin + 1, begin + l.batch);
    };
    rotate(l.slots);
    rotate(l.token_counts);
    rotate(l.log_lengths);
    int32_t* const log_lengths = l.log_lengths.data() + layer * l.batch;
    LayerStep step = l.Step(layer);
    step.hidden_states = {lane.in.data(), kDType};
    step.output = {lane.out.data(), kDType};
    GDN_RETURN_IF_ERROR(backend_.StageIn({.device = lane.in.data(),
                                          .host = lane.host_in.data(),
                                          .bytes = row_bytes_,
                                          .batch = step.batch,
                                          .token_counts = step.token_counts,
                                          .log_lengths = log_lengths}));
    GDN_RETURN_IF_ERROR(l.runner->Decode(step, log_lengths));
    GDN_RETURN_IF_ERROR(backend_.StageOut(lane.host_out.data(), lane.out.data(), row_bytes_));
    GDN_ASSIGN_OR_RETURN(lane.fence, backend_.MakeFence());
    lane.under_way = true;
    for (int32_t i = 0; i < l.batch; ++i) ++l.token_counts[layer * l.batch + i];
    return absl::OkStatus();
  }

  Backend& backend_;
  const std::shared_ptr<LayerFixture> layers_;
  const size_t row_bytes_;
  std::array<Lane, 2> lanes_;
  size_t launches_ = 0;
};

double LayerWeightBytes(const LayerDims& dims) {
  return static_cast<double>(ProjectionElements(dims)) * static_cast<double>(DTypeSize(kWeightDtype));
}

absl::StatusOr<PreparedCase> PrepareLayerDecode(const CaseSetting& setting, const LayerDims& dims, int32_t batch,
                                                bool served) {
  const double state_bytes =
      static_cast<double>(DTypeSize(setting.state_dtype)) * static_cast<double>(dims.state_elements());
  const double layer_bytes = LayerWeightBytes(dims) + batch * state_bytes;
  const int64_t layers =
      std::max<int64_t>(2, static_cast<int64_t>(std::ceil(static_cast<double>(setting.rotation_bytes) / layer_bytes)));
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeLayerFixture(setting, dims, layers, batch, /*tokens_each=*/1));
  const int64_t slots = layers * batch;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int32_t log_length = static_cast<int32_t>(slot * kLogCapacity / slots);
    fixture->log_lengths.push_back(log_length);
    fixture->first_token_counts.push_back(log_length);
  }
  PreparedCase prepared{.cost = LayerDecodeCost(dims, kWeightDtype, batch, setting.state_dtype),
                        .steps = layers * kLogCapacity,
                        .working_set_bytes = static_cast<double>(layers) * layer_bytes,
                        .run = [fixture] { return fixture->RunDecode(); }};
  if (served) {
    GDN_ASSIGN_OR_RETURN(auto launches, ServedLayers::Make(setting.backend, fixture));
    prepared.run = [launches] { return launches->Run(); };
    prepared.every_run_differs = true;
  }
  return prepared;
}

// Levels of choices, as EAGLE-like drafters grow them: 16 tokens, 9 leaves, 26 rows of paths.
constexpr int32_t kDraftTokens = 16;
constexpr int32_t kDraftTree[kDraftTokens] = {-1, -1, -1, 0, 0, 0, 1, 1, 2, 3, 3, 4, 4, 6, 9, 9};

// One session's draft in each layer, from a log that is half full.
absl::StatusOr<PreparedCase> PrepareLayerDraft(const CaseSetting& setting, const LayerDims& dims, bool tree) {
  const double layer_bytes = LayerWeightBytes(dims) + static_cast<double>(DTypeSize(setting.state_dtype)) *
                                                          static_cast<double>(dims.state_elements());
  const int64_t layers =
      std::max<int64_t>(2, static_cast<int64_t>(std::ceil(static_cast<double>(setting.rotation_bytes) / layer_bytes)));
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeLayerFixture(setting, dims, layers, /*batch=*/1, kDraftTokens, kDraftTokens));
  fixture->token_counts.assign(static_cast<size_t>(layers), kLogCapacity);
  const auto run = [fixture, tree]() -> absl::Status {
    for (size_t layer = 0; layer < fixture->weights.layers.size(); ++layer) {
      LayerStep step = fixture->Step(layer);
      step.draft = true;
      if (tree) step.draft_parents = kDraftTree;
      int32_t log_length = kLogCapacity / 2;
      GDN_RETURN_IF_ERROR(fixture->runner->Decode(step, &log_length));
    }
    return absl::OkStatus();
  };
  return PreparedCase{.cost = LayerDraftCost(dims, kWeightDtype, kDraftTokens, setting.state_dtype),
                      .steps = layers,
                      .working_set_bytes = static_cast<double>(layers) * layer_bytes,
                      .run = run};
}

absl::StatusOr<PreparedCase> PrepareLayerPrefill(const CaseSetting& setting, const LayerDims& dims, int32_t sequences,
                                                 int32_t tokens_each) {
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeLayerFixture(setting, dims, /*layers=*/1, sequences, tokens_each));
  fixture->token_counts.assign(static_cast<size_t>(sequences), 0);
  const Cost cost = LayerPrefillCost(dims, kWeightDtype, sequences, tokens_each, setting.state_dtype);
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
          [=](const CaseSetting& setting) { return PrepareLayerDecode(setting, dims, batch, /*served=*/false); }};
}

KernelCase PrefillCase(const std::string& name, const LayerDims& dims, int32_t sequences, int32_t tokens_each) {
  const std::string batch = sequences == 1 ? "" : absl::StrCat("B=", sequences, "/");
  return {absl::StrCat("layer_prefill/BF16/", name, batch, "T=", tokens_each),
          [=](const CaseSetting& setting) { return PrepareLayerPrefill(setting, dims, sequences, tokens_each); }};
}

KernelCase DraftCase(bool tree) {
  return {absl::StrCat("layer_draft/BF16/", tree ? "tree" : "chain", "=", kDraftTokens),
          [=](const CaseSetting& setting) { return PrepareLayerDraft(setting, BenchLayerDims(), tree); }};
}

}  // namespace

KernelCase LayerDecodeCase(int32_t batch) { return DecodeCase("", BenchLayerDims(), batch); }

KernelCase LayerPrefillCase(int32_t sequences, int32_t tokens_each) {
  return PrefillCase("", BenchLayerDims(), sequences, tokens_each);
}

KernelCase ServedDecodeCase(const LayerDims& dims, int32_t batch) {
  return {absl::StrCat("layer_decode_served/BF16/B=", batch),
          [=](const CaseSetting& setting) { return PrepareLayerDecode(setting, dims, batch, /*served=*/true); }};
}

std::vector<KernelCase> LayerCases(CaseList list) {
  const auto batches =
      list == CaseList::kGpu ? absl::MakeConstSpan(kGpuDecodeBatches) : absl::MakeConstSpan(kCpuDecodeBatches);
  std::vector<KernelCase> cases;
  for (const int32_t batch : batches) cases.push_back(LayerDecodeCase(batch));
  for (const bool tree : {false, true}) cases.push_back(DraftCase(tree));
  for (const int32_t tokens : kPrefillLengths) cases.push_back(LayerPrefillCase(/*sequences=*/1, tokens));
  if (list == CaseList::kGpu) {
    for (const int32_t batch : batches) cases.push_back(ServedDecodeCase(BenchLayerDims(), batch));
    cases.push_back(LayerPrefillCase(/*sequences=*/8, /*tokens_each=*/2048));
    cases.push_back(DecodeCase("HV=48,D=2560/", LargeLayerDims(), /*batch=*/32));
    cases.push_back(PrefillCase("HV=48,D=2560/", LargeLayerDims(), /*sequences=*/1, /*tokens_each=*/2048));
  }
  return cases;
}

}  // namespace gdn::bench
