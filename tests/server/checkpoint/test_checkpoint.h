// A checkpoint folder in memory, which a test changes and writes.
//
// Thread safety: a plain value. Ownership: owns its tensors.
//
//   TestCheckpoint checkpoint = TestCheckpoint::Golden("qwen3_next_1");
//   checkpoint.tensors.erase("model.layers.0.linear_attn.A_log");
//   TempFolder folder;
//   checkpoint.Write(folder.path());
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_folder.h"

namespace gdn {

// Returns "{repository}/tests/golden/{name}".
std::string GoldenFolder(const std::string& name);

struct TestTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string data;
  std::string other_dtype = {};  // if set, used instead of dtype: a dtype that DType does not have, such as "F8_E4M3"

  static TestTensor Filled(DType dtype, std::vector<int64_t> shape, float value);
  std::vector<float> Floats() const;
};

struct TestCheckpoint {
  nlohmann::json config;
  std::map<std::string, TestTensor> tensors;  // written in this order

  static TestCheckpoint Golden(const std::string& name);

  void ConvertTo(DType dtype);
  // Replaces the prefix `from` of tensor names by `to`.
  void RenamePrefix(const std::string& from, const std::string& to);
  // Moves every config field except model_type into "text_config".
  void NestTextConfig(const std::string& model_type);

  // Writes config.json and model.safetensors.
  void Write(const std::string& folder) const;
  // Writes config.json, `shards` files among which the tensors are distributed in turn, and the index.
  void WriteSharded(const std::string& folder, int shards) const;
};

}  // namespace gdn
