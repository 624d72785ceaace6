// Decides who may talk to the server: TLS, and credentials in files that may change while the server runs.
//
// Thread safety: safe from any thread. Ownership: must outlive the server that has its credentials.
//
//   GDN_ASSIGN_OR_RETURN(auto security, Security::Make({.tls_cert = "server.crt", .tls_key = "server.key"}));
//   builder.AddListeningPort(address, security->tls());
#pragma once

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/security/server_credentials.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/threads/stop_signal.h"
#include "server/security/authenticator.h"
#include "server/security/certificate_files.h"

namespace gdn {

struct SecurityOptions {
  std::string tls_cert = {};
  std::string tls_key = {};
  std::string tls_client_ca = {};
  bool tls_client_optional = false;  // clients need no certificate, although there is a CA for them
  bool allow_insecure = false;       // listens without TLS on any address
  bool reflection = true;
  // Logins. If tokens_file and certificate_logins are both unset, everybody is served.
  std::string tokens_file = {};
  bool certificate_logins = false;
  std::vector<std::string> trusted_proxies = {};
  absl::Duration reload_interval = absl::Seconds(10);

  bool has_logins() const { return !tokens_file.empty() || certificate_logins; }
  bool has_tls() const { return !tls_cert.empty() || !tls_key.empty() || !tls_client_ca.empty(); }
};

class Security {
 public:
  // Reads the files that the options name, and starts a thread that watches them. INVALID_ARGUMENT for options that
  // contradict each other and for invalid files; UNAVAILABLE if the system has no memory for copies of the
  // certificates. Does not check where the server listens (CheckSecurityOptions does).
  static absl::StatusOr<std::unique_ptr<Security>> Make(SecurityOptions options);
  ~Security();
  Security(const Security&) = delete;
  Security& operator=(const Security&) = delete;

  // Credentials for the listeners. nullptr: no TLS.
  std::shared_ptr<grpc::ServerCredentials> tls() const;
  // Returns what checks logins, which this object owns. nullptr: there are no logins, and everybody is served.
  const Authenticator* authenticator() const { return authenticator_.get(); }
  // Reads the files again, as a thread of this object does every reload_interval. An invalid file is logged, and the
  // old contents stay.
  void Reload();

 private:
  explicit Security(SecurityOptions options) : options_(std::move(options)) {}
  void Watch();

  const SecurityOptions options_;
  absl::Mutex mu_;  // one reload at a time
  std::unique_ptr<CertificateFiles> certificates_;
  std::unique_ptr<Authenticator> authenticator_;
  std::array<std::string, 2> told_ ABSL_GUARDED_BY(mu_);  // last errors of certificates and of tokens, logged once
  StopSignal stop_;
  std::thread thread_;  // last, because it uses all of the above
};

// Checks that the options fit together, and that without TLS and allow_insecure all addresses to listen on stay on this
// machine. Reads no file. Errors: INVALID_ARGUMENT.
absl::Status CheckSecurityOptions(const SecurityOptions& options, const std::vector<std::string>& listen);

}  // namespace gdn
