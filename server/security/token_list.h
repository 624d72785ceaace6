// The subjects that may call, and the tokens that prove them: a file that the operator writes. It does not contain the
// tokens themselves.
//
//   {"subjects": [{"subject": "alice", "roles": ["user"],
//                  "tokens": [{"sha256": "9f86d0..", "expires": "2027-01-31T00:00:00Z"}]},
//                 {"subject": "ops.example", "roles": ["admin"]}]}
// `subject`: 1 to 256 printable ASCII characters without space, " and \, not beginning with ~. `roles`: user (the
// default), admin (who is also a user), or empty: no credential lets such a subject in. `tokens`: the SHA-256 of each
// token, 64 hexadecimal digits, and optionally the time when the token expires (RFC 3339). A token has 256 random bits,
// which nobody can find from a digest, so there is no salt (docs/how-to/secure.md). A subject without tokens logs in by
// certificate.
// Thread safety: a value. Ownership: none.
//
//   GDN_ASSIGN_OR_RETURN(const TokenList list, ParseTokenList(text, "tokens.json"));
//   if (const TokenList::Token* token = list.Find("secret")) ...
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gdn {

struct Roles {
  bool user = false;
  bool admin = false;
};

class TokenList {
 public:
  using Digest = std::array<unsigned char, 32>;  // SHA-256
  struct Token {
    Digest digest = {};
    std::string subject;
    absl::Time expires = absl::InfiniteFuture();
  };

  // Add a subject with its roles, and then a token of a subject that was added. INVALID_ARGUMENT, which names the
  // subjects, if a subject cannot be one (CheckSubject) or is there twice, or if two tokens have the same digest.
  absl::Status AddSubject(const std::string& subject, const Roles& roles);
  absl::Status AddToken(Token token);

  // Returns the token with this text, also if it has expired; nullptr if there is none. The list owns it. The time that
  // the search takes says nothing about a token: the search looks up a digest, and a caller cannot choose any part of a
  // digest. Whole digests are compared in constant time.
  const Token* Find(std::string_view token) const;
  // Returns the roles of a subject, which the list owns; nullptr if the subject is not listed.
  const Roles* RolesOf(std::string_view subject) const;
  const std::map<std::string, Roles, std::less<>>& subjects() const { return roles_; }

 private:
  std::map<std::string, Roles, std::less<>> roles_;
  std::map<uint64_t, std::vector<Token>> tokens_;  // by the first 8 bytes of the digests
};

// Returns OK if the text may be a subject: 1 to 256 printable ASCII characters without space, " and \, not beginning
// with ~. Else INVALID_ARGUMENT.
absl::Status CheckSubject(std::string_view subject);

// Parses the text of a token file, JSON as this header describes. INVALID_ARGUMENT (INVALID_SPEC: field) if the text
// does not have that format or lists a subject or a token twice; the error names `path`.
absl::StatusOr<TokenList> ParseTokenList(std::string_view text, std::string_view path);

}  // namespace gdn
