#include "client/cpp/token_file.h"

#include <fstream>

#include "absl/strings/ascii.h"
#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {

absl::StatusOr<std::string> AuthorizationOfFile(const std::string& path) {
  std::ifstream file(path);
  std::string token;
  std::getline(file, token);
  absl::StripAsciiWhitespace(&token);
  if (!token.empty()) return StrCat("Bearer ", token);
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("no token can be read from the file '", path, "'; expected one in its first line"),
                   {{"field", "token_file"}});
}

}  // namespace gdn
