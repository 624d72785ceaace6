// Types of flags, in the form that a command line and the file of --config have them in.
//
// Thread safety: plain values and free functions, which the flags' library finds by their names.
//
//   ABSL_FLAG(gdn::ByteCount, call_bytes, gdn::ByteCount{int64_t{1} << 30}, "...");
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/head_slice.h"
#include "server/config/quota_section.h"

namespace gdn {

// A number of bytes: "1048576", "1MiB", "8GiB".
struct ByteCount {
  int64_t bytes = 0;
};
bool AbslParseFlag(absl::string_view text, ByteCount* out, std::string* error);
std::string AbslUnparseFlag(const ByteCount& count);

// The same, or "auto".
struct OptionalByteCount {
  std::optional<int64_t> bytes;
};
bool AbslParseFlag(absl::string_view text, OptionalByteCount* out, std::string* error);
std::string AbslUnparseFlag(const OptionalByteCount& count);

// Some of the models' value heads: "0-15/32"; "": all.
bool AbslParseFlag(absl::string_view text, HeadSlice* out, std::string* error);
std::string AbslUnparseFlag(const HeadSlice& heads);

bool AbslParseFlag(absl::string_view text, QuotaSettings* out, std::string* error);
std::string AbslUnparseFlag(const QuotaSettings& quotas);

}  // namespace gdn
