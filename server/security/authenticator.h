// Checks a call's credentials, and says which subject they stand for and what that subject may do.
//
// A call has a bearer token, or a client certificate that TLS has verified. Or it comes through a proxy whose own
// certificate is listed; the proxy then names in a header the subject of the certificate that it has verified. If a
// call has a token, the token must be valid, whatever else the call has. A call that has the header but does not come
// from a listed proxy is refused.
// Thread safety: safe from any thread; a login takes a reader's lock and allocates memory only for its answer.
// Ownership: none.
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
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/security/token_list.h"

namespace gdn {

struct AuthenticatorOptions {
  std::string tokens_file = {};                   // "": no tokens
  bool certificates = false;                      // true: a client's certificate is a credential
  std::vector<std::string> trusted_proxies = {};  // subjects of the proxies' certificates
};

// Returns the subject of a verified certificate: its URI, or its common name if it has no URI. Returns "", which is
// nobody, if the certificate has several URIs or several common names, or if the common name has a colon, as a URI has.
// Names of proxies and admins may be URIs, and a caller who can get a certificate with any common name must not pass
// for them. The result points into an argument's text.
std::string_view CertificateSubject(absl::Span<const std::string_view> uris,
                                    absl::Span<const std::string_view> common_names);

struct Credentials {
  std::vector<std::string_view> authorization = {};  // values of the call's metadata "authorization"
  std::vector<std::string_view> claims = {};         // values of x-gdn-verified-subject, which a proxy sets
  std::string_view certificate = {};                 // the verified certificate's subject; "": none
};

struct Identity {
  std::string subject;
  bool admin = false;
  absl::Time expires = absl::InfiniteFuture();  // when the token expires; InfiniteFuture: never, or no token
};

class Authenticator {
 public:
  // Makes an authenticator, and reads the token file if the options name one. INVALID_ARGUMENT (INVALID_SPEC: field) if
  // the file cannot be read or does not have the format of server/security/token_list.h.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Make(AuthenticatorOptions options);

  // Returns the subject that the credentials prove, and its rights. A certificate whose subject is not in the token
  // file makes its holder a user. UNAUTHENTICATED (UNAUTHENTICATED, TOKEN_EXPIRED) if they prove no subject.
  // PERMISSION_DENIED (PERMISSION_DENIED) for a subject that the file lists without a role.
  absl::StatusOr<Identity> LogIn(const Credentials& credentials, absl::Time now = absl::Now()) const;
  // Returns the subjects that the token file lists, in ascending order; empty without a file.
  std::vector<std::string> Subjects() const;

  // Returns a number that rises when the list changes. The result of an earlier login may then not be true any more.
  int64_t version() const { return version_.load(std::memory_order_acquire); }

  // Reads the file again. Returns true if it has changed, false without a file. Errors are those of Make; the list then
  // stays as it was. Call from one thread at a time.
  absl::StatusOr<bool> Reload();

 private:
  using ListPtr = std::shared_ptr<const TokenList>;

  explicit Authenticator(AuthenticatorOptions options) : options_(std::move(options)) {}
  ListPtr list() const;
  absl::StatusOr<Identity> ByToken(std::string_view authorization, absl::Time now) const;
  absl::StatusOr<std::string_view> CertifiedSubject(const Credentials& credentials) const;

  const AuthenticatorOptions options_;
  std::string text_;  // text of the file; only the thread that reloads uses it
  mutable absl::Mutex mu_;
  std::atomic<int64_t> version_{0};
  ListPtr list_ ABSL_GUARDED_BY(mu_) = std::make_shared<const TokenList>();
};

}  // namespace gdn
