#include "kernels/common/slot_set.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/error.h"

namespace gdn {

absl::Status RepeatedSlot(absl::string_view op, absl::string_view name, std::vector<int32_t> slots) {
  std::sort(slots.begin(), slots.end());
  const int32_t twice = *std::adjacent_find(slots.begin(), slots.end());
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                   absl::StrCat(op, ": slot ", twice, " is in ", name, " more than once; expected distinct slots"),
                   {{"field", std::string(name)}});
}

}  // namespace gdn
