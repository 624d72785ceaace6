// Values of flags that are told by names or by several texts. What is wrong with one is added to `faults`, as "--flag
// is ..", and the value is then one that may be.
//
// Thread safety: free functions. Ownership: none.
//
//   options.gpu_devices = GpuDevicesOf(absl::GetFlag(FLAGS_gpu_device), absl::GetFlag(FLAGS_gpu_devices), faults);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace gdn {

// Of --state-dtype.
DType StateDtypeOf(std::string_view name, std::vector<std::string>& faults);

// Of --gpu-device and --gpu-devices: at least one, each once.
std::vector<int32_t> GpuDevicesOf(int32_t one, const std::vector<std::string>& several,
                                  std::vector<std::string>& faults);

// Returns the folders of --adapter by the names of their models.
std::map<std::string, std::string> AdaptersOf(const std::vector<std::string>& adapters,
                                              const std::vector<std::pair<std::string, std::string>>& models,
                                              std::vector<std::string>& faults);

// Of --quantize: whether it is q8_0.
bool QuantizesToQ8(std::string_view name, std::vector<std::string>& faults);

}  // namespace gdn
