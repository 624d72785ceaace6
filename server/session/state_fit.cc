#include "server/session/state_fit.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status Mismatch(std::string_view field, const std::string& found, const std::string& expected) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch,
                   StrCat("the state's ", field, " is ", found, ", the target's is ", expected),
                   {{"field", std::string(field)}, {"found", found}, {"expected", expected}});
}

}  // namespace

absl::Status CheckStateFits(const SessionHeader& header, const std::vector<int32_t>& layers, const SessionSpec& spec) {
  if (header.fingerprint != spec.fingerprint) {
    const auto shown = [](const std::string& fingerprint) {
      return fingerprint.empty() ? "none (operator)" : fingerprint;
    };
    return Mismatch("model_fingerprint", shown(header.fingerprint), shown(spec.fingerprint));
  }
  if (header.dims != spec.dims) return Mismatch("dims", LayerDimsToString(header.dims), LayerDimsToString(spec.dims));
  for (const int32_t layer : layers) {
    if (!std::binary_search(spec.layers.begin(), spec.layers.end(), layer)) {
      return Mismatch("layer", StrCat(layer), "one of the target's Gated DeltaNet layers");
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn
