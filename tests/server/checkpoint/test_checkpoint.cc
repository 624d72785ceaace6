#include "tests/server/checkpoint/test_checkpoint.h"

#include "base/files/safetensors.h"
#include "gtest/gtest.h"

namespace gdn {
namespace {

RawTensor ToRaw(const std::string& name, const TestTensor& tensor) {
  const std::string dtype = tensor.other_dtype.empty() ? std::string(DTypeName(tensor.dtype)) : tensor.other_dtype;
  return {.name = name, .dtype = dtype, .shape = tensor.shape, .data = tensor.data};
}

void WriteTensors(const std::string& path, const std::vector<RawTensor>& tensors) {
  const auto header = SafetensorsHeader(tensors, {{"format", "pt"}});
  ASSERT_TRUE(header.ok()) << header.status();
  std::string bytes = *header;
  for (const RawTensor& tensor : tensors) bytes += tensor.data;
  WriteFile(path, bytes);
}

}  // namespace

std::string GoldenFolder(const std::string& name) { return std::string(GDN_SOURCE_DIR "/tests/golden/") + name; }

TestTensor TestTensor::Filled(DType dtype, std::vector<int64_t> shape, float value) {
  TestTensor tensor{.dtype = dtype, .shape = std::move(shape), .data = {}};
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= dim;
  const std::vector<float> values(static_cast<size_t>(count), value);
  tensor.data.resize(values.size() * DTypeSize(dtype));
  ConvertFromFloat(values.data(), values.size(), dtype, tensor.data.data());
  return tensor;
}

std::vector<float> TestTensor::Floats() const {
  std::vector<float> values(data.size() / DTypeSize(dtype));
  ConvertToFloat(dtype, data.data(), values.size(), values.data());
  return values;
}

TestCheckpoint TestCheckpoint::Golden(const std::string& name) {
  TestCheckpoint checkpoint;
  checkpoint.config = nlohmann::json::parse(ReadFile(GoldenFolder(name) + "/config.json"), nullptr, false);
  const auto file = SafetensorsFile::Open(GoldenFolder(name) + "/model.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return checkpoint;
  for (const auto& [tensor_name, entry] : file->entries()) {
    const auto dtype = ParseDType(entry.dtype);
    checkpoint.tensors[tensor_name] = {.dtype = dtype.ok() ? *dtype : DType::kF32,
                                       .shape = entry.shape,
                                       .data = std::string(*file->Bytes(tensor_name)),
                                       .other_dtype = dtype.ok() ? "" : entry.dtype};
  }
  return checkpoint;
}

void TestCheckpoint::ConvertTo(DType dtype) {
  for (auto& [name, tensor] : tensors) {
    const std::vector<float> values = tensor.Floats();
    tensor.dtype = dtype;
    tensor.data.resize(values.size() * DTypeSize(dtype));
    ConvertFromFloat(values.data(), values.size(), dtype, tensor.data.data());
  }
}

void TestCheckpoint::RenamePrefix(const std::string& from, const std::string& to) {
  std::map<std::string, TestTensor> renamed;
  for (auto& [name, tensor] : tensors) {
    const bool has = name.compare(0, from.size(), from) == 0;
    renamed[has ? to + name.substr(from.size()) : name] = std::move(tensor);
  }
  tensors = std::move(renamed);
}

void TestCheckpoint::NestTextConfig(const std::string& model_type) {
  nlohmann::json outer = {{"model_type", model_type}, {"vision_config", {{"hidden_size", 1152}}}};
  outer["text_config"] = std::move(config);
  config = std::move(outer);
}

void TestCheckpoint::Write(const std::string& folder) const {
  WriteFile(folder + "/config.json", config.dump());
  std::vector<RawTensor> named;
  for (const auto& [name, tensor] : tensors) named.push_back(ToRaw(name, tensor));
  WriteTensors(folder + "/model.safetensors", named);
}

void TestCheckpoint::WriteSharded(const std::string& folder, int shards) const {
  WriteFile(folder + "/config.json", config.dump());
  std::map<std::string, std::vector<RawTensor>> files;
  nlohmann::json weight_map = nlohmann::json::object();
  int next = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string file = "model-" + std::to_string(next++ % shards) + ".safetensors";
    files[file].push_back(ToRaw(name, tensor));
    weight_map[name] = file;
  }
  for (const auto& [file, named] : files) WriteTensors(folder + "/" + file, named);
  WriteFile(folder + "/model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump());
}

}  // namespace gdn
