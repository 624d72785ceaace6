#include "server/flag_values.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "base/string_cat.h"

namespace gdn {

DType StateDtypeOf(std::string_view name, std::vector<std::string>& faults) {
  if (name == "bf16") return DType::kBF16;
  if (name != "float32") faults.push_back(StrCat("--state-dtype is '", name, "', expected float32 or bf16"));
  return DType::kF32;
}

std::vector<int32_t> GpuDevicesOf(int32_t one, const std::vector<std::string>& several,
                                  std::vector<std::string>& faults) {
  if (several.empty()) return {one};
  if (one != 0) faults.emplace_back("--gpu-device and --gpu-devices are both given, expected one of them");
  std::vector<int32_t> devices;
  for (const std::string& text : several) {
    int32_t device = 0;
    if (!absl::SimpleAtoi(text, &device)) {
      faults.push_back(StrCat("--gpu-devices has '", text, "', expected numbers of GPUs such as 0,1"));
    } else if (std::ranges::count(devices, device) > 0) {
      faults.push_back(StrCat("--gpu-devices names ", device, " twice; expected each GPU once"));
    } else {
      devices.push_back(device);
    }
  }
  return devices;
}

bool QuantizesToQ8(std::string_view name, std::vector<std::string>& faults) {
  const bool quantizes = name == "q8_0";
  if (!quantizes && !name.empty()) faults.push_back(StrCat("--quantize is '", name, "', expected q8_0 or nothing"));
  return quantizes;
}

}  // namespace gdn
