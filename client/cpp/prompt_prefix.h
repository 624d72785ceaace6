// Cuts a prompt into segments and hashes them, for CreateSessionRequest.prefix and KeepPrefix
// (docs/how-to/prefixes.md).
//
// A segment is one Prefill call of each layer. The last token of the prompt is in no segment, because its outputs are
// needed and so it is always computed.
// Thread safety: free functions. Ownership: results are copies.
//
//   const v1::PromptPrefix prefix = PromptPrefixOf(token_ids, /*segment_tokens=*/512, "qwen, bf16 on the wire");
//   *create.mutable_prefix() = prefix;
//   GDN_ASSIGN_OR_RETURN(v1::Session session, client->CreateSession(create));  // begins at session.prefix_tokens()
//   ...prefill each layer to the end of a segment, at `tokens`...
//   GDN_ASSIGN_OR_RETURN(auto kept, client->KeepPrefix(session.name(), FirstSegments(prefix, tokens)));
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "gdn/v1/session.pb.h"

namespace gdn {

// Cuts a prompt into segments of `segment_tokens` tokens (below 1 counts as 1). The rest of the prompt, at least its
// last token, is in no segment. `context` is all else of the client that the layers' inputs depend on; prompts of
// different contexts share nothing. A segment's hash is SHA-256 over the length of `context` (8 bytes, little-endian),
// `context`, and each id of the segment (8 bytes, little-endian). Other clients may compute the same hash.
v1::PromptPrefix PromptPrefixOf(absl::Span<const int64_t> token_ids, int64_t segment_tokens,
                                std::string_view context = "");

// Returns the segments of `prefix` that end at `tokens` or before.
v1::PromptPrefix FirstSegments(const v1::PromptPrefix& prefix, int64_t tokens);

}  // namespace gdn
