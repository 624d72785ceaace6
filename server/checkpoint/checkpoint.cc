#include "server/checkpoint/checkpoint.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/files/json_fault.h"
#include "base/files/mapped_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/checkpoint/gguf_checkpoint.h"
#include "server/checkpoint/tensor_errors.h"

namespace gdn {

namespace {

constexpr std::string_view kExpected = "a Hugging Face checkpoint folder with its config.json, or a GGUF file";

absl::StatusOr<Checkpoint> OpenFolder(const std::string& directory) {
  const std::string path = StrCat(directory, "/config.json");
  GDN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  Checkpoint checkpoint;
  GDN_ASSIGN_OR_RETURN(checkpoint.config, WithPrefix(ParseModelConfig(file.bytes()), StrCat("'", path, "'")));
  GDN_ASSIGN_OR_RETURN(CheckpointFiles files, CheckpointFiles::Open(directory));
  if (checkpoint.config.head_dim_by_norm) {
    GDN_ASSIGN_OR_RETURN(const int32_t head_dim, HeadDimOfNorm(checkpoint.config, files));
    LayerDims& dims = checkpoint.config.spec.dims;
    dims.key_dim = dims.value_dim = head_dim;
  }
  GDN_ASSIGN_OR_RETURN(checkpoint.layers, FindLayerTensors(checkpoint.config, files));
  checkpoint.files = files.ReleaseFiles();
  return checkpoint;
}

}  // namespace

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(StrCat("'", path, "' is not there; expected ", kExpected));
  }
  // The kind and content of the file decide, because a download cache names files by their hashes.
  if (type == std::filesystem::file_type::directory) return OpenFolder(path);
  if (!path.ends_with(".gguf")) {
    GDN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    if (IsLfsPointer(file.bytes())) return absl::InvalidArgumentError(StrCat("'", path, "': ", kFetchLfsFile));
    if (!file.bytes().starts_with("GGUF")) {
      return absl::InvalidArgumentError(StrCat("'", path, "' is a file that is not in GGUF; expected ", kExpected,
                                               ", or for a safetensors file the folder that it is in"));
    }
  }
  GDN_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  return WithPrefix(ReadGguf(std::move(file)), StrCat("'", path, "'"));
}

}  // namespace gdn
