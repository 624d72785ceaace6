#include "state_store/session_image.h"

namespace gdn {

int64_t SessionImage::bytes() const {
  int64_t bytes = 0;
  for (const LayerImage& image : layers) {
    bytes += static_cast<int64_t>(image.slot.bytes());
    if (image.reply != nullptr) bytes += static_cast<int64_t>(image.reply->output.size());
  }
  return bytes;
}

}  // namespace gdn
