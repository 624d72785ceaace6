#include "client/cpp/client_tls.h"

#include <fstream>
#include <iterator>

#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad() || text.empty()) {
    return absl::InvalidArgumentError(StrCat("the TLS file '", path, "' cannot be read, or is empty"));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> TlsCredentialsOf(const ClientTls& tls) {
  if (tls.certificate.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError("a client's TLS certificate needs its key, and a key its certificate");
  }
  grpc::SslCredentialsOptions options;
  GDN_ASSIGN_OR_RETURN(options.pem_root_certs, ReadWhole(tls.ca));
  GDN_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadWhole(tls.certificate));
  GDN_ASSIGN_OR_RETURN(options.pem_private_key, ReadWhole(tls.key));
  return grpc::SslCredentials(options);
}

}  // namespace gdn
