#include "server/model/served_layer.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

using Parts = std::initializer_list<LayerTensor>;  // parts of one matrix or vector, one below the other

void Decode(const LayerTensors& layer, Parts parts, float* out) {
  for (const LayerTensor part : parts) {
    const StoredTensor& tensor = layer.tensors.at(part);
    DecodeTensor(tensor, out);
    out += tensor.ElementCount();
  }
}

std::vector<float> Floats(const LayerTensors& layer, Parts parts) {
  int64_t count = 0;
  for (const LayerTensor part : parts) count += layer.tensors.at(part).ElementCount();
  std::vector<float> values(static_cast<size_t>(count));
  Decode(layer, parts, values.data());
  return values;
}

// Returns true if the parts, one below the other, can be one matrix in the format that all of them have. In F8_E4M3 a
// scale belongs to 128 rows by their place, so the rows must keep the file's order and a part must begin at a multiple
// of 128.
bool StaysAsStored(const LayerTensors& layer, Parts parts, bool keeps_rows, const ServeLayerOptions& options) {
  const StoredTensor& first = layer.tensors.at(*parts.begin());
  int64_t rows = 0;
  for (const LayerTensor part : parts) {
    const StoredTensor& tensor = layer.tensors.at(part);
    if (tensor.encoding != first.encoding) return false;
    if (tensor.encoding == WeightFormat::kF8E4M3 && (!keeps_rows || rows % kFp8Block != 0)) return false;
    rows += tensor.shape[0];
  }
  return IsPlain(first.encoding) || options.takes(first.encoding);
}

// Puts the parts below one another, in their own format if StaysAsStored, else in float32.
ServedMatrix Matrix(const LayerTensors& layer, Parts parts, bool keeps_rows, const ServeLayerOptions& options) {
  const StoredTensor& first = layer.tensors.at(*parts.begin());
  ServedMatrix matrix{.format = first.encoding, .rows = 0, .cols = first.shape[1], .in_file = first.data};
  for (const LayerTensor part : parts) matrix.rows += layer.tensors.at(part).shape[0];
  const bool stays = StaysAsStored(layer, parts, keeps_rows, options);
  matrix.widened = std::any_of(parts.begin(), parts.end(), [&](LayerTensor part) {
    const StoredTensor& tensor = layer.tensors.at(part);
    return tensor.widened || (!stays && !IsPlain(tensor.encoding));
  });
  if (!stays) {
    matrix.format = WeightFormat::kF32;
    matrix.made.resize(static_cast<size_t>(matrix.rows * matrix.row_bytes()));
    Decode(layer, parts, reinterpret_cast<float*>(matrix.made.data()));
    return matrix;
  }
  for (const LayerTensor part : parts) {
    const StoredTensor& tensor = layer.tensors.at(part);
    if (parts.size() > 1) matrix.made += tensor.data;
    if (tensor.encoding != WeightFormat::kF8E4M3) continue;
    const std::vector<float> scales = FloatsOf(tensor.scales);
    matrix.scales.insert(matrix.scales.end(), scales.begin(), scales.end());
  }
  return matrix;
}

// Changes tiled order, in which block j H + i is member j of key head i, to grouped order, in which it is block i r +
// j. r is the number of value heads of a key head.
void GroupHeads(const LayerDims& dims, size_t block_bytes, char* blocks) {
  const auto heads = static_cast<size_t>(dims.key_heads);
  const auto members = static_cast<size_t>(dims.group());
  const std::string tiled(blocks, heads * members * block_bytes);
  for (size_t i = 0; i < heads; ++i) {
    for (size_t j = 0; j < members; ++j) {
      std::memcpy(blocks + (i * members + j) * block_bytes, tiled.data() + (j * heads + i) * block_bytes, block_bytes);
    }
  }
}

