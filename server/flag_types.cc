#include "server/flag_types.h"

#include <vector>

#include "base/string_cat.h"
#include "server/config/byte_count.h"

namespace gdn {

bool AbslParseFlag(absl::string_view text, ByteCount* out, std::string* error) {
  if (ParseByteCount({text.data(), text.size()}, &out->bytes)) return true;
  *error = StrCat("expected ", kByteCountForm);
  return false;
}

std::string AbslUnparseFlag(const ByteCount& count) { return StrCat(count.bytes); }

bool AbslParseFlag(absl::string_view text, OptionalByteCount* out, std::string* error) {
  out->bytes = std::nullopt;
  if (text == "auto") return true;
  ByteCount count;
  if (!AbslParseFlag(text, &count, error)) return false;
  out->bytes = count.bytes;
  return true;
}

std::string AbslUnparseFlag(const OptionalByteCount& count) {
  return count.bytes.has_value() ? StrCat(*count.bytes) : "auto";
}

bool AbslParseFlag(absl::string_view text, HeadSlice* out, std::string* error) {
  *out = {};
  if (text.empty()) return true;
  const absl::StatusOr<HeadSlice> heads = ParseHeadSlice({text.data(), text.size()});
  if (heads.ok()) {
    *out = *heads;
  } else {
    *error = std::string(heads.status().message());
  }
  return heads.ok();
}

std::string AbslUnparseFlag(const HeadSlice& heads) {
  if (heads == HeadSlice{}) return "";
  return StrCat(heads.first, "-", heads.end() - 1, "/", heads.total);
}

bool AbslParseFlag(absl::string_view text, QuotaSettings* out, std::string* error) {
  std::vector<ConfigFault> faults;
  *out = ParseQuotas({text.data(), text.size()}, faults);
  if (faults.empty()) return true;
  *error = StrCat("expected quotas as docs/how-to/configure.md has them: ", faults.front().what);
  return false;
}

std::string AbslUnparseFlag(const QuotaSettings& quotas) { return PrintQuotas(quotas); }

}  // namespace gdn
