// Reasons for which a call was not let in. base/error.h has all other reasons.
//
// Thread safety: constants.
//
//   return MakeError(absl::StatusCode::kUnauthenticated, reason::kTokenExpired, "the token has expired");
#pragma once

#include <string_view>

namespace gdn::reason {

inline constexpr std::string_view kUnauthenticated = "UNAUTHENTICATED";
inline constexpr std::string_view kTokenExpired = "TOKEN_EXPIRED";
inline constexpr std::string_view kPermissionDenied = "PERMISSION_DENIED";

}  // namespace gdn::reason
