// Reads the quantization_config of a config.json, and checks quantised tensors against it.
//
// The tensors themselves show which of them are quantised, and how. If a checkpoint's Gated DeltaNet layers are not
// quantised, it is served whatever the config says about other layers. Settings for activations and for the KV cache
// change no weight and are ignored. From the list of ignored modules, whole names are compared; patterns ("re:..",
// targets) are not.
// Thread safety: plain values and free functions.
//
//   GDN_ASSIGN_OR_RETURN(config.quantization, ParseQuantizationConfig(fields));
//   GDN_RETURN_IF_ERROR(CheckScheme(config.quantization, name, scheme));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/config_fields.h"
#include "server/checkpoint/packed_weight.h"

namespace gdn {

// How weights are quantised, according to a config or to the tensors. An empty field allows any value.
struct WeightScheme {
  std::optional<int64_t> bits = {};
  std::optional<bool> is_float = {};
  std::optional<bool> symmetric = {};
  std::optional<int64_t> group = {};
};

struct QuantizationConfig {
  std::string method = {};                    // quant_method: "compressed-tensors", "modelopt", "fp8", ..; "": none
  std::string format = {};                    // as the config has it: "pack-quantized", "NVFP4", ..; "": none
  std::vector<WeightScheme> weights = {};     // from config_groups of compressed-tensors; empty: any scheme
  std::vector<std::string> unquantized = {};  // modules that are not quantised, by their whole names
};

// Reads the config's quantization_config; without one, the result says that nothing is quantised. INVALID_ARGUMENT
// (INVALID_SPEC) names a field that would change what the tensors' formats mean: transforms of weights, an FP8 format
// other than E4M3, and blocks other than 128 x 128.
absl::StatusOr<QuantizationConfig> ParseQuantizationConfig(const ConfigFields& fields);

// Checks that a packed tensor ("X.weight") with the format and scheme `found` is as the config says. For methods other
// than compressed-tensors and modelopt, only the list of unquantised modules counts. INVALID_ARGUMENT (INVALID_SPEC:
// tensor) names what was found and what the config says.
absl::Status CheckScheme(const QuantizationConfig& config, const std::string& tensor, PackedFormat format,
                         const WeightScheme& found);

}  // namespace gdn
