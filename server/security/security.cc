#include "server/security/security.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/this_thread.h"
#include "server/security/listen_rules.h"

namespace gdn {

absl::Status CheckSecurityOptions(const SecurityOptions& options, const std::vector<std::string>& listen) {
  if (options.has_tls() && (options.tls_cert.empty() || options.tls_key.empty())) {
    return absl::InvalidArgumentError(StrCat("--", options.tls_cert.empty() ? "tls-cert" : "tls-key",
                                             " is not given; TLS needs a certificate and its ",
                                             "key: --tls-cert and --tls-key"));
  }
  if (options.certificate_logins && options.tls_client_ca.empty()) {
    return absl::InvalidArgumentError(
        "--certificate-logins needs --tls-client-ca: who may have issued the certificates");
  }
  if (!options.trusted_proxies.empty() && !options.certificate_logins) {
    return absl::InvalidArgumentError(
        "--trusted-proxies needs --certificate-logins: the server recognises a proxy by the subject of the proxy's own "
        "certificate");
  }
  return options.has_tls() || options.allow_insecure ? absl::OkStatus() : CheckListenWithoutTls(listen);
}

absl::StatusOr<std::unique_ptr<Security>> Security::Make(SecurityOptions options) {
  std::unique_ptr<Security> security(new Security(std::move(options)));
  const SecurityOptions& given = security->options_;
  GDN_RETURN_IF_ERROR(CheckSecurityOptions(given, {}));
  if (given.has_tls()) {
    const ClientCertificates clients = given.tls_client_ca.empty() ? ClientCertificates::kNone
                                       : given.tls_client_optional ? ClientCertificates::kOptional
                                                                   : ClientCertificates::kRequired;
    GDN_ASSIGN_OR_RETURN(security->certificates_, CertificateFiles::Make({.certificate = given.tls_cert,
                                                                          .key = given.tls_key,
                                                                          .client_ca = given.tls_client_ca,
                                                                          .clients = clients}));
  }
  if (given.has_logins()) {
    GDN_ASSIGN_OR_RETURN(security->authenticator_, Authenticator::Make({.tokens_file = given.tokens_file,
                                                                        .certificates = given.certificate_logins,
                                                                        .trusted_proxies = given.trusted_proxies}));
  }
  if (given.has_tls() || given.has_logins()) {
    security->thread_ = std::thread([to = security.get()] { to->Watch(); });
  }
  return security;
}

Security::~Security() {
  stop_.Give();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<grpc::ServerCredentials> Security::tls() const {
  return certificates_ != nullptr ? certificates_->credentials() : nullptr;
}

void Security::Watch() {
  NameThisThread("gdn-credentials");
  while (!stop_.GivenWithin(options_.reload_interval)) Reload();
}

void Security::Reload() {
  absl::MutexLock lock(&mu_);
  const auto look = [](const char* what, const absl::StatusOr<bool>& changed, std::string& told) {
    if (changed.ok()) {
      told.clear();
      if (*changed) spdlog::info("{} reloaded", what);
    } else if (const std::string error(changed.status().message()); std::exchange(told, error) != error) {
      spdlog::error("the {} stay as they were: {}", what, error);
    }
  };
  if (certificates_ != nullptr) look("certificates", certificates_->Reload(), told_[0]);
  if (authenticator_ != nullptr) look("tokens", authenticator_->Reload(), told_[1]);
}

}  // namespace gdn
