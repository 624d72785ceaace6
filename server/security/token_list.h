// Who may call, and by which tokens: a file that the operator writes, without the tokens themselves.
//
//   {"subjects": [{"subject": "alice", "roles": ["user"],
//                  "tokens": [{"sha256": "9f86d0..", "expires": "2027-01-31T00:00:00Z"}]},
//                 {"subject": "ops.example", "roles": ["admin"]}]}
// `subject`: 1 to 256 printable ASCII characters without space, " and \, not beginning with ~. `roles`: user (where
// they are left out), admin (a user too), or none: such a subject is let in by no credential. `tokens`: the SHA-256 of
// each, 64 hexadecimal digits, and when it ends (RFC 3339), if it does. A token has 256 random bits, which no one finds
// from a digest, so there is no salt (docs/how-to/secure.md). A subject without tokens is one that certificates name.
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

  // Errors: INVALID_ARGUMENT that says what is wrong where.
  absl::Status AddSubject(const std::string& subject, const Roles& roles);
  absl::Status AddToken(Token token);

  // nullptr where there is none of that text. The time that it takes tells nothing of a token: what is looked up is a
  // digest, of which nobody can choose a part, and whole digests are compared in constant time.
  const Token* Find(std::string_view token) const;
  // nullptr where the subject is not listed.
  const Roles* RolesOf(std::string_view subject) const;
  const std::map<std::string, Roles, std::less<>>& subjects() const { return roles_; }

 private:
  std::map<std::string, Roles, std::less<>> roles_;
  std::map<uint64_t, std::vector<Token>> tokens_;  // by the first bytes of their digests
};

// INVALID_ARGUMENT where the text cannot be a subject.
absl::Status CheckSubject(std::string_view subject);

// INVALID_ARGUMENT (INVALID_SPEC: field) where it is not as above.
absl::StatusOr<TokenList> ParseTokenList(std::string_view text, std::string_view path);

}  // namespace gdn
