#include "server/checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& directory) {
  const std::string path = StrCat(directory, "/config.json");
  GDN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  auto config = ParseModelConfig(file.bytes());
  if (!config.ok()) return WithPrefix(config.status(), StrCat("'", path, "'"));
  Checkpoint checkpoint{.config = *std::move(config), .layers = {}, .files = {}};
  GDN_ASSIGN_OR_RETURN(CheckpointFiles files, CheckpointFiles::Open(directory));
  GDN_ASSIGN_OR_RETURN(checkpoint.layers, FindLayerTensors(checkpoint.config, files));
  checkpoint.files = files.ReleaseFiles();
  return checkpoint;
}

}  // namespace gdn
