#include "kernels/cpu/processor.h"

#include <fstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/processor.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn::HWY_NAMESPACE {
const char* TargetName() { return hwy::TargetName(HWY_TARGET); }
}  // namespace gdn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {
HWY_EXPORT(TargetName);

std::string SimdTargetName() { return absl::AsciiStrToLower(HWY_DYNAMIC_DISPATCH(TargetName)()); }

std::string SimdToolkitName() {
#if defined(__clang__)
  const std::string compiler = absl::StrCat("clang", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#else
  const std::string compiler = absl::StrCat("gcc", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#endif
  return absl::StrCat("hwy", HWY_MAJOR, ".", HWY_MINOR, ".", HWY_PATCH, "-", compiler);
}

absl::Status UseSimdTarget(absl::string_view name) {
  hwy::DisableTargets(0);
  if (name.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.push_back(absl::AsciiStrToLower(hwy::TargetName(target)));
    if (names.back() == name) {
      hwy::DisableTargets(target - 1);  // better ones have lower bits
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("instruction set '", name,
                                                 "' is not one of this processor and build; ", "use one of ",
                                                 absl::StrJoin(names, ", ")));
}

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos) return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return "unknown processor";
}

}  // namespace gdn
#endif  // HWY_ONCE
