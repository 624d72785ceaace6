#include "server/security/certificate_files.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/security/pem.h"

namespace gdn {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

constexpr unsigned int kGrpcLooksEverySeconds = 1;

// By ClientCertificates.
constexpr grpc_ssl_client_certificate_request_type kRequests[] = {
    GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE, GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY,
    GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY};

}  // namespace

absl::Status CertificateFiles::Copy::Put(const std::string& text) {
  const int made = memfd_create("gdn-tls", MFD_CLOEXEC);
  bool ok = made >= 0 && write(made, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const struct timespec times[2] = {{.tv_sec = modified + 1, .tv_nsec = 0}, {.tv_sec = modified + 1, .tv_nsec = 0}};
  ok = ok && futimens(made, times) == 0;
  if (ok && file >= 0) {
    ok = dup3(made, file, O_CLOEXEC) == file;  // the path leads to the new one from now on
    close(made);
  } else if (ok) {
    file = made;
  } else if (made >= 0) {
    close(made);
  }
  if (!ok) return absl::UnavailableError("the system has no memory for a copy of the certificates (memfd)");
  ++modified;
  return absl::OkStatus();
}

std::string CertificateFiles::Copy::path() const { return StrCat("/proc/self/fd/", file); }

absl::StatusOr<std::unique_ptr<CertificateFiles>> CertificateFiles::Make(CertificateFileNames names) {
  std::unique_ptr<CertificateFiles> files(new CertificateFiles(std::move(names)));
  GDN_ASSIGN_OR_RETURN(const Contents contents, files->Read());
  GDN_RETURN_IF_ERROR(files->Publish(contents));
  const bool clients = files->names_.clients != ClientCertificates::kNone;
  const std::string identity = files->identity_.path();
  const auto provider = std::make_shared<FileWatcherCertificateProvider>(
      identity, identity, clients ? files->client_ca_.path() : "", kGrpcLooksEverySeconds);
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (clients) options.watch_root_certs();
  options.set_cert_request_type(kRequests[static_cast<size_t>(files->names_.clients)]);
  files->credentials_ = grpc::experimental::TlsServerCredentials(options);
  return files;
}

CertificateFiles::~CertificateFiles() {
  credentials_ = nullptr;
  for (const Copy& copy : {identity_, client_ca_}) {
    if (copy.file >= 0) close(copy.file);
  }
}

absl::StatusOr<CertificateFiles::Contents> CertificateFiles::Read() const {
  Contents contents;
  GDN_ASSIGN_OR_RETURN(contents.chain, ReadPemFile(names_.certificate, "--tls-cert"));
  GDN_ASSIGN_OR_RETURN(contents.key, ReadPemFile(names_.key, "--tls-key"));
  if (names_.clients != ClientCertificates::kNone) {
    GDN_ASSIGN_OR_RETURN(contents.client_ca, ReadPemFile(names_.client_ca, "--tls-client-ca"));
  }
  if (contents == published_) return contents;
  GDN_RETURN_IF_ERROR(CheckCertificateChain(contents.chain, names_.certificate, "--tls-cert"));
  GDN_RETURN_IF_ERROR(CheckKeyOf(contents.key, contents.chain, names_.key, "--tls-key"));
  if (names_.clients != ClientCertificates::kNone) {
    GDN_RETURN_IF_ERROR(CheckCertificateChain(contents.client_ca, names_.client_ca, "--tls-client-ca"));
  }
  return contents;
}

absl::Status CertificateFiles::Publish(const Contents& contents) {
  // The key comes first: gRPC looks for a key at the beginning, and for certificates from the first one on.
  GDN_RETURN_IF_ERROR(identity_.Put(StrCat(contents.key, "\n", contents.chain)));
  if (names_.clients != ClientCertificates::kNone) GDN_RETURN_IF_ERROR(client_ca_.Put(contents.client_ca));
  published_ = contents;
  return absl::OkStatus();
}

absl::StatusOr<bool> CertificateFiles::Reload() {
  GDN_ASSIGN_OR_RETURN(const Contents contents, Read());
  if (contents == published_) return false;
  GDN_RETURN_IF_ERROR(Publish(contents));
  return true;
}

}  // namespace gdn
