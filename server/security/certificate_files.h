// TLS credentials for gRPC's listeners, from certificate files that may change while the server runs.
//
// gRPC's own file watcher uses whatever it finds. If a certificate and its key do not match, as while they are being
// replaced, gRPC loses both and refuses every handshake. So gRPC watches copies in memory (memfd), which get checked
// contents only; until then it continues with the old contents. A certificate and its key are in one copy, and a copy
// is replaced whole. So gRPC never sees a new key with an old certificate.
// Thread safety: Reload from one thread at a time; the credentials are gRPC's. Ownership: must outlive the server that
// has the credentials.
//
//   GDN_ASSIGN_OR_RETURN(auto files, CertificateFiles::Make({.certificate = "server.crt", .key = "server.key"}));
//   builder.AddListeningPort("0.0.0.0:50061", files->credentials());
//   const absl::Status status = files->Reload();  // now and then
#pragma once

#include <ctime>
#include <memory>
#include <string>

#include <grpcpp/security/server_credentials.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdn {

enum class ClientCertificates {
  kNone,      // the server asks for no certificate
  kOptional,  // a client may send none, but one that it sends must be valid
  kRequired,
};

struct CertificateFileNames {
  std::string certificate;     // PEM: the server's certificate, and those between it and its CA
  std::string key;             // PEM: the private key of that certificate, without a password
  std::string client_ca = {};  // PEM: the CAs that issue clients' certificates; "": ClientCertificates::kNone
  ClientCertificates clients = ClientCertificates::kNone;
};

class CertificateFiles {
 public:
  // Reads and checks the files, and makes credentials from them. INVALID_ARGUMENT (INVALID_SPEC: field) says which file
  // is wrong, and what is wrong with it. UNAVAILABLE if the system has no memory for a copy.
  static absl::StatusOr<std::unique_ptr<CertificateFiles>> Make(CertificateFileNames names);
  ~CertificateFiles();
  CertificateFiles(const CertificateFiles&) = delete;
  CertificateFiles& operator=(const CertificateFiles&) = delete;

  const std::shared_ptr<grpc::ServerCredentials>& credentials() const { return credentials_; }

  // Reads the files again. Returns true if they have changed: new handshakes use the new contents within a second or
  // two, and open connections continue. Errors are those of Make. After INVALID_ARGUMENT nothing has changed; after
  // UNAVAILABLE the certificate may be new and client_ca old, until a later call succeeds.
  absl::StatusOr<bool> Reload();

 private:
  struct Contents {
    std::string chain, key, client_ca;
    friend bool operator==(const Contents&, const Contents&) = default;
  };
  // A file in memory that gRPC reads by a path of this process (/proc/self/fd/N).
  struct Copy {
    int file = -1;
    std::time_t modified = 0;  // seconds; gRPC compares whole seconds, so each content gets a new one

    absl::Status Put(const std::string& text);
    std::string path() const;
  };

  explicit CertificateFiles(CertificateFileNames names) : names_(std::move(names)) {}
  absl::StatusOr<Contents> Read() const;
  absl::Status Publish(const Contents& contents);

  const CertificateFileNames names_;
  Contents published_;
  Copy identity_, client_ca_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
};

}  // namespace gdn
