#include "client/cpp/client_tls.h"

#include "absl/strings/match.h"
#include "base/files/user_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// The contents of a PEM file. gRPC would say of one that is none only that it has no addresses to connect to.
absl::StatusOr<std::string> ReadPem(const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::string> text = ReadUserFile(path);
  if (!text.ok()) return absl::InvalidArgumentError(StrCat("TLS: ", text.status().message(), "; expected a PEM file"));
  if (absl::StrContains(*text, "-----BEGIN ")) return text;
  return absl::InvalidArgumentError(
      StrCat("the TLS file '", path, "' is ", text->empty() ? "empty" : "not PEM", "; expected -----BEGIN .."));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> TlsCredentialsOf(const ClientTls& tls) {
  if (tls.certificate.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError("a client's TLS certificate needs its key, and a key its certificate");
  }
  grpc::SslCredentialsOptions options;
  GDN_ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem(tls.ca));
  GDN_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadPem(tls.certificate));
  GDN_ASSIGN_OR_RETURN(options.pem_private_key, ReadPem(tls.key));
  return grpc::SslCredentials(options);
}

}  // namespace gdn
