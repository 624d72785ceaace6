#include "server/security/authenticator.h"

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "base/error.h"
#include "base/string_cat.h"
#include "server/security/audit.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

namespace gdn::authenticator_test {
namespace {

std::string Sha256(std::string_view token) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), sizeof(digest)});
}

std::string Entry(const std::string& subject, const std::string& rest) {
  return StrCat(R"({"subject": ")", subject, "\"", rest, "}");
}
std::string Tokens(std::string_view token, const std::string& rest = "") {
  return StrCat(R"(, "tokens": [{"sha256": ")", Sha256(token), "\"", rest, "}]");
}
std::string File(const std::string& entries) { return StrCat(R"({"subjects": [)", entries, "]}"); }

class AuthenticatorTest : public ::testing::Test {
 protected:
  AuthenticatorTest() {
    Write(File(StrCat(Entry("alice", Tokens("alice-1")), ", ",
                      Entry("old", Tokens("old-1", R"(, "expires": "2020-01-01T00:00:00Z")")), ", ",
                      Entry("root", StrCat(R"(, "roles": ["admin"])", Tokens("root-1"))), ", ",
                      Entry("spiffe://tests/ops", R"(, "roles": ["admin"])"), ", ",
                      Entry("blocked", StrCat(R"(, "roles": [])", Tokens("blocked-1"))))));
    authenticator_ =
        *Authenticator::Make({.tokens_file = path_, .certificates = true, .trusted_proxies = {"proxy.example"}});
  }
  void Write(const std::string& text) const { WriteFile(path_, text); }

  std::string Subject(const Credentials& credentials) const {
    const auto identity = authenticator_->LogIn(credentials);
    if (!identity.ok()) return StrCat("refused: ", ErrorReason(identity.status()));
    return identity->admin ? StrCat(identity->subject, " (admin)") : identity->subject;
  }

  const TempFolder folder_;
  const std::string path_ = folder_.path() + "/tokens.json";
  std::unique_ptr<Authenticator> authenticator_;
};

TEST_F(AuthenticatorTest, KnowsWhoseATokenIs) {
  EXPECT_EQ(Subject({.authorization = {"Bearer alice-1"}}), "alice");
  EXPECT_EQ(Subject({.authorization = {"bearer alice-1"}}), "alice");
  EXPECT_EQ(Subject({.authorization = {"Bearer root-1"}}), "root (admin)");
  EXPECT_EQ(Subject({}), "refused: UNAUTHENTICATED");
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer alice-2", "alice-1", "Basic alice-1", "Bearer alice"}) {
    EXPECT_EQ(Subject({.authorization = {wrong}}), "refused: UNAUTHENTICATED") << wrong;
  }
  EXPECT_EQ(Subject({.authorization = {"Bearer alice-1", "Bearer root-1"}}), "refused: UNAUTHENTICATED") << "which?";
  EXPECT_EQ(Subject({.authorization = {"Bearer old-1"}}), "refused: TOKEN_EXPIRED");
  EXPECT_EQ(Subject({.authorization = {"Bearer blocked-1"}}), "refused: PERMISSION_DENIED");
}

TEST_F(AuthenticatorTest, ATokenEndsWhenItSays) {
  absl::Time end;
  std::string error;
  ASSERT_TRUE(absl::ParseTime(absl::RFC3339_full, "2020-01-01T00:00:00Z", &end, &error));
  EXPECT_TRUE(authenticator_->LogIn({.authorization = {"Bearer old-1"}}, end - absl::Nanoseconds(1)).ok());
  EXPECT_FALSE(authenticator_->LogIn({.authorization = {"Bearer old-1"}}, end).ok());
}

TEST_F(AuthenticatorTest, ACertificateNamesItsSubjectAndATokenComesFirst) {
  EXPECT_EQ(Subject({.certificate = "bob"}), "bob");
  EXPECT_EQ(Subject({.certificate = "spiffe://tests/ops"}), "spiffe://tests/ops (admin)");
  EXPECT_EQ(Subject({.certificate = "blocked"}), "refused: PERMISSION_DENIED");
  EXPECT_EQ(Subject({.certificate = "two words"}), "refused: UNAUTHENTICATED");
  EXPECT_EQ(Subject({.authorization = {"Bearer alice-1"}, .certificate = "bob"}), "alice");
  EXPECT_EQ(Subject({.authorization = {"Bearer wrong"}, .certificate = "bob"}), "refused: UNAUTHENTICATED");
}

