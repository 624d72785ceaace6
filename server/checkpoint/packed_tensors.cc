#include "server/checkpoint/packed_tensors.h"

#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/checkpoint/tensor_errors.h"

namespace gdn {
namespace {

using Shape = std::vector<int64_t>;

constexpr int64_t kNvfp4Group = 16;
constexpr int64_t kPerInt32 = 8;  // 4-bit weights in an int32
constexpr std::string_view kE4M3 = "F8_E4M3";

template <typename T>
T LoadPacked(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

int64_t CeilDiv(int64_t count, int64_t by) { return (count + by - 1) / by; }

// Returns the format of a plain dtype or of E4M3 by its name, such as "F32"; nothing for other dtypes.
std::optional<WeightFormat> ScaleFormat(std::string_view dtype) {
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16, WeightFormat::kF8E4M3}) {
    if (WeightFormatName(format) == dtype) return format;
  }
  return std::nullopt;
}

// Builds one matrix from its tensors.
class Reader {
 public:
  Reader(const std::string& name, const Shape& shape, const QuantizationConfig& config, CheckpointFiles& files)
      : name_(name), shape_(shape), config_(config), files_(files) {}

  absl::StatusOr<std::optional<PackedTensor>> Read() {
    const bool renamed = Has("_packed");
    if (!renamed && !Has("_scale")) return std::nullopt;
    if (renamed && Has("")) {
      return InvalidTensor(
          reason::kInvalidSpec, Name("_packed"),
          StrCat("(compressed-tensors INT4 or NVFP4) is there beside '", name_, "'; expected one of the two"));
    }
    if (!renamed && !Has("")) return std::nullopt;  // missing; the caller reports it
    GDN_ASSIGN_OR_RETURN(const RawView weight, Take(renamed ? "_packed" : ""));
    absl::Status status;
    if (weight.dtype == "U8") {
      status = ReadNvfp4(weight, renamed);
    } else if (renamed && weight.dtype == "I32") {
      status = ReadInt4(weight);
    } else if (!renamed && weight.dtype == "I8") {
      status = ReadScaled(weight, PackedFormat::kInt8);
    } else if (!renamed && weight.dtype == kE4M3) {
      status = ReadScaled(weight, PackedFormat::kFp8);
    } else if (renamed) {
      status = InvalidTensor(reason::kInvalidTensorDtype, Name("_packed"),
                             StrCat("is ", weight.dtype, "; expected I32 (INT4) or U8 (NVFP4)"));
    } else {
      return std::nullopt;  // plain; the caller refuses the scale beside it
    }
    GDN_RETURN_IF_ERROR(status);
    for (const char* of_input : {".input_scale", ".input_global_scale", ".input_zero_point"}) {
      const std::string beside = StrCat(name_.substr(0, name_.rfind('.')), of_input);
      if (files_.Contains(beside)) found_.names.push_back(beside);
    }
    return std::move(found_);
  }

 private:
  std::string Name(std::string_view suffix) const { return StrCat(name_, suffix); }
  bool Has(std::string_view suffix) const { return files_.Contains(Name(suffix)); }

  absl::StatusOr<RawView> Take(std::string_view suffix) {
    std::string name = Name(suffix);
    GDN_ASSIGN_OR_RETURN(RawView view, files_.Raw(name));
    found_.names.push_back(std::move(name));
    return view;
  }
  // Returns a tensor that the format must have beside its weights.
  absl::StatusOr<RawView> Beside(std::string_view suffix, PackedFormat format, std::string_view meaning) {
    if (Has(suffix)) return Take(suffix);
    return InvalidTensor(
        reason::kInvalidSpec, found_.names.front(),
        StrCat("is ", PackedFormatName(format), " and has no '", Name(suffix), "'; expected ", meaning));
  }
  absl::Status CheckShape(std::string_view suffix, const Shape& shape, const Shape& expected) const {
    if (shape == expected) return absl::OkStatus();
    return InvalidTensor(reason::kInvalidTensorShape, Name(suffix),
                         StrCat("has shape ", ShapeToString(shape), "; expected ", ShapeToString(expected),
                                " for weights of ", ShapeToString(shape_)));
  }
  absl::Status CheckDtype(std::string_view suffix, std::string_view dtype, std::string_view expected) const {
    if (dtype == expected) return absl::OkStatus();
    return InvalidTensor(reason::kInvalidTensorDtype, Name(suffix), StrCat("is ", dtype, "; expected ", expected));
  }
  absl::Status TakeScales(const RawView& scales, PackedWeight& weight) const {
    const std::optional<WeightFormat> format = ScaleFormat(scales.dtype);
    if (!format.has_value() || *format == WeightFormat::kF8E4M3) {
      return InvalidTensor(reason::kInvalidTensorDtype, Name("_scale"),
                           StrCat("is ", scales.dtype, "; expected F32, F16 or BF16"));
    }
    weight.scale_format = *format;
    weight.scales = scales.data;
    return absl::OkStatus();
  }

