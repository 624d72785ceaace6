#include "state_store/session_image.h"

#include <algorithm>

#include "base/string_cat.h"

namespace gdn {

std::string StateVersion::ToString() const { return StrCat("epoch ", epoch, ", change ", changes); }

bool IsKnownBase(const LayerImage& layer, const BaseVersions& known) {
  const auto it = known.find(layer.layer);
  return layer.base_version != 0 && it != known.end() && it->second == layer.base_version;
}

int64_t SessionImage::bytes() const {
  int64_t bytes = layers.empty() ? 0 : static_cast<int64_t>(layers.size()) * layout.slot_bytes();
  for (const LayerImage& image : layers) {
    if (image.reply != nullptr) bytes += static_cast<int64_t>(image.reply->output.size());
  }
  return bytes;
}

SlotView ViewLayer(const SessionImage& image, const LayerImage& layer, bool base, std::vector<float>& scratch) {
  if (!layer.slot.valid()) return layer.wire;
  return ViewSlot(image.layout, base && image.transposed_base, layer.slot.floats(), layer.extent, scratch);
}

bool SessionImage::has_all_bases() const {
  return std::all_of(layers.begin(), layers.end(), [](const LayerImage& layer) { return layer.has_base; });
}

}  // namespace gdn