TEST_F(AuthenticatorTest, OnlyAListedProxySaysWhoACallerIs) {
  EXPECT_EQ(Subject({.claims = {"bob"}, .certificate = "proxy.example"}), "bob");
  EXPECT_EQ(Subject({.claims = {"spiffe://tests/ops"}, .certificate = "proxy.example"}), "spiffe://tests/ops (admin)");
  EXPECT_EQ(Subject({.authorization = {"Bearer alice-1"}, .certificate = "proxy.example"}), "alice");
  EXPECT_EQ(Subject({.certificate = "proxy.example"}), "refused: UNAUTHENTICATED") << "it is nobody by itself";
  EXPECT_EQ(Subject({.claims = {""}, .certificate = "proxy.example"}), "refused: UNAUTHENTICATED");
  EXPECT_EQ(Subject({.claims = {"a", "b"}, .certificate = "proxy.example"}), "refused: UNAUTHENTICATED");
  EXPECT_EQ(Subject({.claims = {"bob"}, .certificate = "other.example"}), "refused: UNAUTHENTICATED");
  EXPECT_EQ(Subject({.claims = {"bob"}}), "refused: UNAUTHENTICATED");
  EXPECT_EQ(Subject({.authorization = {"Bearer alice-1"}, .claims = {"root"}}), "refused: UNAUTHENTICATED");
}

TEST_F(AuthenticatorTest, TokensAreRotatedAndABrokenFileChangesNothing) {
  EXPECT_FALSE(*authenticator_->Reload());
  Write(File(Entry("alice", Tokens("alice-2"))));
  EXPECT_TRUE(*authenticator_->Reload());
  EXPECT_EQ(Subject({.authorization = {"Bearer alice-2"}}), "alice");
  EXPECT_EQ(Subject({.authorization = {"Bearer alice-1"}}), "refused: UNAUTHENTICATED");
  Write(R"({"subjects": [)");
  EXPECT_THAT(authenticator_->Reload().status(), IsInvalid("it is no JSON"));
  EXPECT_EQ(Subject({.authorization = {"Bearer alice-2"}}), "alice");
  ASSERT_EQ(remove(path_.c_str()), 0);
  EXPECT_THAT(authenticator_->Reload().status(), IsInvalid("cannot read"));
  EXPECT_EQ(Subject({.authorization = {"Bearer alice-2"}}), "alice");
}

TEST(TokenListTest, EachKindOfFaultIsNamed) {
  const std::pair<std::string, const char*> faults[] = {
      {"", "it is no JSON"},
      {"[]", "it has no list 'subjects'"},
      {R"({"subjects": 1})", "it has no list 'subjects'"},
      {R"({"subjects": [], "more": 1})", "the file has 'more'"},
      {File("1"), "an entry has no subject"},
      {File(R"({"roles": []})"), "an entry has no subject"},
      {File(Entry("", "")), "a subject has 1 to 256"},
      {File(Entry("a b", "")), "a subject has 1 to 256"},
      {File(Entry("~a", "")), "a subject has 1 to 256"},
      {File(Entry(std::string(257, 'a'), "")), "a subject has 1 to 256"},
      {File(StrCat(Entry("a", ""), ",", Entry("a", ""))), "'a' is there twice"},
      {File(Entry("a", R"(, "role": "user")")), "'a' has 'role'"},
      {File(Entry("a", R"(, "roles": "admin")")), "roles other than"},
      {File(Entry("a", R"(, "roles": ["root"])")), "roles other than"},
      {File(Entry("a", R"(, "tokens": {})")), "are no list"},
      {File(Entry("a", R"(, "tokens": ["secret"])")), "is no object"},
      {File(Entry("a", R"(, "tokens": [{"token": "secret"}])")), "has 'token'"},
      {File(Entry("a", R"(, "tokens": [{"sha256": "12"}])")), "64 hexadecimal digits"},
      {File(Entry("a", Tokens("t", R"(, "expires": "tomorrow")"))), "'expires' that is no time"},
      {File(StrCat(Entry("a", Tokens("t")), ",", Entry("b", Tokens("t")))), "'a' and 'b' have the same token"},
  };
  for (const auto& [text, message] : faults) EXPECT_THAT(ParseTokenList(text, "f").status(), IsInvalid(message));
}

TEST(AuditLogTest, NobodyWhoChoosesAValueCanWriteALine) {
  EXPECT_EQ(AuditLine("session_created", {{"subject", "alice"}, {"session", "a"}}),
            R"(audit event=session_created subject="alice" session="a")");
  EXPECT_EQ(AuditLine("x", {{"peer", "a\" event=y\naudit"}}), R"(audit event=x peer="a\" event=y\naudit")");
}

TEST(CertificateSubjects, AreTheOneUriOrACommonNameThatIsNone) {
  using Texts = std::vector<std::string_view>;
  EXPECT_EQ(CertificateSubject(Texts{"spiffe://x/a"}, Texts{"b"}), "spiffe://x/a");
  EXPECT_EQ(CertificateSubject(Texts{}, Texts{"b"}), "b");
  for (const auto& [uris, names] : {std::pair(Texts{}, Texts{}),
                                    {Texts{}, Texts{"spiffe://x/proxy"}},
                                    {Texts{}, Texts{"urn:admin"}},
                                    {Texts{}, Texts{"a", "b"}},
                                    {Texts{"spiffe://x/a", "spiffe://x/b"}, Texts{"admin"}}}) {
    EXPECT_EQ(CertificateSubject(uris, names), "");
  }
}

}  // namespace
}  // namespace gdn::authenticator_test
