#include "server/model/served_layer.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

namespace gdn {
namespace {

using Parts = std::initializer_list<LayerTensor>;  // of one matrix or vector, one below the other

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

// In the dtype of its parts, or in float32 where they have several or are quantised.
ServedMatrix Matrix(const LayerTensors& layer, Parts parts) {
  const StoredTensor& first = layer.tensors.at(*parts.begin());
  ServedMatrix matrix{.dtype = WidenedDType(first.encoding), .rows = 0, .cols = first.shape[1], .in_file = first.data};
  bool as_stored = true;
  for (const LayerTensor part : parts) {
    const StoredTensor& tensor = layer.tensors.at(part);
    matrix.rows += tensor.shape[0];
    as_stored = as_stored && IsPlain(tensor.encoding) && tensor.encoding == first.encoding;
  }
  if (!as_stored) {
    matrix.dtype = DType::kF32;
    matrix.made.resize(static_cast<size_t>(matrix.rows * matrix.cols) * sizeof(float));
    Decode(layer, parts, reinterpret_cast<float*>(matrix.made.data()));
  } else if (parts.size() > 1) {
    for (const LayerTensor part : parts) matrix.made += layer.tensors.at(part).data;
  }
  return matrix;
}

// From tiled order, in which block j H + i is member j of key head i, to grouped order, in which it is block i r + j.
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

// The value heads' rows, `rows_each` a head, from row `first` on.
void GroupRows(const LayerDims& dims, int64_t first, int64_t rows_each, ServedMatrix& matrix) {
  if (matrix.made.empty()) matrix.made = matrix.in_file;
  const size_t row_bytes = static_cast<size_t>(matrix.cols) * DTypeSize(matrix.dtype);
  GroupHeads(dims, static_cast<size_t>(rows_each) * row_bytes,
             matrix.made.data() + static_cast<size_t>(first) * row_bytes);
}

// The value heads' columns, V a head.
void GroupColumns(const LayerDims& dims, ServedMatrix& matrix) {
  if (matrix.made.empty()) matrix.made = matrix.in_file;
  const size_t row_bytes = static_cast<size_t>(matrix.cols) * DTypeSize(matrix.dtype);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    GroupHeads(dims, static_cast<size_t>(dims.value_dim) * DTypeSize(matrix.dtype),
               matrix.made.data() + static_cast<size_t>(row) * row_bytes);
  }
}

void GroupFloats(const LayerDims& dims, int64_t first, int64_t floats_each, std::vector<float>& values) {
  GroupHeads(dims, static_cast<size_t>(floats_each) * sizeof(float), reinterpret_cast<char*>(values.data() + first));
}

// From one matrix with r rows of b and then r of a for each key head.
void SplitGroupedBa(const LayerDims& dims, const ServedMatrix& ba, ServedMatrix& b, ServedMatrix& a) {
  b.dtype = a.dtype = ba.dtype;
  b.rows = a.rows = dims.value_heads;
  b.cols = a.cols = ba.cols;
  const auto group_bytes = static_cast<size_t>(dims.group() * ba.cols) * DTypeSize(ba.dtype);
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
  GroupColumns(dims, layer.out);
  GroupFloats(dims, keys * dims.conv_width, int64_t{dims.value_dim} * dims.conv_width, layer.conv_weight);
  GroupFloats(dims, 0, 1, layer.a_log);
  GroupFloats(dims, 0, 1, layer.dt_bias);
}

}  // namespace

ServedLayer ServeLayer(const LayerSpec& spec, const LayerTensors& layer) {
  using T = LayerTensor;
  ServedLayer served;
  if (spec.projections == ProjectionLayout::kInterleaved) {
    served.in_qkv = Matrix(layer, {T::kInQkvz});
    served.in_b = Matrix(layer, {T::kInBa});
  } else {
    served.in_qkv = spec.projections == ProjectionLayout::kSeparate ? Matrix(layer, {T::kInQ, T::kInK, T::kInV})
                                                                    : Matrix(layer, {T::kInQkv});
    served.in_z = Matrix(layer, {T::kInZ});
    if (spec.projections == ProjectionLayout::kFlatGroupedBa) {
      SplitGroupedBa(spec.dims, Matrix(layer, {T::kInBa}), served.in_b, served.in_a);
    } else {
      served.in_b = Matrix(layer, {T::kInB});
      served.in_a = Matrix(layer, {T::kInA});
    }
  }
  served.out = Matrix(layer, {T::kOut});
  served.conv_weight = spec.convolutions == ConvLayout::kJoint ? Floats(layer, {T::kConv})
                                                               : Floats(layer, {T::kConvQ, T::kConvK, T::kConvV});
  served.a_log = Floats(layer, {T::kALog});
  served.dt_bias = Floats(layer, {T::kDtBias});
  served.norm_weight = Floats(layer, {T::kNorm});
  for (float& weight : served.norm_weight) {
    if (spec.norm_weight == NormWeight::kOnePlus) weight += 1.0f;
    weight *= spec.output_gate_scale;
  }
  if (spec.value_heads == ValueHeadOrder::kTiled) GroupValueHeads(spec.dims, served);
  return served;
}

}  // namespace gdn
