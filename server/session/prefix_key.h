// Names of prompts' prefixes: SHA-256 over whose they are, what computes them, and the lengths and contents of all
// segments up to there. Equal keys stand for states of equal bits, as far as clients tell the truth of their contents.
//
// The key of a segment's end is made of the key of the end before it, so all of a prompt's keys cost one pass, and no
// other cut of the same tokens has any of them but where both end alike from the first segment on.
// Thread safety: free functions on values.
//
//   const std::vector<PrefixKey> keys = PrefixKeys({.principal = principal, .spec = spec, ...}, segments);
//   keys.back();  // of the whole
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

// What states are of, beside the prompt.
struct PrefixScope {
  const std::string& principal;
  const SessionSpec& spec;
  const std::string& numerics_id;  // the dtype of the bases included
  int32_t max_draft = 0;
  InputKind kind = InputKind::kNone;
};

// One for each segment's end.
std::vector<PrefixKey> PrefixKeys(const PrefixScope& scope, const std::vector<PromptSegment>& segments);
// Of a layer that has seen the segments as one prefill each, and of all of them together.
PrefillCalls CallsOf(const std::vector<PromptSegment>& segments);
int64_t TokensOf(const std::vector<PromptSegment>& segments);

}  // namespace gdn
