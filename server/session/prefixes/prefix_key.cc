#include "server/session/prefixes/prefix_key.h"

#include <openssl/evp.h>

#include <string_view>

namespace gdn {
namespace {

// The text that is hashed. Integers have 8 bytes, little-endian, and a text follows its length, so different fields
// never give the same text.
class KeyText {
 public:
  void Add(int64_t value) {
    for (int byte = 0; byte < 8; ++byte) text_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> 8 * byte));
  }
  void Add(std::string_view field) {
    Add(static_cast<int64_t>(field.size()));
    text_.append(field);
  }
  void Add(const Sha256Digest& digest) { text_.append(digest.begin(), digest.end()); }

  Sha256Digest Sha256() const {
    Sha256Digest digest{};
    EVP_Digest(text_.data(), text_.size(), digest.data(), /*size=*/nullptr, EVP_sha256(), /*impl=*/nullptr);
    return digest;
  }

 private:
  std::string text_;
};

PrefixKey KeyOfNothing(const PrefixScope& scope) {
  const SessionSpec& spec = scope.spec;
  KeyText text;
  text.Add("gdn prefix 1");
  text.Add(scope.principal);
  text.Add(spec.model);
  text.Add(spec.fingerprint);
  text.Add(scope.numerics_id);
  text.Add(LayerDimsToString(spec.dims));
  text.Add(static_cast<int64_t>(spec.layers.size()));
  for (const int32_t layer : spec.layers) text.Add(int64_t{layer});
  text.Add(int64_t{scope.max_draft});
  text.Add(static_cast<int64_t>(scope.kind));
  return text.Sha256();
}

}  // namespace

std::vector<PrefixKey> PrefixKeys(const PrefixScope& scope, const std::vector<PromptSegment>& segments) {
  std::vector<PrefixKey> keys;
  keys.reserve(segments.size());
  PrefixKey before = KeyOfNothing(scope);
  for (const PromptSegment& segment : segments) {
    KeyText text;
    text.Add(before);
    text.Add(segment.tokens);
    text.Add(segment.content);
    before = text.Sha256();
    keys.push_back(before);
  }
  return keys;
}

PrefillCalls CallsOf(const std::vector<PromptSegment>& segments) {
  PrefillCalls calls;
  for (const PromptSegment& segment : segments) calls = calls.Then(segment.tokens);
  return calls;
}

int64_t TokensOf(const std::vector<PromptSegment>& segments) {
  int64_t tokens = 0;
  for (const PromptSegment& segment : segments) tokens += segment.tokens;
  return tokens;
}

}  // namespace gdn
