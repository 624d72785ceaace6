// Fixture for servers with token logins. alice and bob are users, and root is an admin. "nobody" has no role, and the
// token of "late" has expired.
//
// Thread safety: for one thread. Ownership: owns the folder of the token file.
//
//   TestServer server(Options());
//   const Caller alice(server, kAlice);
#pragma once

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/temp_folder.h"

namespace gdn {

inline constexpr char kAlice[] = "Bearer alice-token";
inline constexpr char kBob[] = "Bearer bob-token";
inline constexpr char kRoot[] = "Bearer root-token";

// Makes a subject's entry of a token file.
inline std::string TokenEntry(const std::string& subject, const std::string& token,
                              const std::string& roles = "\"user\"", const std::string& expires = "") {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest);
  const std::string sha256 = absl::BytesToHexString({reinterpret_cast<const char*>(digest), sizeof(digest)});
  const std::string end = expires.empty() ? "" : absl::StrCat(R"(, "expires": ")", expires, "\"");
  return absl::StrCat(R"({"subject": ")", subject, R"(", "roles": [)", roles, R"(], "tokens": [{"sha256": ")", sha256,
                      "\"", end, "}]}");
}

class TokenLogins : public ::testing::Test {
 protected:
  TokenLogins() { WriteTokens(); }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  // Writes the token file. `more`: further entries, each with a comma before it.
  void WriteTokens(const std::string& alice = "alice-token", const std::string& more = "") const {
    WriteFile(path("tokens.json"),
              absl::StrCat(R"({"subjects": [)", TokenEntry("alice", alice), ",", TokenEntry("bob", "bob-token"), ",",
                           TokenEntry("root", "root-token", "\"admin\""), ",", TokenEntry("nobody", "nobody-token", ""),
                           ",", TokenEntry("late", "late-token", "\"user\"", "2020-01-01T00:00:00Z"), more, "]}"));
  }
  GdnServerOptions Options() const { return {.security = {.tokens_file = path("tokens.json")}}; }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(1);
};

}  // namespace gdn
