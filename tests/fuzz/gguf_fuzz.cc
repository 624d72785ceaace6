// GGUF files: keys, tensors' places, and what is made of them. Every tensor's bytes are read.
#include "server/checkpoint/gguf_checkpoint.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  auto file = GgufFile::Parse({reinterpret_cast<const char*>(data), size});
  fuzz::CheckRefusal(file.status());
  if (!file.ok()) return 0;
  volatile char sum = 0;  // so that a sanitizer sees views that are not inside the file
  for (const auto& [name, tensor] : file->tensors()) {
    for (const char c : tensor.data) sum = static_cast<char>(sum + c);
  }
  const auto checkpoint = ReadGguf(*std::move(file));
  fuzz::CheckRefusal(checkpoint.status());
  if (!checkpoint.ok()) return 0;
  const ModelConfig& config = checkpoint->config;
  GDN_FUZZ_CHECK(ValidateLayerSpec(config.spec).ok(), "a spec that is none");
  GDN_FUZZ_CHECK(config.gdn_layers.size() == checkpoint->layers.size() && !config.gdn_layers.empty() &&
                     config.gdn_layers.back() < config.num_layers,
                 "layers that are none");
  for (const LayerTensors& layer : checkpoint->layers) {
    for (const auto& [tensor, stored] : layer.tensors) {
      std::vector<float> values(static_cast<size_t>(stored.ElementCount()));
      DecodeTensor(stored, values.data());
    }
  }
  return 0;
}
