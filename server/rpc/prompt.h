// Reads the prompt of a request and computes its keys for the index of prefixes.
//
// Thread safety: a free function. Ownership: the result is a copy.
//
//   GDN_ASSIGN_OR_RETURN(const Prompt prompt, ReadPrompt(parts, caller.principal, spec, request.prefix()));
//   const PrefixStart start = parts.states.prefixes().Find(prompt.keys);
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gdn/v1/session.pb.h"
#include "server/rpc/session_calls.h"
#include "server/session/prefixes/prefix_key.h"

namespace gdn {

struct Prompt {
  std::vector<PromptSegment> segments;
  InputKind kind = InputKind::kNone;
  std::vector<PrefixKey> keys;  // parallel to segments: the key of the prompt up to the end of each
};

// Reads the segments of `prefix`, and computes their keys for sessions of the principal and `spec`. Errors of
// CheckPromptPrefix.
absl::StatusOr<Prompt> ReadPrompt(const SessionParts& parts, const std::string& principal, const SessionSpec& spec,
                                  const v1::PromptPrefix& prefix);

}  // namespace gdn
