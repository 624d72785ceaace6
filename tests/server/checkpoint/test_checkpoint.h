// A checkpoint folder in memory, to be changed and written by a test.
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

// "{repository}/tests/golden/{name}".
std::string GoldenFolder(const std::string& name);

struct TestTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string data;
  std::string other_dtype = {};  // in dtype's place: one that tensors of this server do not have, "F8_E4M3"

  static TestTensor Filled(DType dtype, std::vector<int64_t> shape, float value);
  std::vector<float> Floats() const;
};

struct TestCheckpoint {
  nlohmann::json config;
  std::map<std::string, TestTensor> tensors;  // written in this order

  static TestCheckpoint Golden(const std::string& name);

  void ConvertTo(DType dtype);
  // Puts `to` in place of the prefix `from` of every name that has it.
  void RenamePrefix(const std::string& from, const std::string& to);
  // Moves every config field but model_type below "text_config".
  void NestTextConfig(const std::string& model_type);

  // config.json and model.safetensors.
  void Write(const std::string& folder) const;
  // config.json, the tensors dealt out to `shards` files in turn, and the index.
  void WriteSharded(const std::string& folder, int shards) const;
};

}  // namespace gdn
