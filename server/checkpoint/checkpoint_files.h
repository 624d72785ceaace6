// The tensors of a checkpoint folder, in one safetensors file or in shards named by an index.
//
// A shard is opened when a tensor in it is first asked for, so other shards are never touched. If a folder has both
// forms, model.safetensors is read, as transformers does.
// Thread safety: for one thread at a time. Ownership: owns the mappings, which ReleaseFiles() hands over; views point
// into them.
//
//   GDN_ASSIGN_OR_RETURN(CheckpointFiles files, CheckpointFiles::Open("/models/Qwen3-Next-80B-A3B"));
//   GDN_ASSIGN_OR_RETURN(StoredTensor w, files.Tensor("model.layers.0.linear_attn.out_proj.weight"));
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/files/safetensors.h"
#include "base/string_cat.h"
#include "server/checkpoint/stored_tensor.h"

namespace gdn {

// Suffix of the name of an F8_E4M3 tensor's scales. Weights are multiplied by the scales, despite the name.
inline constexpr std::string_view kScaleSuffix = "_scale_inv";

// Returns the name of the file that holds each tensor, by the tensor's name. `text`: the content of an index
// (model.safetensors.index.json). INVALID_ARGUMENT (INVALID_SPEC) with `path` in the message if the index is damaged or
// names anything but plain files.
absl::StatusOr<std::map<std::string, std::string>> ParseCheckpointIndex(std::string_view text, const std::string& path);

// A tensor of any dtype that safetensors has, as it is stored. `dtype` is safetensors' name, such as "I32". `data` is
// borrowed from the file.
struct RawView {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string_view data;
};

class CheckpointFiles {
 public:
  // Opens model.safetensors, or reads the index. NOT_FOUND if the folder has neither. INVALID_ARGUMENT (INVALID_SPEC)
  // for an index that is damaged or names anything but plain files of the folder. Otherwise errors of
  // SafetensorsFile::Open.
  static absl::StatusOr<CheckpointFiles> Open(const std::string& directory);

  // The name of every tensor and the file that holds it. No shard is opened to find them.
  const std::map<std::string, std::string>& tensors() const { return tensors_; }
  bool Contains(const std::string& name) const { return tensors_.count(name) != 0; }

  // Returns a tensor in F32, F16 or BF16, or in F8_E4M3 with block scales in "NAME_scale_inv". NOT_FOUND for a tensor
  // or shard that is missing. INVALID_ARGUMENT for another dtype, for an F8_E4M3 tensor that is no matrix, and for
  // scales that are missing or not one a block. Otherwise errors of SafetensorsFile. Errors name the tensor, and for
  // most reasons the file.
  absl::StatusOr<StoredTensor> Tensor(const std::string& name);

  // Returns a tensor of any dtype, as it is stored. NOT_FOUND for a tensor or shard that is missing, else the errors of
  // SafetensorsFile.
  absl::StatusOr<RawView> Raw(const std::string& name);

  // Hands over the files that were opened so far, by their names. Views stay valid as long as the files live. Call at
  // most once, last.
  std::map<std::string, SafetensorsFile> ReleaseFiles() { return std::move(files_); }

 private:
  explicit CheckpointFiles(std::string directory) : directory_(std::move(directory)) {}

  // Returns the file that holds the tensor, which this object owns. Opens the file first if needed. Errors of Raw.
  absl::StatusOr<const SafetensorsFile*> FileOf(const std::string& name);
  absl::StatusOr<StoredTensor> Fp8Tensor(const std::string& name, const SafetensorsFile& file);
  // Returns the path of the tensor's file, in quotes, for messages.
  std::string PathOf(const std::string& name) const { return StrCat("'", directory_, "/", tensors_.at(name), "'"); }

  std::string directory_;
  std::map<std::string, std::string> tensors_;
  std::map<std::string, SafetensorsFile> files_;  // by file name
};

}  // namespace gdn
