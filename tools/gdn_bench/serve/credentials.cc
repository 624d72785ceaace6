#include "tools/gdn_bench/serve/credentials.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/strings/str_cat.h"
#include "base/files/user_file.h"
#include "base/status_macros.h"
#include "client/cpp/client_tls.h"

namespace gdn::bench {
namespace {

absl::StatusOr<std::string> ReadText(const std::string& path) {
  absl::StatusOr<std::string> text = ReadUserFile(path);
  if (text.ok() && !text->empty()) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("'", path, "' cannot be read; --secure is a folder with ca.crt, server.crt, server.key, alice.crt, ",
                   "alice.key, alice.token and tokens.json, as docs/how-to/secure.md makes them"));
}

}  // namespace

std::vector<std::string> SecureServerFlags(const std::string& folder) {
  return {absl::StrCat("--tls_cert=", folder, "/server.crt"), absl::StrCat("--tls_key=", folder, "/server.key"),
          absl::StrCat("--tls_client_ca=", folder, "/ca.crt"), absl::StrCat("--tokens_file=", folder, "/tokens.json"),
          "--http_listen=127.0.0.1:0"};
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> SecureServerCredentials(const std::string& folder) {
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  GDN_ASSIGN_OR_RETURN(options.pem_root_certs, ReadText(folder + "/ca.crt"));
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  GDN_ASSIGN_OR_RETURN(pair.private_key, ReadText(folder + "/server.key"));
  GDN_ASSIGN_OR_RETURN(pair.cert_chain, ReadText(folder + "/server.crt"));
  options.pem_key_cert_pairs.push_back(std::move(pair));
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> SecureChannelAlone(const std::string& target, const std::string& folder,
                                                                  bool with_token) {
  GDN_ASSIGN_OR_RETURN(
      std::shared_ptr<grpc::ChannelCredentials> credentials,
      TlsCredentialsOf({.ca = folder + "/ca.crt", .certificate = folder + "/alice.crt", .key = folder + "/alice.key"}));
  if (with_token) {
    GDN_ASSIGN_OR_RETURN(const std::string token, ReadText(folder + "/alice.token"));
    credentials = grpc::CompositeChannelCredentials(credentials, grpc::AccessTokenCredentials(token));
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetSslTargetNameOverride("localhost");
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

}  // namespace gdn::bench
