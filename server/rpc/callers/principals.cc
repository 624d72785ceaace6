#include "server/rpc/callers/principals.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/error.h"
#include "base/files/user_file.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kLeastKeyBytes = 16;

}  // namespace

std::string Principals::Digest(std::string_view text) const {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), digest.data(), &size);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size});
}

// The text below for a caller's fields begins with a digit, so it can never equal a listed name's.
std::string Principals::NameOfListed(const std::string& listed) const { return Digest(StrCat("listed:", listed)); }

std::string Principals::NameOf(const std::vector<std::string_view>& fields) const {
  if (fields.empty()) return "";
  const std::string* const listed = list_.Find(fields);
  std::string text;
  for (std::string_view field : fields) StrAppend(&text, field.size(), ":", field);
  return listed != nullptr ? NameOfListed(*listed) : Digest(text);
}

absl::StatusOr<std::string> ReadPrincipalKey(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadUserFile(path);
  std::string key = text.ok() ? *text : "";
  absl::StripTrailingAsciiWhitespace(&key);
  if (key.size() >= kLeastKeyBytes) return key;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("the file of --principal-key-file, '", path, "', ",
                          text.ok() ? StrCat("has fewer than ", kLeastKeyBytes, " bytes")
                                    : StrCat("cannot be read (", text.status().message(), ")"),
                          "; write it by: head -c 32 /dev/urandom | base64 > FILE"),
                   {{"field", "principal-key-file"}});
}

}  // namespace gdn
