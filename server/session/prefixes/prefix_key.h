// Keys of prompts' prefixes. A key is a SHA-256 over the principal, what computes the states, and the lengths and
// contents of all segments up to a point. Equal keys stand for states with equal bits, if clients are right about the
// contents.
//
// The key of a segment's end is made from the key of the end before it, so one pass makes all keys of a prompt. If the
// same tokens are cut into other segments, only the keys at the start are equal, as long as the segments are.
// Thread safety: free functions on values.
//
//   const std::vector<PrefixKey> keys = PrefixKeys({.principal = principal, .spec = spec, ...}, segments);
//   keys.back();  // for the whole prompt
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "server/session/session.h"
#include "state_store/prefill_calls.h"

namespace gdn {

using Sha256Digest = std::array<unsigned char, 32>;
using PrefixKey = Sha256Digest;

struct PromptSegment {
  int64_t tokens = 0;
  Sha256Digest content = {};
};

// All that a prefix's states depend on, except the prompt.
struct PrefixScope {
  const std::string& principal;
  const SessionSpec& spec;
  const std::string& numerics_id;  // includes the dtype of the bases
  int32_t max_draft = 0;
  InputKind kind = InputKind::kNone;
};

// Returns a key for the end of each segment.
std::vector<PrefixKey> PrefixKeys(const PrefixScope& scope, const std::vector<PromptSegment>& segments);
// Return the calls of a layer that has taken each segment as one prefill, and the total of tokens.
PrefillCalls CallsOf(const std::vector<PromptSegment>& segments);
int64_t TokensOf(const std::vector<PromptSegment>& segments);

}  // namespace gdn
