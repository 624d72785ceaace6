#include "tools/gdn_parity/dump.h"

#include <fstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/safetensors.h"
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

void SetDumpDirectory(std::string directory) { State().directory = std::move(directory); }

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
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file) return absl::InternalError(absl::StrCat("cannot write ", path, "; does the directory exist?"));
  return absl::OkStatus();
}

}  // namespace gdn::parity
