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

// INVALID_ARGUMENT (INVALID_SPEC: field).
absl::Status CheckPromptPrefix(const v1::PromptPrefix& prefix, bool of_model);
// The kind of the prefills, with its default; of a checked prefix.
v1::InputKind PrefixKind(const v1::PromptPrefix& prefix, bool of_model);

}  // namespace gdn
