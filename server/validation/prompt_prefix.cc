#include "server/validation/prompt_prefix.h"

#include <string>
#include <string_view>

#include "base/count_limits.h"
#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kSha256Bytes = 32;

absl::Status InvalidPrefix(const std::string& field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, message, {{"field", field}});
}

}  // namespace

v1::InputKind PrefixKind(const v1::PromptPrefix& prefix, bool of_model) {
  if (prefix.input_kind() != v1::INPUT_KIND_UNSPECIFIED) return prefix.input_kind();
  return of_model ? v1::INPUT_KIND_HIDDEN_STATES : v1::INPUT_KIND_DELTA_RULE;
}

absl::Status CheckPromptPrefix(const v1::PromptPrefix& prefix, bool of_model) {
  if (prefix.segments().empty() || prefix.segments_size() > kMostPrefixSegments) {
    return InvalidPrefix("prefix.segments", StrCat("prefix has ", prefix.segments_size(), " segments, expected 1 .. ",
                                                   kMostPrefixSegments));
  }
  int64_t tokens = 0;
  for (int i = 0; i < prefix.segments_size(); ++i) {
    const v1::PrefixSegment& segment = prefix.segments(i);
    const std::string field = StrCat("prefix.segments[", i, "]");
    if (segment.tokens() < 1 || segment.tokens() > kMaxTokenCount - tokens) {
      return InvalidPrefix(StrCat(field, ".tokens"),
                           StrCat(field, " has ", segment.tokens(), " tokens, expected at least 1, and at most ",
                                  kMaxTokenCount, " with those before it"));
    }
    tokens += segment.tokens();
    if (segment.content_sha256().size() != kSha256Bytes) {
      return InvalidPrefix(StrCat(field, ".content_sha256"),
                           StrCat(field, ".content_sha256 has ", segment.content_sha256().size(), " bytes, expected ",
                                  kSha256Bytes, ", of a SHA-256"));
    }
  }
  if (!v1::InputKind_IsValid(prefix.input_kind())) {
    return InvalidPrefix("prefix.input_kind", StrCat("prefix.input_kind is ", static_cast<int>(prefix.input_kind()),
                                                     ", which is no InputKind"));
  }
  if (!of_model && PrefixKind(prefix, of_model) != v1::INPUT_KIND_DELTA_RULE) {
    return InvalidPrefix("prefix.input_kind", StrCat("prefix.input_kind is ", v1::InputKind_Name(prefix.input_kind()),
                                                     ", and a bare operator takes delta_rule alone"));
  }
  return absl::OkStatus();
}

}  // namespace gdn
