// A whole layer of Qwen3-Next's dimensions and projection layout: decode and prefill from hidden_states.
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
#include "absl/strings/string_view.h"
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

struct LayerForm {
  LayerDims dims = BenchLayerDims();
  WeightFormat weights = WeightFormat::kBF16;
  DType x = DType::kF32;  // of hidden states

  // The first parts of a case's name.
  std::string Name(absl::string_view what) const {
    const LayerDims usual = BenchLayerDims();
    const bool other = dims.value_heads != usual.value_heads || dims.hidden_size != usual.hidden_size;
    return absl::StrCat(what, "/", std::string(WeightFormatName(weights)), x == DType::kF32 ? "/" : "/narrow/",
                        other ? absl::StrCat("HV=", dims.value_heads, ",D=", dims.hidden_size, "/") : "");
  }
};

// The weights of some layers as a model holds them: projections of each layer's own, and the small ones, which all
// share: conv [C, W], A_log [HV], dt_bias [HV], norm [V].
struct StackedWeights {
  std::vector<std::shared_ptr<DeviceBuffer>> buffers;
  std::vector<LayerWeights> layers;
};

absl::StatusOr<StackedWeights> MakeWeights(Backend& backend, const LayerForm& form, int64_t layers) {
  const LayerDims& dims = form.dims;
  StackedWeights stacked;
  const auto keep = [&stacked](std::shared_ptr<DeviceBuffer> buffer) -> const DeviceBuffer& {
    return *stacked.buffers.emplace_back(std::move(buffer));
  };
  const int64_t conv = dims.conv_channels() * dims.conv_width;
  GDN_ASSIGN_OR_RETURN(auto small,
                       RandomBuffer(backend, conv + 2 * int64_t{dims.value_heads} + dims.value_dim, -0.5f, 0.5f));
  LayerWeights first;
  first.spec.dims = dims;
  first.spec.projections = ProjectionLayout::kInterleaved;
  first.conv_weight = keep(std::move(small)).floats();
  first.a_log = first.conv_weight + conv;
  first.dt_bias = first.a_log + dims.value_heads;
  first.norm_weight = first.dt_bias + dims.value_heads;
  stacked.layers.assign(static_cast<size_t>(layers), first);
  const auto place = [&](WeightMatrix LayerWeights::*member, int64_t rows, int64_t cols) -> absl::Status {
    const RandomWeights weights = BenchWeights(form.weights, rows, cols, static_cast<uint32_t>(stacked.buffers.size()));
    WeightMatrix matrix = weights.matrix();
    matrix.integer_halves = backend.info().IntegerHalvesFor(form.weights);
    const std::vector<float> scales = backend.info().RowScalesFor(matrix, /*meets_calls=*/member != &LayerWeights::out);
    if (!scales.empty()) matrix.scales = scales.data();
    GDN_ASSIGN_OR_RETURN(auto copies, WeightBuffer(backend, matrix, layers));
    const char* at = static_cast<const char*>(keep(std::move(copies)).data());
    const int64_t bytes = backend.WeightBytes(matrix);
    if (!scales.empty()) {
      GDN_ASSIGN_OR_RETURN(DeviceBuffer placed, DeviceBuffer::Make(backend, scales.size() * sizeof(float)));
      GDN_RETURN_IF_ERROR(backend.CopyIn(placed.data(), scales.data(), scales.size() * sizeof(float)));
      GDN_RETURN_IF_ERROR(backend.Synchronize());
      matrix.scales = keep(std::make_shared<DeviceBuffer>(std::move(placed))).floats();
    }
    for (LayerWeights& layer : stacked.layers) {
      matrix.data = at;
      layer.*member = matrix;
      at += bytes;
    }
    return absl::OkStatus();
  };
  GDN_RETURN_IF_ERROR(place(&LayerWeights::in_qkv, dims.conv_channels() + dims.value_features(), dims.hidden_size));
  GDN_RETURN_IF_ERROR(place(&LayerWeights::in_b, 2 * int64_t{dims.value_heads}, dims.hidden_size));
  GDN_RETURN_IF_ERROR(place(&LayerWeights::out, dims.hidden_size, dims.value_features()));
  for (const LayerWeights& layer : stacked.layers) GDN_RETURN_IF_ERROR(ValidateLayerWeights(layer));
  return stacked;
}

