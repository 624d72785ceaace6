// Brings a checkpoint's layer into the served form, on the host. Differences between families' files end here, and only
// here.
//
// Parts that are stored apart are joined, and value heads in tiled order are grouped. Factors of the normalised output
// (1 + w, the output gate's scale) go into the norm's weight. Vectors are widened to float32. If the backend takes
// their format, quantised matrices stay quantised and are reordered by whole rows and whole blocks. Otherwise they are
// widened to float32.
// Thread safety: a free function. Ownership: a matrix that needs no change points into the checkpoint's files, another
// one owns its bytes.
//
//   GDN_ASSIGN_OR_RETURN(const ServedLayer served, ServeLayer(config.spec, checkpoint.layers[0], options));
//   served.in_qkv.data();  // [C, D], of in_qkv.format
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/layer_spec.h"
#include "base/weight_format.h"
#include "server/checkpoint/layer_tensors.h"

namespace gdn {

struct ServedMatrix {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;  // 0: the layout has no such matrix
  int64_t cols = 0;
  std::string_view in_file;  // the matrix's bytes, borrowed from the checkpoint; not used if `made` has them
  std::string made = {};
  std::vector<float> scales = {};  // scales of the blocks of kF8E4M3
  bool widened = false;            // true: widened from a quantised format to float32

  std::string_view data() const { return made.empty() ? in_file : std::string_view(made); }
  int64_t row_bytes() const { return RowBytes(format, cols); }
};

// The tensors of a layer as LayerWeights has them, but in host memory, in the form ServedForm(spec).
struct ServedLayer {
  ServedMatrix in_qkv, in_z, in_b, in_a, z_up, a_up, out;
  // True if the columns of `out` keep the file's tiled order, because a block of its format spans value heads.
  bool tiled_out = false;
  std::vector<float> conv_weight, a_log, dt_bias, norm_weight;
};

struct ServeLayerOptions {
  // Returns true if the backend's projections take weights of the format. By default only plain formats.
  std::function<bool(WeightFormat)> takes = [](WeightFormat format) { return IsPlain(format); };
  // Quantise in_qkv, in_z and out to Q8_0 if they are plain. The others are small, or change the decay.
  bool quantize_q8_0 = false;
};

// Brings a layer into the served form. `layer` must have the tensors of LayerTensorsOf(spec), unpacked, with the shapes
// that follow from the spec. The result may point into its bytes. INVALID_ARGUMENT if a matrix cannot be quantised: its
// rows are not whole blocks (INVALID_TENSOR_SHAPE), or a weight is not finite or too large (INVALID_TENSOR_DATA).
absl::StatusOr<ServedLayer> ServeLayer(const LayerSpec& spec, const LayerTensors& layer,
                                       const ServeLayerOptions& options = {});

// Returns true if ServeLayer with quantize_q8_0 quantises a matrix of the layer: at least one of in_qkv, in_z and out
// is float in the checkpoint. An adapter changes nothing about that.
bool HasFloatProjections(const LayerTensors& layer);

}  // namespace gdn
