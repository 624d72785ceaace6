// safetensors files: of checkpoints, and what state files are made of. Every tensor's bytes are read.
#include "base/files/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

namespace gdn {
namespace {

// So that a sanitizer sees views that are not inside the file.
void ReadAll(std::string_view bytes) {
  volatile char sum = 0;
  for (const char c : bytes) sum = static_cast<char>(sum + c);
}

void ReadTensors(const SafetensorsFile& file) {
  std::vector<RawTensor> tensors;
  for (const auto& [name, entry] : file.entries()) {
    const auto bytes = file.Bytes(name);
    fuzz::CheckRefusal(bytes.status());
    if (!bytes.ok()) continue;  // of a header alone
    GDN_FUZZ_CHECK(bytes->size() == entry.end - entry.begin, name);
    ReadAll(*bytes);
    if (const auto view = file.Tensor(name); view.ok()) ReadAll(view->data);
    fuzz::CheckRefusal(file.Floats(name).status());
    tensors.push_back({.name = name, .dtype = entry.dtype, .shape = entry.shape, .data = *bytes});
  }
  if (tensors.size() != file.entries().size()) return;
  const auto header = SafetensorsHeader(tensors, file.metadata());
  GDN_FUZZ_CHECK(header.ok(), header.status().ToString());
  std::string again = *header;
  for (const RawTensor& tensor : tensors) again += tensor.data;
  const auto parsed = SafetensorsFile::Parse(again);
  GDN_FUZZ_CHECK(parsed.ok(), parsed.status().ToString());
  GDN_FUZZ_CHECK(parsed->metadata() == file.metadata() && parsed->entries().size() == tensors.size(),
                 "the file that was written is not the one that was read");
}

}  // namespace
}  // namespace gdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto file = SafetensorsFile::Parse(bytes);
  fuzz::CheckRefusal(file.status());
  if (file.ok()) ReadTensors(*file);
  // A header alone, of a file whose size is known or not.
  const auto end = SafetensorsHeaderEnd(bytes);
  if (!end.ok()) return 0;
  for (const uint64_t file_bytes : {uint64_t{0}, uint64_t{size}}) {
    const auto header = SafetensorsFile::ParseHeader(bytes.substr(0, *end), file_bytes);
    fuzz::CheckRefusal(header.status());
    if (header.ok()) ReadTensors(*header);
    GDN_FUZZ_CHECK(header.ok() || !file.ok(), header.status().ToString());
  }
  return 0;
}
