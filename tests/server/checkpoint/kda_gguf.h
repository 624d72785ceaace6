// A GGUF file of KDA layers, made from a golden checkpoint as llama.cpp's converters do, for tests to change.
//
// Thread safety: a plain value. Source of the form: conversion/kimi_linear.py, glm.py and bailingmoe3.py of llama.cpp.
//
//   KdaGguf file = KdaGguf::Of("kimi_linear_1");
//   file.tensors.erase("blk.0.ssm_a");
//   WriteFile(path, file.Bytes());
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gdn {

struct KdaGguf {
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::string architecture;
  float epsilon = 0.0f;
  std::map<std::string, uint32_t> ints;  // metadata by key, without the architecture prefix
  std::vector<int32_t> head_count_kv;    // 0: a linear block
  std::optional<float> lower_bound;
  std::optional<bool> safe_gate;
  std::map<std::string, Tensor> tensors;  // F32

  // Makes the file from the golden set kimi_linear_1, glm5_next_1 or bailing_hybrid_1.
  static KdaGguf Of(const std::string& golden);
  std::string Bytes() const;
};

}  // namespace gdn
