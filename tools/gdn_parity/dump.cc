#include "tools/gdn_parity/dump.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files/output_file.h"
#include "base/files/safetensors.h"
#include "base/status_macros.h"

namespace gdn::parity {
namespace {

struct DumpState {
  std::string directory;
  Attributes row;
  int files = 0;
};

DumpState& State() {
  static DumpState state;
  return state;
}

}  // namespace

absl::Status SetDumpDirectory(std::string directory) {
  std::error_code error;
  if (!directory.empty() && !std::filesystem::is_directory(directory, error)) {
    const bool link = std::filesystem::is_symlink(std::filesystem::symlink_status(directory, error));
    return absl::InvalidArgumentError(absl::StrCat("--dump is '", directory, "', which is ",
                                                   link ? "a symbolic link to no folder; make the folder that it names"
                                                        : "not a folder; make it first: mkdir -p " + directory));
  }
  if (!directory.empty() && faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--dump is '", directory, "', a folder that cannot be written to"));
  }
  State().directory = std::move(directory);
  return absl::OkStatus();
}

bool Dumping() { return !State().directory.empty(); }

void SetDumpRow(const std::string& suite, const std::string& test, const std::string& shape, double tolerance) {
  State().row = {
      {"suite", suite}, {"test", test}, {"shape", shape}, {"tolerance", absl::StrFormat("%.17g", tolerance)}};
}

absl::Status Dump(const std::string& op, const Attributes& attributes, const std::vector<DumpTensor>& tensors) {
  if (!Dumping()) return absl::OkStatus();
  DumpState& state = State();
  Attributes metadata = state.row;
  metadata["op"] = op;
  metadata.insert(attributes.begin(), attributes.end());
  std::vector<NamedTensor> named;
  for (const DumpTensor& tensor : tensors) {
    const std::string_view bytes(reinterpret_cast<const char*>(tensor.values.data()),
                                 tensor.values.size() * sizeof(float));
    named.push_back({tensor.name, {DType::kF32, tensor.shape, bytes}});
  }
  GDN_ASSIGN_OR_RETURN(const std::string content, SerializeSafetensors(named, metadata));
  const std::string path =
      absl::StrCat(state.directory, "/", absl::StrFormat("%04d-", state.files++), op, ".safetensors");
  return WriteOutputFile(path, content);
}

}  // namespace gdn::parity