  // Reads FP8 and INT8: one scale for all weights or for each row. FP8 may also have one for each block, which kernels
  // read as stored.
  absl::Status ReadScaled(const RawView& data, PackedFormat format) {
    const bool fp8 = format == PackedFormat::kFp8;
    GDN_RETURN_IF_ERROR(CheckShape("", data.shape, shape_));
    if (Has("_zero_point")) {
      return InvalidTensor(reason::kInvalidSpec, Name("_zero_point"),
                           "was found; expected symmetric weights: convert the model with 'symmetric' true");
    }
    GDN_ASSIGN_OR_RETURN(const RawView scales, Beside("_scale", format, "a scale for all weights or a row"));
    PackedWeight weight{
        .format = format, .rows = shape_[0], .cols = shape_[1], .data = data.data, .group = shape_[1], .scales = {}};
    GDN_RETURN_IF_ERROR(TakeScales(scales, weight));
    const WeightScheme scheme{.bits = 8, .is_float = fp8, .symmetric = true};
    GDN_RETURN_IF_ERROR(CheckScheme(config_, name_, format, scheme));
    const Shape rows = {shape_[0], 1};
    const bool for_all = scales.shape.empty() || scales.shape == Shape{1} || scales.shape == Shape{1, 1};
    if (for_all || scales.shape == rows || scales.shape == Shape{shape_[0]}) {
      weight.one_scale = for_all;
      return Keep(std::move(weight));
    }
    const Shape blocks = Fp8BlocksOf(shape_);
    if (fp8 && scales.shape == blocks) {
      GDN_ASSIGN_OR_RETURN(const DType dtype, ParseDType(scales.dtype));
      found_.tensor = {.encoding = WeightFormat::kF8E4M3,
                       .shape = shape_,
                       .data = data.data,
                       .scales = {.dtype = dtype, .shape = scales.shape, .data = scales.data}};
      return absl::OkStatus();
    }
    return InvalidTensor(
        reason::kInvalidTensorShape, Name("_scale"),
        StrCat("has shape ", ShapeToString(scales.shape), "; expected [1], ", ShapeToString(rows),
               fp8 ? StrCat(" or ", ShapeToString(blocks)) : "", " for weights of ", ShapeToString(shape_)));
  }

  absl::Status ReadInt4(const RawView& data) {
    constexpr PackedFormat kFormat = PackedFormat::kInt4;
    GDN_RETURN_IF_ERROR(CheckWeightShape());
    GDN_RETURN_IF_ERROR(CheckShape("_packed", data.shape, {shape_[0], CeilDiv(shape_[1], kPerInt32)}));
    GDN_ASSIGN_OR_RETURN(const RawView scales, Beside("_scale", kFormat, "a scale for each group of a row's weights"));
    PackedWeight weight{.format = kFormat, .rows = shape_[0], .cols = shape_[1], .data = data.data, .scales = {}};
    GDN_RETURN_IF_ERROR(TakeScales(scales, weight));
    if (scales.shape.size() != 2 || scales.shape[0] != shape_[0] || scales.shape[1] < 1 ||
        shape_[1] % scales.shape[1] != 0) {
      return InvalidTensor(reason::kInvalidTensorShape, Name("_scale"),
                           StrCat("has shape ", ShapeToString(scales.shape), "; expected [", shape_[0],
                                  ", groups], with groups that divide a row of ", shape_[1], " weights"));
    }
    weight.group = shape_[1] / scales.shape[1];
    WeightScheme scheme{.bits = 4, .is_float = false, .symmetric = true};
    if (scales.shape[1] > 1) scheme.group = weight.group;
    if (Has("_zero_point")) {
      GDN_ASSIGN_OR_RETURN(const RawView zeros, Take("_zero_point"));
      GDN_RETURN_IF_ERROR(CheckDtype("_zero_point", zeros.dtype, "I32"));
      GDN_RETURN_IF_ERROR(CheckShape("_zero_point", zeros.shape, {CeilDiv(shape_[0], kPerInt32), scales.shape[1]}));
      weight.zero_points = zeros.data;
      scheme.symmetric = false;
    }
    GDN_RETURN_IF_ERROR(CheckScheme(config_, name_, kFormat, scheme));
    return Keep(std::move(weight));
  }

