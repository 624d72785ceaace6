// Cuts a checkpoint's layer down to some of its value heads. Takes the rows of each tensor, or the columns of the
// out-projection, that a server of these heads needs.
//
// Packed weights (packed_weight.h) are unpacked first, even if the layer is not cut. No more than the slice is read of
// other tensors: rows that are adjacent in a file stay there, and only other parts are copied. Quantised weights stay
// as they are, in whole blocks. Only F8_E4M3 is widened, if a slice cuts its blocks of 128 x 128. Tiled value heads
// stay tiled in a slice, by the slice's own key heads.
// Thread safety: free functions. Ownership: the result points into the checkpoint's files and into what it has made.
//
//   GDN_RETURN_IF_ERROR(CheckSlice(checkpoint.config, checkpoint.layers, heads));
//   const MadeLayer sliced = SliceLayer(checkpoint.config.spec, checkpoint.layers[0], heads);
//   ServeLayer(SliceSpec(checkpoint.config.spec, heads), sliced.tensors, options);
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "base/head_slice.h"
#include "base/layer_spec.h"
#include "server/checkpoint/layer_tensors.h"
#include "server/checkpoint/model_config.h"

namespace gdn {

// Checks that SliceLayer can take these heads of the layers. INVALID_ARGUMENT: errors of CheckHeadSlice; and
// (INVALID_SPEC: tensor) for an out-projection if the slice cuts its quantised blocks, either as stored or, with
// `quantize_q8_0`, as it will be quantised.
absl::Status CheckSlice(const ModelConfig& config, const std::vector<LayerTensors>& layers, const HeadSlice& heads,
                        bool quantize_q8_0 = false);

// Returns the spec of a sliced layer: the slice's dims, and one convolution kernel. The same spec if the slice has all
// heads.
LayerSpec SliceSpec(const LayerSpec& spec, const HeadSlice& heads);

// Returns the tensors of LayerTensorsOf(SliceSpec(..)), which may point into the bytes that `layer` points to.
// CheckSlice must have passed. If the slice has all heads, the layer is only unpacked.
MadeLayer SliceLayer(const LayerSpec& spec, const LayerTensors& layer, const HeadSlice& heads);

}  // namespace gdn
