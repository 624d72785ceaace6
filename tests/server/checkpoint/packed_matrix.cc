#include "tests/server/checkpoint/packed_matrix.h"

#include <cmath>
#include <deque>

#include "base/string_cat.h"
#include "server/checkpoint/layer_tensors.h"

namespace gdn {
namespace {

using Json = nlohmann::json;

double E4M3(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const double mantissa = (bits & 7) / 8.0;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1.0 + mantissa, exponent - 7);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

double E2M1(int bits) {
  const int exponent = bits >> 1 & 3;
  const double mantissa = (bits & 1) / 2.0;
  const double magnitude = exponent == 0 ? mantissa : std::ldexp(1.0 + mantissa, exponent - 1);
  return (bits & 8) != 0 ? -magnitude : magnitude;
}

TestTensor Floats(DType dtype, std::vector<int64_t> shape, std::vector<float>& values) {
  TestTensor tensor{.dtype = dtype, .shape = std::move(shape), .data = {}};
  tensor.data.resize(values.size() * DTypeSize(dtype));
  ConvertFromFloat(values.data(), values.size(), dtype, tensor.data.data());
  values = tensor.Floats();
  return tensor;
}

}  // namespace

PackedMatrix::PackedMatrix() {
  const TestTensor& plain = checkpoint.tensors.at(StrCat(kPackedModule, ".weight"));
  rows = plain.shape[0];
  cols = plain.shape[1];
  checkpoint.tensors.erase(StrCat(kPackedModule, ".weight"));
  expected.resize(static_cast<size_t>(rows * cols));
}

TestTensor& PackedMatrix::operator[](std::string_view name) {
  return checkpoint.tensors[StrCat(kPackedModule, ".", name)];
}

void PackedMatrix::Erase(std::string_view name) { checkpoint.tensors.erase(StrCat(kPackedModule, ".", name)); }

template <typename T>
std::vector<T> PackedMatrix::Bits(int64_t count) {
  std::vector<T> bits(static_cast<size_t>(count));
  auto* bytes = reinterpret_cast<uint8_t*>(bits.data());
  for (size_t i = 0; i < bits.size() * sizeof(T); ++i) bytes[i] = static_cast<uint8_t>(random_.NextInt(0, 255));
  return bits;
}

std::vector<float> PackedMatrix::Scales(int64_t count) {
  std::vector<float> scales = random_.Normal(count);
  for (float& scale : scales) scale = 0.01f + 0.01f * std::abs(scale);
  return scales;
}

void PackedMatrix::Fp8(const std::vector<int64_t>& scale_shape, DType dtype) {
  std::vector<uint8_t> bits = Bits<uint8_t>(rows * cols);
  for (uint8_t& each : bits) each = (each & 0x7f) == 0x7f ? 0x38 : each;
  int64_t count = 1;
  for (const int64_t dim : scale_shape) count *= dim;
  std::vector<float> scales = Scales(count);
  (*this)["weight"] = TensorOf("F8_E4M3", {rows, cols}, bits);
  (*this)["weight_scale"] = Floats(dtype, scale_shape, scales);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const double scale = scales[static_cast<size_t>(count == 1 ? 0 : r)];
      At(r, c) = E4M3(bits[static_cast<size_t>(r * cols + c)]) * scale;
    }
  }
  checkpoint.config["quantization_config"] =
      Json({{"quant_method", "compressed-tensors"},
            {"format", "float-quantized"},
            {"config_groups", {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}}}}}}},
            {"ignore", {"lm_head", "re:.*mlp.gate$"}},
            {"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}}}});
}

void PackedMatrix::Int8(DType dtype) {
  const std::vector<int8_t> q = Bits<int8_t>(rows * cols);
  std::vector<float> scales = Scales(rows);
  (*this)["weight"] = TensorOf("I8", {rows, cols}, q);
  (*this)["weight_scale"] = Floats(dtype, {rows, 1}, scales);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      At(r, c) = q[static_cast<size_t>(r * cols + c)] * static_cast<double>(scales[static_cast<size_t>(r)]);
    }
  }
  checkpoint.config["quantization_config"] =
      Json({{"quant_method", "compressed-tensors"},
            {"format", "int-quantized"},
            {"config_groups", {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "int"}, {"symmetric", true}}}}}}}});
}

