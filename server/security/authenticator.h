// Whether a call's credentials are good, whose they are, and what that subject may do.
//
// A call has a bearer token, or a certificate that TLS has verified, or comes by a proxy whose own certificate is
// listed and that says in a header whose certificate it has verified. A token that is brought has to be good, whatever
// else there is. What a caller says about itself counts for nothing: the header of anybody else is refused.
// Thread safety: safe from any thread; a login takes a reader's lock and no memory but for its answer. Ownership: none.
//
//   GDN_ASSIGN_OR_RETURN(auto authenticator, Authenticator::Make({.tokens_file = "tokens.json"}));
//   const absl::StatusOr<Identity> who = authenticator->LogIn({.authorization = {"Bearer secret"}});
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/security/token_list.h"

namespace gdn {

struct AuthenticatorOptions {
  std::string tokens_file = {};                   // "": no tokens
  bool certificates = false;                      // whether a client's certificate is a credential
  std::vector<std::string> trusted_proxies = {};  // subjects of their certificates
};

// The subject of a verified certificate: its one URI, or its common name if it has no URI. "": nobody, if it has
// several URIs, or a common name that is written as a URI. Names of proxies and admins may be URIs, and whoever can
// have a certificate with any common name would be them.
std::string_view CertificateSubject(absl::Span<const std::string_view> uris,
                                    absl::Span<const std::string_view> common_names);

struct Credentials {
  std::vector<std::string_view> authorization = {};  // values of that metadata
  std::vector<std::string_view> claims = {};         // values of the header that a proxy sets
  std::string_view certificate = {};                 // the verified certificate's subject; "": none
};

struct Identity {
  std::string subject;
  bool admin = false;
  absl::Time expires = absl::InfiniteFuture();  // of its token
};

class Authenticator {
 public:
  // INVALID_ARGUMENT where the file is not as server/security/token_list.h says.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Make(AuthenticatorOptions options);

  // UNAUTHENTICATED (UNAUTHENTICATED, TOKEN_EXPIRED), PERMISSION_DENIED (PERMISSION_DENIED) for a subject without a
  // role.
  absl::StatusOr<Identity> LogIn(const Credentials& credentials, absl::Time now = absl::Now()) const;
  // Those that are listed.
  std::vector<std::string> Subjects() const;

  // Changes with the list: what a login said may not hold any more.
  int64_t version() const { return version_.load(std::memory_order_acquire); }

  // Looks at the file. True where it has changed. Errors of Make, and the list stays as it was.
  absl::StatusOr<bool> Reload();

 private:
  using ListPtr = std::shared_ptr<const TokenList>;

  explicit Authenticator(AuthenticatorOptions options) : options_(std::move(options)) {}
  ListPtr list() const;
  absl::StatusOr<Identity> ByToken(std::string_view authorization, absl::Time now) const;
  absl::StatusOr<std::string_view> CertifiedSubject(const Credentials& credentials) const;

  const AuthenticatorOptions options_;
  std::string text_;  // of the file; of whoever reloads
  mutable absl::Mutex mu_;
  std::atomic<int64_t> version_{0};
  ListPtr list_ ABSL_GUARDED_BY(mu_) = std::make_shared<const TokenList>();
};

}  // namespace gdn
