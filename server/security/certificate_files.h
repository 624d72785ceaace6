// TLS of gRPC's listeners, by certificates in files that may change while the server runs.
//
// gRPC's own watcher of files takes what it finds: where a certificate and its key do not belong together, as while
// they are being replaced, it is left without either and refuses every handshake. So it watches copies in memory
// (memfd), which only get what has been checked; until then it goes on with what it had. The copy of a key lies in one
// file with its certificate, and a file is replaced whole, so gRPC never sees one of each.
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
  kNone,      // none is asked for
  kOptional,  // one that is sent has to be good
  kRequired,
};

struct CertificateFileNames {
  std::string certificate;     // PEM: the server's, and those between it and its CA
  std::string key;             // PEM
  std::string client_ca = {};  // PEM: who may have issued clients' certificates; "": ClientCertificates::kNone
  ClientCertificates clients = ClientCertificates::kNone;
};

class CertificateFiles {
 public:
  // INVALID_ARGUMENT that says what is wrong with which file.
  static absl::StatusOr<std::unique_ptr<CertificateFiles>> Make(CertificateFileNames names);
  ~CertificateFiles();
  CertificateFiles(const CertificateFiles&) = delete;
  CertificateFiles& operator=(const CertificateFiles&) = delete;

  const std::shared_ptr<grpc::ServerCredentials>& credentials() const { return credentials_; }

  // Looks at the files. True where they have changed: handshakes use what they hold within a second or two;
  // connections go on. Errors of Make, and everything stays as it was.
  absl::StatusOr<bool> Reload();

 private:
  struct Contents {
    std::string chain, key, client_ca;
    friend bool operator==(const Contents&, const Contents&) = default;
  };
  // A file in memory that gRPC reads by a path of this process.
  struct Copy {
    int file = -1;
    std::time_t modified = 0;  // gRPC looks at whole seconds, so each content has one of its own

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
