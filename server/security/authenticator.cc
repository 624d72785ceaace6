#include "server/security/authenticator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "base/error.h"
#include "base/files/user_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/security/reasons.h"

namespace gdn {
namespace {

absl::Status Unauthenticated(std::string_view message) {
  return MakeError(absl::StatusCode::kUnauthenticated, reason::kUnauthenticated, message);
}

absl::Status NoRole() {
  return MakeError(absl::StatusCode::kPermissionDenied, reason::kPermissionDenied, "the subject has no role here");
}

}  // namespace

std::string_view CertificateSubject(absl::Span<const std::string_view> uris,
                                    absl::Span<const std::string_view> common_names) {
  if (uris.size() == 1) return uris[0];
  const bool is_plain = uris.empty() && common_names.size() == 1 && common_names[0].find(':') == std::string_view::npos;
  return is_plain ? common_names[0] : std::string_view();
}

absl::StatusOr<std::unique_ptr<Authenticator>> Authenticator::Make(AuthenticatorOptions options) {
  std::unique_ptr<Authenticator> made(new Authenticator(std::move(options)));
  GDN_RETURN_IF_ERROR(made->Reload().status());
  return made;
}

Authenticator::ListPtr Authenticator::list() const {
  absl::ReaderMutexLock lock(&mu_);
  return list_;
}

absl::StatusOr<bool> Authenticator::Reload() {
  if (options_.tokens_file.empty()) return false;
  absl::StatusOr<std::string> text = ReadUserFile(options_.tokens_file);
  if (!text.ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("the file of --tokens-file: ", text.status().message()), {{"field", "tokens-file"}});
  }
  if (*text == text_) return false;
  GDN_ASSIGN_OR_RETURN(TokenList list, ParseTokenList(*text, options_.tokens_file));
  text_ = *std::move(text);
  auto next = std::make_shared<const TokenList>(std::move(list));
  absl::MutexLock lock(&mu_);
  list_.swap(next);
  version_.fetch_add(1, std::memory_order_release);
  return true;
}

std::vector<std::string> Authenticator::Subjects() const {
  std::vector<std::string> subjects;
  for (const auto& [subject, roles] : list()->subjects()) subjects.push_back(subject);
  return subjects;
}

absl::StatusOr<Identity> Authenticator::ByToken(std::string_view authorization, absl::Time now) const {
  constexpr absl::string_view kBearer = "bearer ";
  absl::string_view token = AbslView(authorization);
  if (!absl::StartsWithIgnoreCase(token, kBearer)) {
    return Unauthenticated("the 'authorization' metadata is not 'Bearer TOKEN'");
  }
  token.remove_prefix(kBearer.size());
  const ListPtr known = list();
  const TokenList::Token* const found = known->Find({token.data(), token.size()});
  if (found == nullptr) return Unauthenticated("the token is not one that this server knows");
  if (now >= found->expires) {
    return MakeError(absl::StatusCode::kUnauthenticated, reason::kTokenExpired,
                     StrCat("the token has expired at ", absl::FormatTime(found->expires, absl::UTCTimeZone()),
                            "; ask for a new one"));
  }
  const Roles roles = *known->RolesOf(found->subject);
  if (roles.user) return Identity{.subject = found->subject, .admin = roles.admin, .expires = found->expires};
  return NoRole();
}

absl::StatusOr<std::string_view> Authenticator::CertifiedSubject(const Credentials& credentials) const {
  const bool by_proxy =
      !credentials.certificate.empty() &&
      std::ranges::find(options_.trusted_proxies, credentials.certificate) != options_.trusted_proxies.end();
  if (!credentials.claims.empty() && !by_proxy) {
    return Unauthenticated(
        "the call has metadata x-gdn-verified-subject, but its connection has no certificate of a proxy in "
        "--trusted-proxies; send no such metadata, or add the proxy to --trusted-proxies");
  }
  if (!by_proxy) return credentials.certificate;
  if (credentials.claims.empty()) return std::string_view();  // a proxy itself has no subject
  if (credentials.claims.size() > 1) return Unauthenticated("the proxy names several subjects");
  return credentials.claims[0];
}

absl::StatusOr<Identity> Authenticator::LogIn(const Credentials& credentials, absl::Time now) const {
  GDN_ASSIGN_OR_RETURN(const std::string_view certified, CertifiedSubject(credentials));
  if (credentials.authorization.size() > 1) return Unauthenticated("there are several 'authorization' values");
  if (!credentials.authorization.empty()) return ByToken(credentials.authorization[0], now);
  if (certified.empty() || !options_.certificates) {
    return Unauthenticated(
        options_.certificates
            ? "the call has neither a token nor a client certificate; send 'authorization: Bearer TOKEN'"
            : "the call has no token; send 'authorization: Bearer TOKEN'");
  }
  if (!CheckSubject(certified).ok()) return Unauthenticated("the certificate's name cannot be that of a subject");
  Identity identity{.subject = std::string(certified)};
  const ListPtr known = list();
  const Roles* const roles = known->RolesOf(identity.subject);
  if (roles == nullptr) return identity;  // a certificate of our CA makes its holder a user
  identity.admin = roles->admin;
  return roles->user ? absl::StatusOr<Identity>(identity) : NoRole();
}

}  // namespace gdn
