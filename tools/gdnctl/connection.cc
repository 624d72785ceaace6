#include "tools/gdnctl/connection.h"

#include <cstdlib>
#include <string>

#include "absl/flags/flag.h"
#include "absl/time/time.h"
#include "base/error.h"
#include "base/net/host_port.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/client_tls.h"
#include "client/cpp/token_file.h"
#include "tools/gdnctl/command.h"

ABSL_FLAG(std::string, target, "127.0.0.1:50061", "Server: host:port, unix:/path, or another gRPC target name.");
ABSL_FLAG(std::string, token, "", "Value of the 'authorization' metadata, sent unchanged. Sessions belong to it.");
ABSL_FLAG(std::string, token_file, "",
          "File with a token, which is sent as 'Bearer TOKEN'. By default the file that the environment variable "
          "GDN_TOKEN_FILE names.");
ABSL_FLAG(bool, tls, false, "Use TLS. Without --tls-ca the system's CAs are trusted.");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file: certificates of the CAs that may have issued the server's certificate. Turns on TLS.");
ABSL_FLAG(std::string, tls_cert, "", "PEM file: the client's own certificate. Turns on TLS.");
ABSL_FLAG(std::string, tls_key, "", "PEM file: the key of --tls-cert.");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(60), "Deadline of each call, such as 500ms or 2m; inf for none.");

namespace gdn {
namespace {

struct Connection {
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  std::string token_file;
};

Connection& ByFlags() {
  static Connection connection{.credentials = grpc::InsecureChannelCredentials(), .token_file = {}};
  return connection;
}

// The file of --token-file or, where neither flag is given, of the environment's GDN_TOKEN_FILE; "": none.
absl::StatusOr<std::string> TokenFileByFlags() {
  std::string path = absl::GetFlag(FLAGS_token_file);
  if (!absl::GetFlag(FLAGS_token).empty()) {
    if (!path.empty()) return UsageError("one of --token and --token-file is enough");
    return path;
  }
  if (!path.empty()) {
    GDN_RETURN_IF_ERROR(WithPrefix(AuthorizationOfFile(path).status(), "--token-file"));
    return path;
  }
  // Not looked at before it is used: not every command calls a server.
  const char* const set = std::getenv("GDN_TOKEN_FILE");
  return set != nullptr ? set : path;
}

}  // namespace

absl::Status PrepareConnection() {
  if (const absl::Status target = CheckTarget(absl::GetFlag(FLAGS_target)); !target.ok()) {
    return UsageError(StrCat("--target ", target.message()));
  }
  if (absl::GetFlag(FLAGS_timeout) <= absl::ZeroDuration()) {
    return UsageError("--timeout is 0 or negative, expected a time such as 500ms or 2m, or inf for none");
  }
  GDN_ASSIGN_OR_RETURN(ByFlags().token_file, TokenFileByFlags());
  const ClientTls tls{.ca = absl::GetFlag(FLAGS_tls_ca),
                      .certificate = absl::GetFlag(FLAGS_tls_cert),
                      .key = absl::GetFlag(FLAGS_tls_key)};
  if (absl::GetFlag(FLAGS_tls) || !tls.ca.empty() || !tls.certificate.empty() || !tls.key.empty()) {
    GDN_ASSIGN_OR_RETURN(ByFlags().credentials, TlsCredentialsOf(tls));
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsByFlags() { return ByFlags().credentials; }

std::unique_ptr<Client> ConnectByFlags() {
  return Client::Connect(absl::GetFlag(FLAGS_target), CredentialsByFlags(),
                         {.default_timeout = absl::GetFlag(FLAGS_timeout),
                          .token = absl::GetFlag(FLAGS_token),
                          .token_file = ByFlags().token_file});
}

}  // namespace gdn
