// Checks the segments of a prompt.
//
// Thread safety: a free function. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(CheckPromptPrefix(request.prefix(), !spec.model.empty()));
#pragma once

#include "absl/status/status.h"
#include "gdn/v1/session.pb.h"

namespace gdn {

inline constexpr int kMostPrefixSegments = 4096;

// Errors: INVALID_ARGUMENT (INVALID_SPEC: field). `of_model`: false for an operator session.
absl::Status CheckPromptPrefix(const v1::PromptPrefix& prefix, bool of_model);
// Returns the input kind of the prefix's prefills; if none is set, the default. The prefix must have been checked.
v1::InputKind PrefixKind(const v1::PromptPrefix& prefix, bool of_model);

}  // namespace gdn
