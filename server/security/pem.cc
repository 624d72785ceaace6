#include "server/security/pem.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "base/error.h"
#include "base/files/user_file.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

template <auto Free>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, FreeWith<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;

absl::Status Bad(std::string_view path, std::string_view flag, std::string_view what) {
  ERR_clear_error();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("the file of ", flag, ", '", path, "', ", what), {{"field", std::string(flag)}});
}

Bio Reading(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

// OpenSSL's password callback. It returns no password, so that nobody is asked for one.
int NoPassword(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*of*/) { return -1; }

Certificate NextCertificate(const Bio& bio) {
  return Certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr));
}

}  // namespace

absl::StatusOr<std::string> ReadPemFile(const std::string& path, std::string_view flag) {
  absl::StatusOr<std::string> pem = ReadUserFile(path);
  if (!pem.ok()) {
    return Bad(path, flag,
               StrCat("cannot be read; check that it exists and that the server's user may read it (",
                      pem.status().message(), ")"));
  }
  return pem;
}

absl::Status CheckCertificateChain(const std::string& pem, std::string_view path, std::string_view flag) {
  const Bio bio = Reading(pem);
  const Certificate first = NextCertificate(bio);
  if (first == nullptr) return Bad(path, flag, "holds no certificate; expected PEM: -----BEGIN CERTIFICATE-----");
  if (X509_cmp_current_time(X509_get0_notAfter(first.get())) < 0) {
    return Bad(path, flag, "holds a certificate that has expired; put a new one there");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(first.get())) > 0) {
    return Bad(path, flag, "holds a certificate that is not valid yet; look at this machine's clock");
  }
  while (NextCertificate(bio) != nullptr) {
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (!at_end) return Bad(path, flag, "holds a damaged certificate after the first");
  ERR_clear_error();
  return absl::OkStatus();
}

absl::Status CheckKeyOf(const std::string& key_pem, const std::string& chain_pem, std::string_view path,
                        std::string_view flag) {
  const Bio bio = Reading(key_pem);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) return Bad(path, flag, "holds no private key that can be read; expected PEM without a password");
  const Certificate certificate = NextCertificate(Reading(chain_pem));
  if (certificate == nullptr || X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Bad(path, flag, "is not the key of the certificate of --tls-cert");
  }
  return absl::OkStatus();
}

}  // namespace gdn
