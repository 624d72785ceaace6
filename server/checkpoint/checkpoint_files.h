// The tensors of a checkpoint folder, in one safetensors file or in shards named by an index.
//
// Shards are opened when a tensor of theirs is first asked for, so files that hold nothing of interest are never
// touched. Where a folder has both forms, model.safetensors is read, as transformers does.
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
#include "base/safetensors.h"
#include "server/checkpoint/stored_tensor.h"

namespace gdn {

// What the scales of an F8_E4M3 tensor are called, behind its own name. Despite it they are multiplied.
inline constexpr std::string_view kScaleSuffix = "_scale_inv";

// The file that holds each tensor, as an index (model.safetensors.index.json) says. INVALID_ARGUMENT (INVALID_SPEC)
// with `path` in the message where it is damaged, or names anything but plain files.
absl::StatusOr<std::map<std::string, std::string>> ParseCheckpointIndex(std::string_view text, const std::string& path);

// A tensor of any of the format's dtypes, as it lies.
struct RawView {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string_view data;
};

class CheckpointFiles {
 public:
  // NOT_FOUND where the folder has neither form; INVALID_ARGUMENT (INVALID_SPEC) for a damaged index or one that names
  // anything but plain files of the folder.
  static absl::StatusOr<CheckpointFiles> Open(const std::string& directory);

  // Every tensor's name and the file that holds it. Nothing is opened to answer this of a sharded checkpoint.
  const std::map<std::string, std::string>& tensors() const { return tensors_; }
  bool Contains(const std::string& name) const { return tensors_.count(name) != 0; }

  // A tensor of a dtype that is read: F32, F16, BF16; or F8_E4M3 with block scales beside it, in "NAME_scale_inv".
  // NOT_FOUND for a tensor or shard that is missing; INVALID_ARGUMENT for another dtype, for a quantised tensor that is
  // no matrix, and for scales that are missing or not one a block; else the errors of SafetensorsFile. Tensor and file
  // are named.
  absl::StatusOr<StoredTensor> Tensor(const std::string& name);

  // A tensor of any dtype, as it lies. NOT_FOUND for a tensor or shard that is missing, else the errors of
  // SafetensorsFile.
  absl::StatusOr<RawView> Raw(const std::string& name);

  // The opened files; views stay valid as long as they live.
  std::vector<SafetensorsFile> ReleaseFiles();

 private:
  explicit CheckpointFiles(std::string directory) : directory_(std::move(directory)) {}

  // The file that holds the tensor, opened.
  absl::StatusOr<const SafetensorsFile*> FileOf(const std::string& name);
  absl::StatusOr<StoredTensor> Fp8Tensor(const std::string& name, const SafetensorsFile& file);

  std::string directory_;
  std::map<std::string, std::string> tensors_;
  std::map<std::string, SafetensorsFile> files_;  // by file name
};

}  // namespace gdn
