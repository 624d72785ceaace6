// The index of a checkpoint in shards: model.safetensors.index.json.
#include "server/checkpoint/checkpoint_files.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  const auto shards = ParseCheckpointIndex({reinterpret_cast<const char*>(data), size}, "INDEX");
  fuzz::CheckRefusal(shards.status());
  if (!shards.ok()) return 0;
  for (const auto& [tensor, file] : *shards) {
    GDN_FUZZ_CHECK(!file.empty() && file.find('/') == std::string::npos && file != "..", file);
  }
  return 0;
}