// A model's layers take turns, each with weights and states of its own, so that a layer finds neither in a cache.
struct LayerFixture {
  StackedWeights weights;
  RandomStatePool pool;
  std::shared_ptr<DeviceBuffer> hidden_states;
  std::shared_ptr<DeviceBuffer> output;
  DType x_dtype = DType::kF32;  // of hidden_states
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
    step.hidden_states = {hidden_states->data(), x_dtype};
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

absl::StatusOr<std::shared_ptr<LayerFixture>> MakeLayerFixture(const CaseSetting& setting, const LayerForm& form,
                                                               int64_t layers, int32_t batch, int32_t tokens_each,
                                                               int32_t max_draft = kBenchMaxDraft) {
  Backend& backend = setting.backend;
  const LayerDims& dims = form.dims;
  auto fixture = std::make_shared<LayerFixture>();
  GDN_ASSIGN_OR_RETURN(fixture->weights, MakeWeights(backend, form, layers));
  fixture->x_dtype = form.x;
  const int32_t slot_count = static_cast<int32_t>(layers) * batch;
  GDN_ASSIGN_OR_RETURN(fixture->pool, MakeStatePool(backend, dims, slot_count, setting.state_dtype, max_draft));
  const int64_t rows = int64_t{batch} * tokens_each;
  GDN_ASSIGN_OR_RETURN(fixture->hidden_states, RandomBuffer(backend, rows * dims.hidden_size, -1.0f, 1.0f, form.x));
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

absl::StatusOr<PreparedCase> PrepareLayerDecode(const CaseSetting& setting, const LayerForm& form, int32_t batch,
                                                bool served) {
  const LayerDims& dims = form.dims;
  const double state_bytes =
      static_cast<double>(DTypeSize(setting.state_dtype)) * static_cast<double>(dims.state_elements());
  const double layer_bytes = static_cast<double>(ProjectionBytes(dims, form.weights)) + batch * state_bytes;
  const int64_t layers =
      std::max<int64_t>(2, static_cast<int64_t>(std::ceil(static_cast<double>(setting.rotation_bytes) / layer_bytes)));
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeLayerFixture(setting, form, layers, batch, /*tokens_each=*/1));
  const int64_t slots = layers * batch;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int32_t log_length = static_cast<int32_t>(slot * kLogCapacity / slots);
    fixture->log_lengths.push_back(log_length);
    fixture->first_token_counts.push_back(log_length);
  }
  PreparedCase prepared{.cost = LayerDecodeCost(form.dims, form.weights, batch, setting.state_dtype),
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
absl::StatusOr<PreparedCase> PrepareLayerDraft(const CaseSetting& setting, const LayerForm& form, bool tree) {
  const LayerDims& dims = form.dims;
  const double layer_bytes =
      static_cast<double>(ProjectionBytes(dims, form.weights)) +
      static_cast<double>(DTypeSize(setting.state_dtype)) * static_cast<double>(dims.state_elements());
  const int64_t layers =
      std::max<int64_t>(2, static_cast<int64_t>(std::ceil(static_cast<double>(setting.rotation_bytes) / layer_bytes)));
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeLayerFixture(setting, form, layers, /*batch=*/1, kDraftTokens, kDraftTokens));
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
  return PreparedCase{.cost = LayerDraftCost(form.dims, form.weights, kDraftTokens, setting.state_dtype),
                      .steps = layers,
                      .working_set_bytes = static_cast<double>(layers) * layer_bytes,
                      .run = run};
}

absl::StatusOr<PreparedCase> PrepareLayerPrefill(const CaseSetting& setting, const LayerForm& form, int32_t sequences,
                                                 int32_t tokens_each) {
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeLayerFixture(setting, form, /*layers=*/1, sequences, tokens_each));
  fixture->token_counts.assign(static_cast<size_t>(sequences), 0);
  const Cost cost = LayerPrefillCost(form.dims, form.weights, sequences, tokens_each, setting.state_dtype);
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

KernelCase DecodeCase(const LayerForm& form, int32_t batch) {
  return {absl::StrCat(form.Name("layer_decode"), "B=", batch),
          [=](const CaseSetting& setting) { return PrepareLayerDecode(setting, form, batch, /*served=*/false); }};
}

KernelCase PrefillCase(const LayerForm& form, int32_t sequences, int32_t tokens_each) {
  const std::string batch = sequences == 1 ? "" : absl::StrCat("B=", sequences, "/");
  return {absl::StrCat(form.Name("layer_prefill"), batch, "T=", tokens_each),
          [=](const CaseSetting& setting) { return PrepareLayerPrefill(setting, form, sequences, tokens_each); }};
}

KernelCase DraftCase(bool tree) {
  return {absl::StrCat("layer_draft/BF16/", tree ? "tree" : "chain", "=", kDraftTokens),
          [=](const CaseSetting& setting) { return PrepareLayerDraft(setting, LayerForm{}, tree); }};
}

// The forms whose products a math makes in another way than those of float32 inputs and BF16 weights.
std::vector<LayerForm> FormsOf(ProductMath math) {
  std::vector<LayerForm> forms = {{.weights = WeightFormat::kQ8_0, .x = DType::kBF16}};
  if (math != ProductMath::kInt8) forms.insert(forms.begin(), {.x = DType::kBF16});
  return forms;
}

}  // namespace

