// A call's metadata: its token, the subject that a proxy names, and the trace that it belongs to.
#include <fstream>
#include <optional>

#include "base/files/temporary_folder.h"
#include "server/security/authenticator.h"
#include "server/trace/trace_context.h"
#include "tests/fuzz/fuzz_target.h"

namespace gdn {
namespace {

constexpr absl::Time kNow = absl::UnixEpoch();

// alice by the token "secret", bob by a certificate, and a proxy that says whose certificates it has seen.
const Authenticator& TheAuthenticator() {
  static const TemporaryFolder folder = *TemporaryFolder::Make();
  static const auto* const authenticator = [] {
    const std::string path = folder.path() + "/tokens.json";
    std::ofstream(path) << R"({"subjects": [{"subject": "alice", "roles": ["admin"], "tokens": [{"sha256":)"
                        << R"("2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"}]},)"
                        << R"({"subject": "bob"}, {"subject": "nobody", "roles": []}]})";
    auto made = Authenticator::Make({.tokens_file = path, .certificates = true, .trusted_proxies = {"proxy"}});
    GDN_FUZZ_CHECK(made.ok(), made.status().ToString());
    return made->release();
  }();
  return *authenticator;
}

bool IsSecret(std::string_view authorization) {
  return authorization.size() >= 13 && authorization.substr(7).find("secret") != std::string_view::npos;
}

void LogIn(const Credentials& credentials) {
  const auto identity = TheAuthenticator().LogIn(credentials, kNow);
  fuzz::CheckRefusal(identity.status());
  if (!identity.ok()) return;
  GDN_FUZZ_CHECK(CheckSubject(identity->subject).ok() && identity->subject != "nobody", identity->subject);
  GDN_FUZZ_CHECK(identity->admin == (identity->subject == "alice"), identity->subject);
  if (!credentials.authorization.empty()) {
    GDN_FUZZ_CHECK(identity->subject == "alice" && IsSecret(credentials.authorization[0]), identity->subject);
  } else if (!credentials.claims.empty()) {
    GDN_FUZZ_CHECK(credentials.certificate == "proxy" && credentials.claims[0] == identity->subject, "who says so?");
  } else {
    GDN_FUZZ_CHECK(credentials.certificate == identity->subject, identity->subject);
  }
}

void ReadTrace(std::string_view text) {
  const auto context = ParseTraceparent(text);
  if (!context.has_value()) return;
  const std::string on = ToTraceparent(*context);
  const auto next = ParseTraceparent(on);
  GDN_FUZZ_CHECK(on.size() == 55 && next.has_value() && next->trace_id == context->trace_id, on);
  GDN_FUZZ_CHECK(next->parent_id == context->span_id && next->flags == context->flags, on);
}

}  // namespace
}  // namespace gdn

// A byte says which credentials there are; they follow as fields, and after them the trace.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gdn::fuzz::Input input(data, size);
  const uint8_t there = input.Byte();
  gdn::Credentials credentials;
  for (int i = 0; i < (there & 3); ++i) credentials.authorization.push_back(input.Field());
  for (int i = 0; i < (there >> 2 & 3); ++i) credentials.claims.push_back(input.Field());
  if ((there & 16) != 0) credentials.certificate = input.Field();
  gdn::LogIn(credentials);
  gdn::ReadTrace(input.Rest());
  return 0;
}
