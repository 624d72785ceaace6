#include "client/cpp/prompt_prefix.h"

#include <openssl/evp.h>

#include <algorithm>
#include <string>

namespace gdn {
namespace {

void AppendNumber(std::string& text, int64_t value) {
  for (int byte = 0; byte < 8; ++byte) text.push_back(static_cast<char>(static_cast<uint64_t>(value) >> 8 * byte));
}

std::string Sha256(std::string_view text) {
  std::string digest(32, '\0');
  EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()), /*size=*/nullptr, EVP_sha256(),
             /*impl=*/nullptr);
  return digest;
}

}  // namespace

v1::PromptPrefix PromptPrefixOf(absl::Span<const int64_t> token_ids, int64_t segment_tokens, std::string_view context) {
  v1::PromptPrefix prefix;
  const auto length = static_cast<size_t>(std::max<int64_t>(1, segment_tokens));
  for (size_t begin = 0; token_ids.size() - begin > length; begin += length) {
    std::string text;
    AppendNumber(text, static_cast<int64_t>(context.size()));
    text.append(context);
    for (const int64_t id : token_ids.subspan(begin, length)) AppendNumber(text, id);
    v1::PrefixSegment* const segment = prefix.add_segments();
    segment->set_tokens(static_cast<int64_t>(length));
    segment->set_content_sha256(Sha256(text));
  }
  return prefix;
}

v1::PromptPrefix FirstSegments(const v1::PromptPrefix& prefix, int64_t tokens) {
  v1::PromptPrefix first = prefix;
  int count = 0;
  for (int64_t end = 0; count < prefix.segments_size(); ++count) {
    end += prefix.segments(count).tokens();
    if (end > tokens) break;
  }
  first.mutable_segments()->DeleteSubrange(count, first.segments_size() - count);
  return first;
}

}  // namespace gdn
