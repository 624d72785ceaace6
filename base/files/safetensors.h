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
#include "base/files/mapped_file.h"
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
  // Maps and parses the file at `path`. Errors of MappedFile::Open and Parse, with the path in the message.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  // Parses `bytes`, which must outlive the result. DATA_LOSS (INVALID_STATE_FILE) if the header is cut or is not valid
  // JSON. The same, with the tensor's name, if a dtype is unknown, or if tensors overlap, leave holes, lie outside the
  // data or differ in size from shape x dtype.
  static absl::StatusOr<SafetensorsFile> Parse(std::string_view bytes);

  // Parses the header, which `bytes` must have whole; of the file's `file_bytes` bytes (0: unknown, then the header
  // decides) `bytes` may hold only a beginning. Errors as of Parse. Entries and metadata are complete. Tensor, Bytes
  // and Floats return FAILED_PRECONDITION for a tensor that `bytes` does not hold.
  static absl::StatusOr<SafetensorsFile> ParseHeader(std::string_view bytes, uint64_t file_bytes);

  // Replaces the bytes that ParseHeader was given by more of the same file, so that more tensors can be read. `bytes`
  // begins with the same bytes, but may be at another address, and must outlive this object.
  void Extend(std::string_view bytes) { data_ = bytes.substr(header_bytes_); }
  uint64_t header_bytes() const { return header_bytes_; }  // offset of the first tensor's bytes
  uint64_t data_bytes() const { return data_bytes_; }      // bytes of all tensors together

  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool Contains(const std::string& name) const { return entries_.count(name) != 0; }

  // Returns a view of the tensor's bytes with its dtype and shape. Errors as of Bytes, and INVALID_ARGUMENT
  // (INVALID_TENSOR_DTYPE) for a dtype other than F32, F16 and BF16.
  absl::StatusOr<TensorView> Tensor(const std::string& name) const;

  // Returns the tensor's bytes, for any dtype. NOT_FOUND if the tensor is missing; FAILED_PRECONDITION if its bytes
  // were not given (ParseHeader).
  absl::StatusOr<std::string_view> Bytes(const std::string& name) const;

  // Returns the tensor's elements as float32. Errors as of Tensor, and INVALID_ARGUMENT (INVALID_TENSOR_SHAPE) if
  // `shape` is given and differs; a dimension of -1 matches any size.
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

// The format's own bound on the header's text, so that a damaged length cannot ask for gigabytes of JSON.
inline constexpr uint64_t kMostSafetensorsHeaderBytes = 100'000'000;

// Returns the offset of the first byte after the header: 8 bytes of length plus the header's text. DATA_LOSS
// (INVALID_STATE_FILE) if `bytes` is shorter than that, if the length exceeds kMostSafetensorsHeaderBytes, or for a Git
// LFS pointer.
absl::StatusOr<uint64_t> SafetensorsHeaderEnd(std::string_view bytes);

// Returns the size of a tensor in bytes. INVALID_ARGUMENT for an unknown dtype, elements that do not fill whole bytes,
// or a shape that CheckedElementCount refuses.
absl::StatusOr<uint64_t> SafetensorsTensorBytes(std::string_view dtype, const std::vector<int64_t>& shape);

// A tensor with any dtype that the format has.
struct RawTensor {
  std::string name;
  std::string dtype;  // as the format spells it: "F32", "U8", ...
  std::vector<int64_t> shape;
  std::string_view data;
};

// Returns the beginning of a file with these tensors' bytes in the given order: the length, and the header padded with
// spaces to a multiple of 8 bytes. The caller writes the bytes after it. INVALID_ARGUMENT for a duplicate name or the
// name "__metadata__", an unknown dtype, text that is not UTF-8, or data whose size is not shape x dtype.
absl::StatusOr<std::string> SafetensorsHeader(const std::vector<RawTensor>& tensors,
                                              const std::map<std::string, std::string>& metadata);

struct NamedTensor {
  std::string name;
  TensorView view;
};

// Returns the whole file: SafetensorsHeader, then the tensors' bytes. Errors as of SafetensorsHeader.
absl::StatusOr<std::string> SerializeSafetensors(const std::vector<NamedTensor>& tensors,
                                                 const std::map<std::string, std::string>& metadata);

}  // namespace gdn