  // Checks the shape that compressed-tensors stores beside packed weights.
  absl::Status CheckWeightShape() {
    GDN_ASSIGN_OR_RETURN(const RawView view, Beside("_shape", PackedFormat::kInt4, "the shape of the weights"));
    const bool wide = view.dtype == "I64";
    if (!wide) GDN_RETURN_IF_ERROR(CheckDtype("_shape", view.dtype, "I32"));
    if (view.shape != Shape{2}) {
      return InvalidTensor(reason::kInvalidTensorShape, Name("_shape"),
                           StrCat("has shape ", ShapeToString(view.shape), "; expected [2]"));
    }
    const char* const at = view.data.data();
    const Shape shape = wide ? Shape{LoadPacked<int64_t>(at), LoadPacked<int64_t>(at + sizeof(int64_t))}
                             : Shape{LoadPacked<int32_t>(at), LoadPacked<int32_t>(at + sizeof(int32_t))};
    if (shape == shape_) return absl::OkStatus();
    return InvalidTensor(reason::kInvalidTensorShape, Name("_shape"),
                         StrCat("says ", ShapeToString(shape), "; expected ", ShapeToString(shape_), " by the config"));
  }

  absl::Status ReadNvfp4(const RawView& data, bool renamed) {
    constexpr PackedFormat kFormat = PackedFormat::kNvfp4;
    if (shape_[1] % kNvfp4Group != 0) {
      return InvalidTensor(
          reason::kInvalidTensorShape, found_.names.front(),
          StrCat("is NVFP4, and a row has ", shape_[1], " weights; expected a multiple of ", kNvfp4Group));
    }
    GDN_RETURN_IF_ERROR(CheckShape(renamed ? "_packed" : "", data.shape, {shape_[0], shape_[1] / 2}));
    GDN_ASSIGN_OR_RETURN(const RawView scales, Beside("_scale", kFormat, "a scale for each 16 weights"));
    GDN_RETURN_IF_ERROR(CheckDtype("_scale", scales.dtype, kE4M3));
    GDN_RETURN_IF_ERROR(CheckShape("_scale", scales.shape, {shape_[0], shape_[1] / kNvfp4Group}));
    const std::string_view suffix = renamed ? "_global_scale" : "_scale_2";
    GDN_ASSIGN_OR_RETURN(const RawView global, Beside(suffix, kFormat, "a scale for all weights"));
    GDN_RETURN_IF_ERROR(CheckDtype(suffix, global.dtype, "F32"));
    if (global.data.size() != sizeof(float)) GDN_RETURN_IF_ERROR(CheckShape(suffix, global.shape, {1}));
    PackedWeight weight{.format = kFormat,
                        .rows = shape_[0],
                        .cols = shape_[1],
                        .data = data.data,
                        .group = kNvfp4Group,
                        .scale_format = WeightFormat::kF8E4M3,
                        .scales = scales.data,
                        .global_scale = LoadPacked<float>(global.data.data()),
                        .global_divides = renamed};
    const WeightScheme scheme{.bits = 4, .is_float = true, .symmetric = true, .group = kNvfp4Group};
    GDN_RETURN_IF_ERROR(CheckScheme(config_, name_, kFormat, scheme));
    return Keep(std::move(weight));
  }

  absl::Status Keep(PackedWeight weight) {
    found_.tensor = {.encoding = UnpackedFormat(weight), .shape = shape_, .data = {}};
    found_.tensor.packed = std::make_shared<const PackedWeight>(std::move(weight));
    return absl::OkStatus();
  }

  const std::string& name_;
  const Shape& shape_;
  const QuantizationConfig& config_;
  CheckpointFiles& files_;
  PackedTensor found_;
};

}  // namespace

absl::StatusOr<std::optional<PackedTensor>> FindPackedTensor(const std::string& name, const std::vector<int64_t>& shape,
                                                             const QuantizationConfig& config, CheckpointFiles& files) {
  return Reader(name, shape, config, files).Read();
}

}  // namespace gdn
