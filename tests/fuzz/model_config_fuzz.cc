// A checkpoint's config.json.
#include <algorithm>

#include "server/checkpoint/model_config.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  const auto config = ParseModelConfig({reinterpret_cast<const char*>(data), size});
  fuzz::CheckRefusal(config.status());
  if (!config.ok()) return 0;
  GDN_FUZZ_CHECK(ValidateLayerSpec(config->spec).ok(), "a spec that is none");
  GDN_FUZZ_CHECK(!config->gdn_layers.empty() && std::is_sorted(config->gdn_layers.begin(), config->gdn_layers.end()) &&
                     config->gdn_layers.front() >= 0 && config->gdn_layers.back() < config->num_layers,
                 "layers that are none");
  return 0;
}
