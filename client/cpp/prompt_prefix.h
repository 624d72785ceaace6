// A prompt cut into the segments that its prefills bring, with their hashes, for CreateSessionRequest.prefix and
// KeepPrefix (docs/how-to/prefixes.md).
//
// A segment is one Prefill call of each layer. The last token of the prompt is in none: its outputs are wanted, so it
// is always computed.
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

// Segments of `segment_tokens` (>= 1) each; what is left of the prompt, at least its last token, is in none. `context`:
// whatever else of the client's the layers' inputs follow from; prompts of another one have nothing in common. The hash
// of a segment is SHA-256 over the length of `context` (8 bytes, little-endian), `context`, and each id (8 bytes,
// little-endian); other clients may make the same.
v1::PromptPrefix PromptPrefixOf(absl::Span<const int64_t> token_ids, int64_t segment_tokens,
                                std::string_view context = "");

// Those of its segments that end at `tokens` or before.
v1::PromptPrefix FirstSegments(const v1::PromptPrefix& prefix, int64_t tokens);

}  // namespace gdn
