#include "server/checkpoint/slice_layer.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/weight_format.h"

namespace gdn {
namespace {

// Rows or columns [begin, end) of a tensor.
struct Range {
  int64_t begin;
  int64_t end;
};
using Ranges = std::vector<Range>;

int64_t CountOf(const Ranges& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), int64_t{0},
                         [](int64_t sum, const Range& range) { return sum + range.end - range.begin; });
}

// The parts of tensors that a slice takes, for tensors that are ordered by head. Heads are counted in the file's order.
class HeadRanges {
 public:
  HeadRanges(const LayerSpec& spec, const HeadSlice& heads)
      : spec_(spec), first_key_(heads.first / spec.dims.group()), end_key_(heads.end() / spec.dims.group()) {}

  // Returns the rows of a tensor; for the out-projection, its columns.
  Ranges Of(LayerTensor tensor) const {
    Ranges ranges;
    int64_t from = 0;
    for (const auto& [per, each] : LayerTensorRows(tensor, spec_)) {
      if (per == HeadRows::kAll) {  // every slice needs all of them
        Add({from, from + each}, ranges);
      } else if (per == HeadRows::kKeyHead) {
        AddKeys(each, from, ranges);
        from += spec_.dims.key_heads * each;
      } else {
        AddValues(each, from, ranges);
        from += spec_.dims.value_heads * each;
      }
    }
    return ranges;
  }

 private:
  // Adds `each` rows of every key head, from row `from` on.
  void AddKeys(int64_t each, int64_t from, Ranges& ranges) const {
    Add({from + first_key_ * each, from + end_key_ * each}, ranges);
  }
  // Adds `each` rows of every value head. In tiled order, member j of all key heads comes before member j + 1 of any.
  void AddValues(int64_t each, int64_t from, Ranges& ranges) const {
    const int64_t group = spec_.dims.group();
    if (spec_.value_heads == ValueHeadOrder::kGrouped) return AddKeys(group * each, from, ranges);
    for (int64_t j = 0; j < group; ++j) AddKeys(each, from + j * spec_.dims.key_heads * each, ranges);
  }
  // Adds a range. Adjacent ranges become one.
  static void Add(Range range, Ranges& ranges) {
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }

  const LayerSpec& spec_;
  const int64_t first_key_;
  const int64_t end_key_;
};

bool AreWholeBlocks(const Ranges& ranges, int64_t block) {
  return std::all_of(ranges.begin(), ranges.end(),
                     [block](const Range& range) { return range.begin % block == 0 && range.end % block == 0; });
}

// INVALID_ARGUMENT if a range of columns does not begin and end at a multiple of `block`.
absl::Status CheckBlocks(const std::string& name, std::string_view encoding, const LayerDims& dims,
                         const Ranges& columns, int64_t block) {
  if (AreWholeBlocks(columns, block)) return absl::OkStatus();
  const Range& cut = *std::find_if(columns.begin(), columns.end(),
                                   [block](const Range& range) { return !AreWholeBlocks({range}, block); });
  const int64_t heads = block / std::gcd(block, int64_t{dims.value_dim});
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
      StrCat("tensor '", name, "' is ", encoding, ", in blocks of ", block,
             " columns, and the slice would take columns ", cut.begin, " to ", cut.end - 1,
             " of it; expected whole blocks: value heads in multiples of ", heads, ", counted in the file's order"),
      {{"field", "heads"}, {"tensor", name}});
}

// Makes tensors of rows of a stored tensor, or of columns of all its rows.
class TensorSlicer {
 public:
  explicit TensorSlicer(std::deque<std::string>& made) : made_(made) {}

  StoredTensor Rows(const StoredTensor& tensor, const Ranges& rows) {
    const auto row_bytes = static_cast<size_t>(RowBytes(tensor.encoding, tensor.ElementCount() / tensor.shape[0]));
    if (tensor.encoding == WeightFormat::kF8E4M3 && !EndsWithBlocks(rows, tensor.shape[0])) {
      return Rows(Widened(tensor), rows);
    }
    StoredTensor sliced = tensor;
    sliced.shape[0] = CountOf(rows);
    const auto part = [&](const Range& range) {
      return tensor.data.substr(static_cast<size_t>(range.begin) * row_bytes,
                                static_cast<size_t>(range.end - range.begin) * row_bytes);
    };
    if (rows.size() == 1) {
      sliced.data = part(rows[0]);
    } else {
      std::string& bytes = NewBytes(static_cast<size_t>(sliced.shape[0]) * row_bytes);
      for (const Range& range : rows) bytes += part(range);
      sliced.data = bytes;
    }
    if (tensor.encoding == WeightFormat::kF8E4M3) sliced.scales = ScaleRows(tensor.scales, rows);
    return sliced;
  }

  StoredTensor Columns(const StoredTensor& tensor, const Ranges& columns) {
    if (tensor.encoding == WeightFormat::kF8E4M3 && !EndsWithBlocks(columns, tensor.shape[1])) {
      return Columns(Widened(tensor), columns);
    }
    StoredTensor sliced = tensor;
    sliced.shape[1] = CountOf(columns);
    sliced.data = CutColumns(tensor.data, tensor.shape, columns, BlockOf(tensor.encoding));
    if (tensor.encoding == WeightFormat::kF8E4M3) {
      sliced.scales.shape[1] = Fp8Blocks(sliced.shape[1]);
      sliced.scales.data = CutColumns(tensor.scales.data, tensor.scales.shape, InBlocks(columns),
                                      {1, static_cast<int64_t>(DTypeSize(tensor.scales.dtype))});
    }
    return sliced;
  }

