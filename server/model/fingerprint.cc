#include "server/model/fingerprint.h"

#include <algorithm>
#include <bit>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/thread_pool.h"

namespace gdn {
namespace {

// Raised when the meaning of the hashed fields changes, so that old state files are told apart rather than misread.
constexpr std::string_view kVersion = "gdn.model.1";

Hash128 HashLayer(const LayerTensors& layer) {
  Hasher hasher;
  hasher.UpdateInt(layer.layer);
  for (const auto& [tensor, view] : layer.tensors) {
    hasher.UpdateField(LayerTensorName(tensor));
    hasher.UpdateField(DTypeName(view.dtype));
    hasher.UpdateInt(static_cast<int64_t>(view.shape.size()));
    for (const int64_t dim : view.shape) hasher.UpdateInt(dim);
    hasher.UpdateField(view.data);
  }
  return hasher.Finish();
}

}  // namespace

std::string ModelFingerprint(const ModelConfig& config, absl::Span<const LayerTensors> layers) {
  std::vector<Hash128> digests(layers.size());
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ThreadPool pool(std::min(processors, static_cast<int>(std::max<size_t>(layers.size(), 1))));
  pool.ParallelFor(static_cast<int64_t>(layers.size()), [&](int64_t i, int) {
    digests[static_cast<size_t>(i)] = HashLayer(layers[static_cast<size_t>(i)]);
  });

  const LayerDims& dims = config.dims;
  Hasher hasher;
  hasher.UpdateField(kVersion);
  for (const int32_t dim :
       {dims.key_heads, dims.value_heads, dims.key_dim, dims.value_dim, dims.conv_width, dims.hidden_size}) {
    hasher.UpdateInt(dim);
  }
  hasher.UpdateField(config.layout == ProjectionLayout::kInterleaved ? "interleaved" : "flat");
  hasher.UpdateInt(std::bit_cast<int32_t>(config.norm_epsilon));
  hasher.UpdateInt(config.num_layers);
  hasher.UpdateInt(static_cast<int64_t>(digests.size()));
  for (const Hash128& digest : digests) hasher.UpdateField(digest.ToHex());
  return hasher.Finish().ToHex();
}

}  // namespace gdn