// Groups the rows of the value heads, `rows_each` for each head, from row `first` on.
void GroupRows(const LayerDims& dims, int64_t first, int64_t rows_each, ServedMatrix& matrix) {
  if (matrix.made.empty()) matrix.made = matrix.in_file;
  const auto row_bytes = static_cast<size_t>(matrix.row_bytes());
  GroupHeads(dims, static_cast<size_t>(rows_each) * row_bytes,
             matrix.made.data() + static_cast<size_t>(first) * row_bytes);
}

// Groups the columns of the value heads, V for each head. Returns false if these are not whole blocks.
bool GroupColumns(const LayerDims& dims, ServedMatrix& matrix) {
  if (dims.value_dim % BlockOf(matrix.format).weights != 0) return false;
  if (matrix.made.empty()) matrix.made = matrix.in_file;
  const auto head_bytes = static_cast<size_t>(RowBytes(matrix.format, dims.value_dim));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    GroupHeads(dims, head_bytes, matrix.made.data() + row * matrix.row_bytes());
  }
  return true;
}

void GroupFloats(const LayerDims& dims, int64_t first, int64_t floats_each, std::vector<float>& values) {
  GroupHeads(dims, static_cast<size_t>(floats_each) * sizeof(float), reinterpret_cast<char*>(values.data() + first));
}

// Splits a matrix that has, for each key head, r rows of b and then r rows of a.
void SplitGroupedBa(const LayerDims& dims, const ServedMatrix& ba, ServedMatrix& b, ServedMatrix& a) {
  b.format = a.format = ba.format;
  b.widened = a.widened = ba.widened;
  b.rows = a.rows = dims.value_heads;
  b.cols = a.cols = ba.cols;
  const auto group_bytes = static_cast<size_t>(dims.group() * ba.row_bytes());
  for (size_t i = 0; i < static_cast<size_t>(dims.key_heads); ++i) {
    b.made += ba.data().substr(2 * i * group_bytes, group_bytes);
    a.made += ba.data().substr((2 * i + 1) * group_bytes, group_bytes);
  }
}

void GroupValueHeads(const LayerDims& dims, ServedLayer& layer) {
  const int64_t keys = 2 * dims.key_features();
  GroupRows(dims, keys, dims.value_dim, layer.in_qkv);
  GroupRows(dims, 0, dims.value_dim, layer.in_z);
  GroupRows(dims, 0, 1, layer.in_b);
  GroupRows(dims, 0, 1, layer.in_a);
  layer.tiled_out = !GroupColumns(dims, layer.out);
  GroupFloats(dims, keys * dims.conv_width, int64_t{dims.value_dim} * dims.conv_width, layer.conv_weight);
  GroupFloats(dims, 0, 1, layer.a_log);
  GroupFloats(dims, 0, 1, layer.dt_bias);
}

// Returns true if the matrix exists and is float in the checkpoint too. A matrix that was quantised there is not
// quantised again in another way.
bool IsFloat(const ServedMatrix& matrix) { return matrix.rows > 0 && IsPlain(matrix.format) && !matrix.widened; }

absl::Status Quantize(std::string_view name, ServedMatrix& matrix) {
  if (!IsFloat(matrix)) return absl::OkStatus();
  constexpr int64_t kBlock = BlockOf(WeightFormat::kQ8_0).weights;
  const auto invalid = [&](std::string_view reason, std::string_view message) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason,
                     StrCat("matrix ", name, " of ", matrix.rows, " x ", matrix.cols,
                            " cannot be quantised to Q8_0: ", message, "; serve the model without --quantize"));
  };
  if (matrix.cols % kBlock != 0) {
    return invalid(reason::kInvalidTensorShape, StrCat("a row is no multiple of ", kBlock, " weights"));
  }
  std::string quantised(static_cast<size_t>(matrix.rows * RowBytes(WeightFormat::kQ8_0, matrix.cols)), '\0');
  std::vector<float> row(static_cast<size_t>(matrix.cols));
  for (int64_t i = 0; i < matrix.rows; ++i) {
    DequantizeRow(matrix.format, matrix.data().data() + i * matrix.row_bytes(), nullptr, matrix.cols, row.data());
    if (!QuantizeQ8_0(row.data(), matrix.cols, quantised.data() + i * RowBytes(WeightFormat::kQ8_0, matrix.cols))) {
      return invalid(reason::kInvalidTensorData, StrCat("row ", i, " has a weight that is not finite or too large"));
    }
  }
  matrix.made = std::move(quantised);
  matrix.format = WeightFormat::kQ8_0;
  return absl::OkStatus();
}

