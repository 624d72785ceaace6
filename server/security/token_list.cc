#include "server/security/token_list.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/error.h"
#include "base/files/json_fault.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

using nlohmann::json;

constexpr size_t kLongestSubject = 256;

uint64_t BucketOf(const TokenList::Digest& digest) {
  uint64_t bucket = 0;
  std::memcpy(&bucket, digest.data(), sizeof(bucket));
  return bucket;
}

absl::Status OnlyKeys(const json& object, std::initializer_list<std::string_view> known, std::string_view where) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return absl::InvalidArgumentError(StrCat(where, " has '", key, "', which is not known"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Roles> RolesFrom(const json& entry, std::string_view subject) {
  if (!entry.contains("roles")) return Roles{.user = true};
  Roles roles;
  const auto bad = [&] {
    return absl::InvalidArgumentError(StrCat("'", subject, "' has roles other than \"user\" and \"admin\""));
  };
  if (!entry["roles"].is_array()) return bad();
  for (const json& role : entry["roles"]) {
    if (role != "user" && role != "admin") return bad();
    roles.user = true;
    roles.admin |= role == "admin";
  }
  return roles;
}

absl::StatusOr<TokenList::Token> TokenFrom(const json& entry, const std::string& subject) {
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(StrCat("a token of '", subject, "' ", what));
  };
  if (!entry.is_object()) return bad("is no object");
  GDN_RETURN_IF_ERROR(OnlyKeys(entry, {"sha256", "expires"}, StrCat("a token of '", subject, "'")));
  TokenList::Token token{.subject = subject};
  const bool has_digest = entry.contains("sha256") && entry["sha256"].is_string();
  const std::string digits = has_digest ? entry["sha256"].get<std::string>() : "";
  if (digits.size() != 2 * token.digest.size() || !std::ranges::all_of(digits, absl::ascii_isxdigit)) {
    return bad("has no sha256 of 64 hexadecimal digits");
  }
  const std::string bytes = absl::HexStringToBytes(digits);
  std::copy(bytes.begin(), bytes.end(), token.digest.begin());
  if (entry.contains("expires")) {
    std::string error;
    if (!entry["expires"].is_string() ||
        !absl::ParseTime(absl::RFC3339_full, entry["expires"].get<std::string>(), &token.expires, &error)) {
      return bad("has an 'expires' that is no time such as \"2027-01-31T00:00:00Z\"");
    }
  }
  return token;
}

absl::Status AddEntry(const json& entry, TokenList& list) {
  if (!entry.is_object() || !entry.contains("subject") || !entry["subject"].is_string()) {
    return absl::InvalidArgumentError("an entry has no subject");
  }
  const auto subject = entry["subject"].get<std::string>();
  GDN_RETURN_IF_ERROR(OnlyKeys(entry, {"subject", "roles", "tokens"}, StrCat("'", subject, "'")));
  GDN_ASSIGN_OR_RETURN(const Roles roles, RolesFrom(entry, subject));
  GDN_RETURN_IF_ERROR(list.AddSubject(subject, roles));
  if (!entry.contains("tokens")) return absl::OkStatus();
  if (!entry["tokens"].is_array())
    return absl::InvalidArgumentError(StrCat("the tokens of '", subject, "' are no list"));
  for (const json& each : entry["tokens"]) {
    GDN_ASSIGN_OR_RETURN(TokenList::Token token, TokenFrom(each, subject));
    GDN_RETURN_IF_ERROR(list.AddToken(std::move(token)));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenList> ListFrom(const json& file) {
  if (!file.is_object() || !file.contains("subjects") || !file["subjects"].is_array()) {
    return absl::InvalidArgumentError("it has no list 'subjects'");
  }
  GDN_RETURN_IF_ERROR(OnlyKeys(file, {"subjects"}, "the file"));
  TokenList list;
  for (const json& entry : file["subjects"]) GDN_RETURN_IF_ERROR(AddEntry(entry, list));
  return list;
}

}  // namespace

absl::Status CheckSubject(std::string_view subject) {
  const bool good =
      !subject.empty() && subject.size() <= kLongestSubject && subject[0] != '~' &&
      std::ranges::all_of(subject, [](unsigned char c) { return absl::ascii_isgraph(c) && c != '"' && c != '\\'; });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("a subject has 1 to ", kLongestSubject,
             " printable ASCII characters, no space, \" or \\, and does not begin with ~"));
}

absl::Status TokenList::AddSubject(const std::string& subject, const Roles& roles) {
  GDN_RETURN_IF_ERROR(CheckSubject(subject));
  if (roles_.emplace(subject, roles).second) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("'", subject, "' is there twice"));
}

absl::Status TokenList::AddToken(Token token) {
  std::vector<Token>& bucket = tokens_[BucketOf(token.digest)];
  for (const Token& other : bucket) {
    if (other.digest == token.digest) {
      return absl::InvalidArgumentError(StrCat("'", other.subject, "' and '", token.subject, "' have the same token"));
    }
  }
  bucket.push_back(std::move(token));
  return absl::OkStatus();
}

const TokenList::Token* TokenList::Find(std::string_view token) const {
  Digest digest;
  unsigned int size = 0;
  EVP_Digest(token.data(), token.size(), digest.data(), &size, EVP_sha256(), nullptr);
  const auto bucket = tokens_.find(BucketOf(digest));
  if (bucket == tokens_.end()) return nullptr;
  const Token* found = nullptr;
  for (const Token& each : bucket->second) {
    if (CRYPTO_memcmp(each.digest.data(), digest.data(), digest.size()) == 0) found = &each;
  }
  return found;
}

const Roles* TokenList::RolesOf(std::string_view subject) const {
  const auto found = roles_.find(subject);
  return found != roles_.end() ? &found->second : nullptr;
}

absl::StatusOr<TokenList> ParseTokenList(std::string_view text, std::string_view path) {
  const json file = json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  auto list = file.is_discarded()
                  ? absl::StatusOr<TokenList>(absl::InvalidArgumentError(StrCat("it is no JSON: ", JsonFault(text))))
                  : ListFrom(file);
  if (list.ok()) return list;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("the file of --tokens-file, '", path, "': ", list.status().message(),
                          "; expected {\"subjects\": [{\"subject\": NAME, \"roles\": [\"user\"], \"tokens\": "
                          "[{\"sha256\": DIGITS}, ..]}, ..]}"),
                   {{"field", "tokens-file"}});
}

}  // namespace gdn