  // Returns all parts, one below the other, in float32.
  StoredTensor Joined(const std::vector<const StoredTensor*>& parts) {
    StoredTensor joined{.encoding = WeightFormat::kF32, .shape = parts[0]->shape, .data = {}};
    joined.shape[0] = 0;
    for (const StoredTensor* part : parts) joined.shape[0] += part->shape[0];
    std::string& bytes = NewBytes(0);
    bytes.resize(static_cast<size_t>(joined.ElementCount()) * sizeof(float));
    auto* out = reinterpret_cast<float*>(bytes.data());
    for (const StoredTensor* part : parts) {
      DecodeTensor(*part, out);
      out += part->ElementCount();
    }
    joined.data = bytes;
    return joined;
  }

 private:
  std::string& NewBytes(size_t room) {
    made_.emplace_back().reserve(room);
    return made_.back();
  }

  StoredTensor Widened(const StoredTensor& tensor) {
    StoredTensor widened = Joined({&tensor});
    widened.widened = true;
    return widened;
  }

  // Returns true if F8_E4M3's blocks stay whole. The last block may be a partial one if it stays the last.
  static bool EndsWithBlocks(const Ranges& ranges, int64_t count) {
    for (size_t i = 0; i < ranges.size(); ++i) {
      const bool last = i + 1 == ranges.size() && ranges[i].end == count;
      if (ranges[i].begin % kFp8Block != 0 || (ranges[i].end % kFp8Block != 0 && !last)) return false;
    }
    return true;
  }
  static Ranges InBlocks(const Ranges& ranges) {
    Ranges blocks;
    for (const Range& range : ranges) {
      blocks.push_back({range.begin / kFp8Block, Fp8Blocks(range.end)});
    }
    return blocks;
  }

  std::string_view CutColumns(std::string_view data, const std::vector<int64_t>& shape, const Ranges& columns,
                              WeightBlock block) {
    const auto row_bytes = static_cast<size_t>(shape[1] / block.weights * block.bytes);
    std::string& bytes = NewBytes(static_cast<size_t>(shape[0] * CountOf(columns) / block.weights * block.bytes));
    for (int64_t row = 0; row < shape[0]; ++row) {
      const std::string_view from = data.substr(static_cast<size_t>(row) * row_bytes, row_bytes);
      for (const Range& range : columns) {
        bytes += from.substr(static_cast<size_t>(range.begin / block.weights * block.bytes),
                             static_cast<size_t>((range.end - range.begin) / block.weights * block.bytes));
      }
    }
    return bytes;
  }

  TensorView ScaleRows(const TensorView& scales, const Ranges& rows) {
    TensorView sliced = scales;
    const size_t row_bytes = static_cast<size_t>(scales.shape[1]) * DTypeSize(scales.dtype);
    std::string& bytes = NewBytes(0);
    for (const Range& range : InBlocks(rows)) {
      bytes += scales.data.substr(static_cast<size_t>(range.begin) * row_bytes,
                                  static_cast<size_t>(range.end - range.begin) * row_bytes);
    }
    sliced.shape[0] = static_cast<int64_t>(bytes.size() / row_bytes);
    sliced.data = bytes;
    return sliced;
  }

  std::deque<std::string>& made_;
};

}  // namespace

absl::Status CheckSlice(const ModelConfig& config, const std::vector<LayerTensors>& layers, const HeadSlice& heads,
                        bool quantize_q8_0) {
  GDN_RETURN_IF_ERROR(CheckHeadSlice(heads, config.spec.dims));
  if (heads.is_whole()) return absl::OkStatus();
  const Ranges columns = HeadRanges(config.spec, heads).Of(LayerTensor::kOut);
  for (const LayerTensors& layer : layers) {
    const WeightFormat stored = layer.tensors.at(LayerTensor::kOut).encoding;
    const WeightFormat encoding = quantize_q8_0 && IsPlain(stored) ? WeightFormat::kQ8_0 : stored;
    const std::string name = StrCat("layer ", layer.layer, ": ", LayerTensorName(*config.family, LayerTensor::kOut));
    GDN_RETURN_IF_ERROR(
        CheckBlocks(name, WeightFormatName(encoding), config.spec.dims, columns, BlockOf(encoding).weights));
  }
  return absl::OkStatus();
}

LayerSpec SliceSpec(const LayerSpec& spec, const HeadSlice& heads) {
  LayerSpec sliced = spec;
  if (heads.is_whole()) return sliced;
  sliced.dims = SliceDims(spec.dims, heads);
  sliced.convolutions = ConvLayout::kJoint;
  return sliced;
}

MadeLayer SliceLayer(const LayerSpec& spec, const LayerTensors& layer, const HeadSlice& heads) {
  MadeLayer sliced{.tensors = layer, .made = {}};
  for (auto& [tensor, stored] : sliced.tensors.tensors) stored = Unpacked(stored, sliced.made);
  if (heads.is_whole()) return sliced;
  const HeadRanges ranges(spec, heads);
  TensorSlicer slicer(sliced.made);
  auto& tensors = sliced.tensors.tensors;
  if (spec.convolutions == ConvLayout::kSeparate) {
    // Joined first, because files may cut it elsewhere than between q, k and v.
    std::vector<const StoredTensor*> parts;
    for (const LayerTensor part : {LayerTensor::kConvQ, LayerTensor::kConvK, LayerTensor::kConvV}) {
      parts.push_back(&layer.tensors.at(part));
      tensors.erase(part);
    }
    tensors[LayerTensor::kConv] = slicer.Joined(parts);
  }
  for (auto& [tensor, stored] : tensors) {
    stored = tensor == LayerTensor::kOut ? slicer.Columns(stored, ranges.Of(tensor))
                                         : slicer.Rows(stored, ranges.Of(tensor));
  }
  return sliced;
}

}  // namespace gdn
