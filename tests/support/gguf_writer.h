// Writes GGUF files for tests and fuzz seeds.
//
// Thread safety: a plain value.
//
//   GgufWriter writer;
//   writer.Text("general.architecture", "qwen35");
//   writer.Tensor("blk.0.ssm_a", {4}, GgmlType::kF32, bytes);
//   WriteFile(path, writer.Bytes());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/checkpoint/gguf_file.h"

namespace gdn {

class GgufWriter {
 public:
  void Text(std::string_view key, std::string_view value) {
    BeginKey(key, 8);
    String(value, keys_);
  }
  void Int(std::string_view key, uint32_t value) {
    BeginKey(key, 4);
    Number(value, keys_);
  }
  void Float(std::string_view key, float value) {
    BeginKey(key, 6);
    Number(value, keys_);
  }
  void Bools(std::string_view key, const std::vector<bool>& values) {
    BeginKey(key, 9);
    Number(uint32_t{7}, keys_);
    Number(uint64_t{values.size()}, keys_);
    for (const bool value : values) keys_ += value ? '\1' : '\0';
  }
  void Bool(std::string_view key, bool value) {
    BeginKey(key, 7);
    keys_ += value ? '\1' : '\0';
  }
  void Ints(std::string_view key, const std::vector<int32_t>& values) {
    BeginKey(key, 9);
    Number(uint32_t{5}, keys_);
    Number(uint64_t{values.size()}, keys_);
    for (const int32_t value : values) Number(value, keys_);
  }
  void Texts(std::string_view key, const std::vector<std::string>& values) {
    BeginKey(key, 9);
    Number(uint32_t{8}, keys_);
    Number(uint64_t{values.size()}, keys_);
    for (const std::string& value : values) String(value, keys_);
  }
  // `shape` outermost first.
  void Tensor(std::string_view name, const std::vector<int64_t>& shape, GgmlType type, std::string_view data) {
    String(name, tensors_);
    Number(static_cast<uint32_t>(shape.size()), tensors_);
    for (auto dim = shape.rbegin(); dim != shape.rend(); ++dim) Number(static_cast<uint64_t>(*dim), tensors_);
    Number(static_cast<uint32_t>(type), tensors_);
    Number(uint64_t{data_.size()}, tensors_);
    data_ += data;
    Pad(data_);
    ++tensor_count_;
  }

  std::string Bytes(uint32_t version = 3) const {
    std::string file = "GGUF";
    Number(version, file);
    Number(tensor_count_, file);
    Number(key_count_, file);
    file += keys_ + tensors_;
    Pad(file);
    return file + data_;
  }

 private:
  template <typename T>
  static void Number(T value, std::string& to) {
    to.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void String(std::string_view text, std::string& to) {
    Number(uint64_t{text.size()}, to);
    to += text;
  }
  static void Pad(std::string& to) { to.resize((to.size() + 31) / 32 * 32, '\0'); }
  void BeginKey(std::string_view key, uint32_t type) {
    String(key, keys_);
    Number(type, keys_);
    ++key_count_;
  }

  uint64_t key_count_ = 0;
  uint64_t tensor_count_ = 0;
  std::string keys_, tensors_, data_;
};

}  // namespace gdn
