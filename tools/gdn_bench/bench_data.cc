// Inputs and states for the cases of `gdn_bench kernel`.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tools/gdn_bench/kernels/kernel_case.h"

namespace gdn::bench {
namespace {

constexpr uint32_t kSeed = 20240607;
constexpr int64_t kBlock = int64_t{1} << 20;  // numbers drawn; longer buffers repeat them

// Small against the states that decode steps build up, so that rotating slots stay in the range of normal numbers.
constexpr float kStateRange = 0.05f;
constexpr float kSmallestLogDecay = -0.1f;

}  // namespace

LayerDims BenchOperatorDims() { return {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128}; }

LayerDims BenchLayerDims() {
  LayerDims dims = BenchOperatorDims();
  dims.conv_width = 4;
  dims.hidden_size = 2048;
  return dims;
}

absl::StatusOr<std::shared_ptr<DeviceBuffer>> RandomBuffer(Backend& backend, int64_t count, float low, float high,
                                                           DType dtype) {
  const int64_t block = std::min(count, kBlock);
  std::mt19937 random(kSeed);
  std::vector<float> numbers(static_cast<size_t>(block));
  const float scale = (high - low) / static_cast<float>(uint64_t{1} << 32);
  for (float& x : numbers) x = std::min(low + scale * static_cast<float>(random()), high);
  const size_t element = DTypeSize(dtype);
  std::vector<char> encoded(static_cast<size_t>(block) * element);
  ConvertFromFloat(numbers.data(), numbers.size(), dtype, encoded.data());

  GDN_ASSIGN_OR_RETURN(DeviceBuffer made, DeviceBuffer::Make(backend, static_cast<size_t>(count) * element));
  auto buffer = std::make_shared<DeviceBuffer>(std::move(made));
  for (int64_t at = 0; at < count; at += block) {
    const size_t bytes = static_cast<size_t>(std::min(block, count - at)) * element;
    char* target = static_cast<char*>(buffer->data()) + static_cast<size_t>(at) * element;
    GDN_RETURN_IF_ERROR(backend.CopyIn(target, encoded.data(), bytes));
  }
  GDN_RETURN_IF_ERROR(backend.Synchronize());
  return buffer;
}

RandomWeights BenchWeights(WeightFormat format, int64_t rows, int64_t cols, uint32_t seed) {
  RandomWeights weights = MakeRandomWeights(format, rows, cols, seed);
  if (format != WeightFormat::kBF16) return weights;
  constexpr uint16_t kExponent = 0x7f80, kSmallest = (127 - 20) << 7;
  for (size_t i = 0; i < weights.bytes.size(); i += sizeof(uint16_t)) {
    uint16_t bits = 0;
    std::memcpy(&bits, &weights.bytes[i], sizeof(bits));
    if ((bits & kExponent) < kSmallest) std::memset(&weights.bytes[i], 0, sizeof(bits));
  }
  return weights;
}

absl::StatusOr<std::shared_ptr<DeviceBuffer>> WeightBuffer(Backend& backend, const WeightMatrix& weights,
                                                           int64_t copies) {
  const auto bytes = static_cast<size_t>(backend.WeightBytes(weights));
  GDN_ASSIGN_OR_RETURN(DeviceBuffer made, DeviceBuffer::Make(backend, static_cast<size_t>(copies) * bytes));
  auto buffer = std::make_shared<DeviceBuffer>(std::move(made));
  for (int64_t copy = 0; copy < copies; ++copy) {
    char* const at = static_cast<char*>(buffer->data()) + static_cast<size_t>(copy) * bytes;
    GDN_RETURN_IF_ERROR(backend.CopyWeightsIn(at, weights));
  }
  GDN_RETURN_IF_ERROR(backend.Synchronize());
  return buffer;
}

absl::StatusOr<RandomStatePool> MakeStatePool(Backend& backend, const LayerDims& dims, int32_t slots, DType base_dtype,
                                              int32_t max_draft) {
  GDN_ASSIGN_OR_RETURN(StateLayout layout, StateLayout::Make(dims, max_draft, base_dtype));
  // Two bfloat16 side by side are as good a float32.
  const int64_t elements = slots * layout.slot_bytes() / static_cast<int64_t>(DTypeSize(base_dtype));
  GDN_ASSIGN_OR_RETURN(auto memory, RandomBuffer(backend, elements, -kStateRange, kStateRange, base_dtype));
  RandomStatePool pool{.memory = memory, .view = {.layout = layout, .data = memory->floats(), .slot_count = slots}};
  const std::vector<float> log_g(static_cast<size_t>(layout.log_rows() * dims.decay_features()), kSmallestLogDecay / 2);
  for (int32_t slot = 0; slot < slots; ++slot) {
    GDN_RETURN_IF_ERROR(
        backend.CopyIn(pool.view.slot(slot) + layout.log_g_offset(), log_g.data(), log_g.size() * sizeof(float)));
  }
  GDN_RETURN_IF_ERROR(backend.Synchronize());
  return pool;
}

}  // namespace gdn::bench
