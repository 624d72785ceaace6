// Reads the GGUF format: a header with keys and the positions of tensors, then the tensors' bytes. One file, or the
// files of a split.
//
// Versions 2 and 3, little-endian. The meaning of a tensor's bytes depends on its type; this class only
// checks that the bytes are there. Values are decoded when they are asked for, so a tokenizer's long lists are skipped.
// Thread safety: a GgufFile is immutable after construction, but for Keep. Ownership: Open maps the files and owns the
// mappings; Parse borrows the caller's bytes. Views point into either and must not outlive it.
// Source of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
//   GDN_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open("model-00001-of-00002.gguf"));
//   GDN_ASSIGN_OR_RETURN(const std::string_view architecture, file.Text("general.architecture"));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/files/mapped_file.h"
#include "base/weight_format.h"

namespace gdn {

// Tensor types by their numbers in the format. The size of the types named here is known.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kBF16 = 30,
};

// Returns "Q4_K"; for a type without a name here, "type 16".
std::string GgmlTypeName(GgmlType type);

// Returns the format in which a layer's weights of this type are served; nothing for a type that is not supported.
std::optional<WeightFormat> WeightFormatOf(GgmlType type);

// Number of elements in a block, the unit in which a type stores them, and the block's size. GgmlBlockOf returns
// nothing for a type that GgmlType does not name.
struct GgmlBlock {
  int64_t elements;
  int64_t bytes;
};
std::optional<GgmlBlock> GgmlBlockOf(GgmlType type);

struct GgufTensor {
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape;  // outermost first, as everywhere but in the file
  std::string_view data;       // empty if the type's size is not known
};

class GgufFile {
 public:
  // Maps `path`. If it is the first file of a split ("X-00001-of-00003.gguf"), also maps the others beside it. Errors
  // are those of MappedFile::Open and Parse, with the path in the message; INVALID_ARGUMENT (INVALID_SPEC) if `path` is
  // a later part of a split; NOT_FOUND for a part that is missing.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  // Parses one file. `bytes` must outlive the result. DATA_LOSS (INVALID_STATE_FILE) if the file is cut or is not in
  // the format, names a key or tensor twice, or has tensors that overlap, reach beyond its end or are not whole blocks.
  // INVALID_ARGUMENT (INVALID_SPEC) for another version than 2 and 3, and for a general.alignment that is not 1 to
  // 65536.
  static absl::StatusOr<GgufFile> Parse(std::string_view bytes);

  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }
  bool Has(const std::string& key) const { return values_.count(key) != 0; }
  bool IsArray(const std::string& key) const;
  // Returns the whole keys that begin with `prefix`, in ascending order. They are borrowed from this file.
  std::vector<std::string_view> KeysUnder(const std::string& prefix) const;

  // Return a key's value. Int and Ints take any integer type if the value fits int64_t; Float takes F32 and F64.
  // NOT_FOUND if there is no such key, INVALID_ARGUMENT (INVALID_SPEC) for a value of another type. Errors name the
  // key.
  absl::StatusOr<int64_t> Int(const std::string& key) const;
  absl::StatusOr<double> Float(const std::string& key) const;
  absl::StatusOr<std::string_view> Text(const std::string& key) const;
  absl::StatusOr<bool> Bool(const std::string& key) const;
  absl::StatusOr<std::vector<bool>> Bools(const std::string& key) const;
  absl::StatusOr<std::vector<int64_t>> Ints(const std::string& key) const;

  // Keeps bytes that are served instead of the file's own. The result is valid as long as the file's views are.
  std::string_view Keep(std::string bytes) {
    return *kept_.emplace_back(std::make_unique<const std::string>(std::move(bytes)));
  }

 private:
  struct Value {
    uint32_t type = 0;
    uint32_t element_type = 0;  // type of an array's elements
    uint64_t count = 0;
    std::string_view bytes;  // a number, a string's characters, or an array's elements
  };
  class Parser;

  static std::optional<int64_t> IntOf(uint32_t type, const char* at);
  absl::StatusOr<const Value*> Find(const std::string& key) const;
  // Adds the tensors of another part of a split into `parts`. DATA_LOSS if the part does not say that it is number
  // `number` (from 0) of so many, or has a tensor that is there already.
  absl::Status Join(GgufFile part, int64_t number, int64_t parts);

  std::vector<MappedFile> files_;
  std::map<std::string, Value> values_;
  std::map<std::string, GgufTensor> tensors_;
  std::vector<std::unique_ptr<const std::string>> kept_;
};

}  // namespace gdn
