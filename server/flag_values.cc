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

std::map<std::string, std::string> AdaptersOf(const std::vector<std::string>& adapters,
                                              const std::vector<std::pair<std::string, std::string>>& models,
                                              std::vector<std::string>& faults) {
  std::map<std::string, std::string> folders;
  for (const std::string& adapter : adapters) {
    const size_t equals = adapter.find('=');
    const std::string name = adapter.substr(0, equals);
    const std::string folder = equals == std::string::npos ? "" : adapter.substr(equals + 1);
    if (name.empty() || folder.empty()) {
      faults.push_back(StrCat("--adapter is '", adapter, "', expected NAME=PATH with the NAME of a --model"));
      continue;
    }
    if (std::none_of(models.begin(), models.end(), [&](const auto& model) { return model.first == name; })) {
      faults.push_back(StrCat("--adapter is for '", name, "', which no --model names; expected the NAME of a --model"));
    }
    if (!folders.emplace(name, folder).second) {
      faults.push_back(StrCat("--adapter names '", name, "' twice; expected one adapter for a model"));
    }
  }
  return folders;
}

bool QuantizesToQ8(std::string_view name, std::vector<std::string>& faults) {
  const bool quantizes = name == "q8_0";
  if (!quantizes && !name.empty()) faults.push_back(StrCat("--quantize is '", name, "', expected q8_0 or nothing"));
  return quantizes;
}

}  // namespace gdn