void PackedMatrix::Int4(int64_t group, bool symmetric, DType dtype) {
  const int64_t groups = cols / group;
  const std::vector<uint32_t> words = Bits<uint32_t>(rows * cols / 8);
  const std::vector<uint32_t> zeros = Bits<uint32_t>((rows + 7) / 8 * groups);
  std::vector<float> scales = Scales(rows * groups);
  (*this)["weight_packed"] = TensorOf("I32", {rows, cols / 8}, words);
  (*this)["weight_scale"] = Floats(dtype, {rows, groups}, scales);
  (*this)["weight_shape"] = TensorOf("I64", {2}, std::vector<int64_t>{rows, cols});
  if (!symmetric) (*this)["weight_zero_point"] = TensorOf("I32", {(rows + 7) / 8, groups}, zeros);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int q = static_cast<int>(words[static_cast<size_t>(r * cols / 8 + c / 8)] >> 4 * (c % 8) & 15) - 8;
      const int64_t g = c / group;
      const int zero = static_cast<int>(zeros[static_cast<size_t>(r / 8 * groups + g)] >> 4 * (r % 8) & 15) - 8;
      At(r, c) = (q - (symmetric ? 0 : zero)) * static_cast<double>(scales[static_cast<size_t>(r * groups + g)]);
    }
  }
  Json weights = {{"num_bits", 4}, {"type", "int"}, {"symmetric", symmetric}, {"group_size", group}};
  checkpoint.config["quantization_config"] =
      Json({{"quant_method", "compressed-tensors"},
            {"format", "pack-quantized"},
            {"config_groups", {{"group_0", {{"weights", weights}, {"targets", {"Linear"}}}}}}});
}

void PackedMatrix::Nvfp4(bool modelopt) {
  const std::vector<uint8_t> pairs = Bits<uint8_t>(rows * cols / 2);
  std::vector<uint8_t> scales = Bits<uint8_t>(rows * cols / 16);
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(scale & 0x77);  // positive and a number
  std::vector<float> global = {modelopt ? 3.1e-4f : 2731.7f};
  (*this)[modelopt ? "weight" : "weight_packed"] = TensorOf("U8", {rows, cols / 2}, pairs);
  (*this)["weight_scale"] = TensorOf("F8_E4M3", {rows, cols / 16}, scales);
  (*this)[modelopt ? "weight_scale_2" : "weight_global_scale"] =
      Floats(DType::kF32, modelopt ? std::vector<int64_t>{} : std::vector<int64_t>{1}, global);
  (*this)[modelopt ? "input_scale" : "input_global_scale"] = TestTensor::Filled(DType::kF32, {1}, 1.0f);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int bits = pairs[static_cast<size_t>((r * cols + c) / 2)] >> 4 * (c % 2) & 15;
      const double scale = E4M3(scales[static_cast<size_t>((r * cols + c) / 16)]);
      At(r, c) = E2M1(bits) * (modelopt ? scale * global[0] : scale / global[0]);
    }
  }
  if (modelopt) {
    checkpoint.config["quantization_config"] =
        Json({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}});
    return;
  }
  Json weights = {{"num_bits", 4}, {"type", "float"}, {"symmetric", true}, {"group_size", 16}};
  checkpoint.config["quantization_config"] = Json({{"quant_method", "compressed-tensors"},
                                                   {"format", "nvfp4-pack-quantized"},
                                                   {"config_groups", {{"group_0", {{"weights", weights}}}}}});
}

absl::StatusOr<ReadMatrix> ReadBack(const TestCheckpoint& checkpoint) {
  TempFolder folder;
  checkpoint.Write(folder.path());
  const auto config = ParseModelConfig(checkpoint.config.dump());
  if (!config.ok()) return config.status();
  auto files = CheckpointFiles::Open(folder.path());
  if (!files.ok()) return files.status();
  const auto layers = FindLayerTensors(*config, *files);
  if (!layers.ok()) return layers.status();
  const StoredTensor& stored = layers->at(1).tensors.at(LayerTensor::kOut);
  if (const absl::Status status = CheckFinite(stored); !status.ok()) return status;
  std::deque<std::string> made;
  const StoredTensor unpacked = Unpacked(stored, made);
  ReadMatrix read{.encoding = unpacked.encoding,
                  .packed = unpacked.packed != nullptr,
                  .widened = unpacked.widened,
                  .values = std::vector<float>(static_cast<size_t>(stored.ElementCount()))};
  DecodeTensor(unpacked, read.values.data());
  return read;
}

}  // namespace gdn
