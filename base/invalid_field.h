#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {

// INVALID_ARGUMENT (INVALID_SPEC): `field` of a layer's description is `value`; the message says what is `expected`.
inline absl::Status InvalidField(std::string_view field, const absl::AlphaNum& value, std::string_view expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat(field, " is ", value, "; expected ", expected), {{"field", std::string(field)}});
}

}  // namespace gdn