KernelCase LayerDecodeCase(int32_t batch) { return DecodeCase({}, batch); }

KernelCase LayerPrefillCase(int32_t sequences, int32_t tokens_each) { return PrefillCase({}, sequences, tokens_each); }

KernelCase ServedDecodeCase(const LayerDims& dims, int32_t batch) {
  const LayerForm form{.dims = dims};
  return {absl::StrCat("layer_decode_served/BF16/B=", batch),
          [=](const CaseSetting& setting) { return PrepareLayerDecode(setting, form, batch, /*served=*/true); }};
}

std::vector<KernelCase> LayerCases(CaseList list, ProductMath math) {
  const bool gpu = list == CaseList::kGpu;
  const auto batches = gpu ? absl::MakeConstSpan(kGpuDecodeBatches) : absl::MakeConstSpan(kCpuDecodeBatches);
  std::vector<KernelCase> cases;
  if (math == ProductMath::kExact) {
    for (const int32_t batch : batches) cases.push_back(LayerDecodeCase(batch));
    for (const bool tree : {false, true}) cases.push_back(DraftCase(tree));
    for (const int32_t tokens : kPrefillLengths) cases.push_back(LayerPrefillCase(/*sequences=*/1, tokens));
  }
  if (math == ProductMath::kExact && gpu) {
    for (const int32_t batch : batches) cases.push_back(ServedDecodeCase(BenchLayerDims(), batch));
    cases.push_back(LayerPrefillCase(/*sequences=*/8, /*tokens_each=*/2048));
    cases.push_back(DecodeCase({.dims = LargeLayerDims()}, /*batch=*/32));
    cases.push_back(PrefillCase({.dims = LargeLayerDims()}, /*sequences=*/1, /*tokens_each=*/2048));
  }
  if (math == ProductMath::kExact && !gpu) return cases;
  for (const LayerForm& form : FormsOf(math)) {
    for (const int32_t batch : batches) cases.push_back(DecodeCase(form, batch));
    for (const int32_t tokens : kPrefillLengths) cases.push_back(PrefillCase(form, /*sequences=*/1, tokens));
  }
  return cases;
}

}  // namespace gdn::bench
