#include "kernels/cpu/simd_target.h"

#include "absl/strings/ascii.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_target.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {

HWY_EXPORT(TargetName);

std::string SimdTargetName() { return absl::AsciiStrToLower(HWY_DYNAMIC_DISPATCH(TargetName)()); }

}  // namespace gdn
#endif  // HWY_ONCE
