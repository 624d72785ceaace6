#include "client/cpp/token_file.h"

#include "absl/strings/ascii.h"
#include "base/error.h"
#include "base/files/user_file.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kMostTokenFileBytes = size_t{64} << 10;  // HTTP/2 peers take less in one header

}  // namespace

absl::StatusOr<std::string> AuthorizationOfFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadUserFile(path, kMostTokenFileBytes);
  std::string token = text.ok() ? text->substr(0, text->find('\n')) : "";
  absl::StripAsciiWhitespace(&token);
  if (!token.empty()) return StrCat("Bearer ", token);
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("no token can be read from the file '", path, "'; expected one in its first line",
                          text.ok() ? "" : StrCat(" (", text.status().message(), ")")),
                   {{"field", "token_file"}});
}

}  // namespace gdn
