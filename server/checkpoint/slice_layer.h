// A checkpoint's layer cut down to some of its value heads: of each tensor the rows, or of the out-projection the
// columns, that a server of these heads needs.
//
// Packed weights (packed_weight.h) are unpacked first, also where a layer is not cut.
// Rows that lie together stay in the file, and only what has to be put together is copied, so that no more than the
// slice is read. Quantised weights stay as they are, in whole blocks; F8_E4M3 alone is widened where a slice cuts its
// blocks of 128 x 128. Value heads in tiled order are so in a slice too, of its own key heads.
// Thread safety: free functions. Ownership: a SlicedLayer points into the checkpoint's files and into what it has made.
//
//   GDN_RETURN_IF_ERROR(CheckSlice(checkpoint.config, checkpoint.layers, heads));
//   const SlicedLayer sliced = SliceLayer(checkpoint.config.spec, checkpoint.layers[0], heads);
//   ServeLayer(SliceSpec(checkpoint.config.spec, heads), sliced.tensors, options);
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/head_slice.h"
#include "base/layer_spec.h"
#include "server/checkpoint/layer_tensors.h"
#include "server/checkpoint/model_config.h"

namespace gdn {

// INVALID_ARGUMENT: CheckHeadSlice's, and (INVALID_SPEC: tensor) naming an out-projection whose quantised blocks the
// slice cuts, as stored or, where `quantize_q8_0` says so, as it will be quantised.
absl::Status CheckSlice(const ModelConfig& config, const std::vector<LayerTensors>& layers, const HeadSlice& heads,
                        bool quantize_q8_0 = false);

// The spec of a sliced layer: of the slice's dims, with one kernel for the convolution.
LayerSpec SliceSpec(const LayerSpec& spec, const HeadSlice& heads);

// Whether bytes that begin at `data` are in one of the strings.
bool HasMade(const std::deque<std::string>& made, const char* data);

struct SlicedLayer {
  LayerTensors tensors;          // as LayerTensorsOf(SliceSpec(..)) has them
  std::deque<std::string> made;  // the bytes of those that are not in a file

  bool HasMade(const char* data) const;  // whether they point to such bytes
};

// The slice has been checked. All heads: the layer as it is, unpacked.
SlicedLayer SliceLayer(const LayerSpec& spec, const LayerTensors& layer, const HeadSlice& heads);

}  // namespace gdn
