// Reading and writing the safetensors format: an 8-byte little-endian header length, a JSON header, then tensor bytes.
//
// Thread safety: a SafetensorsFile is immutable after construction. Ownership: Open maps the file and owns the mapping;
// Parse borrows the caller's bytes. Views point into either and must not outlive it.
// Source of the format: https://github.com/huggingface/safetensors#format
//
//   GDN_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open("model.safetensors"));
//   GDN_ASSIGN_OR_RETURN(TensorView w, file.Tensor("model.layers.0.linear_attn.out_proj.weight"));
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mapped_file.h"
#include "base/tensor_view.h"

namespace gdn {

struct SafetensorsEntry {
  std::string dtype;  // as written: "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // byte offsets into the data section, [begin, end)
  uint64_t end = 0;
};

class SafetensorsFile {
 public:
  // Maps `path`. Errors of MappedFile::Open and of Parse, with the path in the message.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  // Parses `bytes`, which must outlive the result. DATA_LOSS (INVALID_STATE_FILE) where the header is cut, is not the
  // format's JSON, names overlapping or out-of-range bytes, leaves holes, or has a size other than shape x dtype says;
  // the tensor is named.
  static absl::StatusOr<SafetensorsFile> Parse(std::string_view bytes);

  // As Parse, of a file of `file_bytes` of which `bytes` has the header and perhaps no more; 0: as many as the header
  // says. Entries and metadata are there; Tensor and Floats answer FAILED_PRECONDITION for tensors that `bytes` does
  // not hold.
  static absl::StatusOr<SafetensorsFile> ParseHeader(std::string_view bytes, uint64_t file_bytes);

  // More of the file has come: `bytes` begins with what was parsed, wherever it lies now.
  void Extend(std::string_view bytes) { data_ = bytes.substr(header_bytes_); }
  uint64_t header_bytes() const { return header_bytes_; }  // where the tensors' bytes begin
  uint64_t data_bytes() const { return data_bytes_; }      // of all tensors

  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool Contains(const std::string& name) const { return entries_.count(name) != 0; }

  // NOT_FOUND where there is no such tensor; INVALID_ARGUMENT (INVALID_TENSOR_DTYPE) for a dtype other than F32, F16,
  // BF16.
  absl::StatusOr<TensorView> Tensor(const std::string& name) const;

  // The tensor's bytes, whatever its dtype. NOT_FOUND where there is no such tensor.
  absl::StatusOr<std::string_view> Bytes(const std::string& name) const;

  // The tensor's elements as float32. Errors as Tensor, and INVALID_ARGUMENT (INVALID_TENSOR_SHAPE) where `shape` is
  // given and differs; a dimension of -1 matches any.
  absl::StatusOr<std::vector<float>> Floats(const std::string& name,
                                            std::optional<std::vector<int64_t>> shape = std::nullopt) const;

 private:
  std::optional<MappedFile> file_;
  std::string_view data_;
  uint64_t header_bytes_ = 0;
  uint64_t data_bytes_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Where the header ends: the 8 bytes of its length and its text are the first that many bytes of the file. DATA_LOSS
// (INVALID_STATE_FILE) where `bytes` is shorter than that, or the length is beyond the format's bound.
absl::StatusOr<uint64_t> SafetensorsHeaderEnd(std::string_view bytes);

// Bytes of a tensor. INVALID_ARGUMENT for an unknown dtype, elements that do not fill whole bytes, or a shape that
// CheckedElementCount refuses.
absl::StatusOr<uint64_t> SafetensorsTensorBytes(std::string_view dtype, const std::vector<int64_t>& shape);

// A tensor of any of the format's dtypes.
struct RawTensor {
  std::string name;
  std::string dtype;  // "F32", "U8", ...
  std::vector<int64_t> shape;
  std::string_view data;
};

// The header of a file (padded with spaces to 8 bytes) whose tensors' bytes follow in the given order, one after the
// other: whoever writes the file writes those from where they are. INVALID_ARGUMENT for a duplicate name, text that is
// not UTF-8, or data whose byte count is not shape x dtype.
absl::StatusOr<std::string> SafetensorsHeader(const std::vector<RawTensor>& tensors,
                                              const std::map<std::string, std::string>& metadata);

struct NamedTensor {
  std::string name;
  TensorView view;
};

// The whole file: SafetensorsHeader and the tensors' bytes. Errors as there.
absl::StatusOr<std::string> SerializeSafetensors(const std::vector<NamedTensor>& tensors,
                                                 const std::map<std::string, std::string>& metadata);

}  // namespace gdn
