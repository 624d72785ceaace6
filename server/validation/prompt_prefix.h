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

// Checks that there are 1 to kMostPrefixSegments segments, with at most kMaxTokenCount tokens together. Each must have
// 1 token or more and the 32 bytes of a SHA-256. The input kind must exist. `of_model`: false for an operator session,
// which takes only delta_rule. INVALID_ARGUMENT (INVALID_SPEC: field).
absl::Status CheckPromptPrefix(const v1::PromptPrefix& prefix, bool of_model);
// Returns the input kind of the prefix's prefills. If none is set, hidden states; delta_rule for an operator session
// (`of_model` is false). The prefix must have been checked.
v1::InputKind PrefixKind(const v1::PromptPrefix& prefix, bool of_model);

}  // namespace gdn
