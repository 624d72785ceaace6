#include "state_store/tiers/state_tier.h"

#include "base/string_cat.h"

namespace gdn {

std::string StateKey::ToString() const {
  if (checkpoint.empty()) return StrCat("sessions/", id);
  return StrCat("sessions/", id, " (checkpoint '", checkpoint, "')");
}

absl::StatusOr<int64_t> StateTier::NextIncarnation() {
  return absl::UnimplementedError(StrCat("the ", name(), " tier does not outlive the process"));
}

}  // namespace gdn