absl::Status QuantizeLayer(ServedLayer& layer) {
  GDN_RETURN_IF_ERROR(Quantize("in_qkv", layer.in_qkv));
  GDN_RETURN_IF_ERROR(Quantize("in_z", layer.in_z));
  return Quantize("out", layer.out);
}

}  // namespace

absl::StatusOr<ServedLayer> ServeLayer(const LayerSpec& spec, const LayerTensors& layer,
                                       const ServeLayerOptions& options) {
  using T = LayerTensor;
  const bool grouped = spec.value_heads == ValueHeadOrder::kGrouped;
  const auto matrix = [&](Parts parts, bool keeps_rows) { return Matrix(layer, parts, keeps_rows, options); };
  ServedLayer served;
  if (spec.projections == ProjectionLayout::kInterleaved) {
    served.in_qkv = matrix({T::kInQkvz}, true);
    served.in_b = matrix({T::kInBa}, true);
  } else {
    served.in_qkv = spec.projections == ProjectionLayout::kSeparate ? matrix({T::kInQ, T::kInK, T::kInV}, grouped)
                                                                    : matrix({T::kInQkv}, grouped);
    served.in_z = matrix({T::kInZ}, grouped);
    if (spec.projections == ProjectionLayout::kFlatGroupedBa) {
      SplitGroupedBa(spec.dims, matrix({T::kInBa}, false), served.in_b, served.in_a);
    } else {
      served.in_b = matrix({T::kInB}, grouped);
      served.in_a = matrix({T::kInA}, grouped);
    }
  }
  if (spec.output_gate_rank > 0) served.z_up = matrix({T::kZUp}, grouped);
  if (spec.decay_rank > 0) served.a_up = matrix({T::kAUp}, grouped);
  served.out = matrix({T::kOut}, grouped);
  served.conv_weight = spec.convolutions == ConvLayout::kJoint ? Floats(layer, {T::kConv})
                                                               : Floats(layer, {T::kConvQ, T::kConvK, T::kConvV});
  served.a_log = Floats(layer, {T::kALog});
  served.dt_bias = Floats(layer, {T::kDtBias});
  served.norm_weight = Floats(layer, {T::kNorm});
  for (float& weight : served.norm_weight) {
    if (spec.norm_weight == NormWeight::kOnePlus) weight += 1.0f;
    weight *= spec.output_gate_scale;
  }
  if (!grouped) GroupValueHeads(spec.dims, served);
  if (options.quantize_q8_0) GDN_RETURN_IF_ERROR(QuantizeLayer(served));
  return served;
}

bool HasFloatProjections(const LayerTensors& layer) {
  using T = LayerTensor;
  const std::vector<std::vector<T>> matrices = {
      {T::kInQkvz}, {T::kInQkv}, {T::kInQ, T::kInK, T::kInV}, {T::kInZ}, {T::kOut}};
  // If one part of a matrix is quantised, the whole matrix counts as quantised.
  const auto is_float = [&layer](LayerTensor part) {
    const auto found = layer.tensors.find(part);
    if (found == layer.tensors.end() || found->second.packed != nullptr) return false;
    return IsPlain(found->second.encoding) && !found->second.widened;
  };
  return std::ranges::any_of(matrices,
                             [&](const std::vector<T>& parts) { return std::ranges::all_of(parts, is_float); });
}

}  // namespace gdn
