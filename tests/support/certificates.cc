#include "tests/support/certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "tests/support/temp_folder.h"

namespace gdn {
namespace {

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

std::string PemOf(X509* certificate) {
  BIO* const bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bio, certificate);
  return TextOf(bio);
}

std::string PemOf(EVP_PKEY* key) {
  BIO* const bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  return TextOf(bio);
}

void AddExtension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str());
  EXPECT_NE(extension, nullptr) << value;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

X509* Start(const TestSubject& subject, EVP_PKEY* key) {
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  uint32_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial));
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial / 2 + 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), subject.valid_from_seconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate), subject.valid_to_seconds);
  X509_set_pubkey(certificate, key);
  const auto* name = reinterpret_cast<const unsigned char*>(subject.common_name.data());
  X509_NAME_add_entry_by_NID(X509_get_subject_name(certificate), NID_commonName, MBSTRING_UTF8,
                             const_cast<unsigned char*>(name), static_cast<int>(subject.common_name.size()), -1, 0);
  return certificate;
}

std::string AlternativeNames(const TestSubject& subject) {
  std::string names;
  for (const auto& [kind, values] :
       {std::pair("URI:", &subject.uris), std::pair("DNS:", &subject.dns), std::pair("IP:", &subject.addresses)}) {
    for (const std::string& value : *values) names += (names.empty() ? "" : ",") + std::string(kind) + value;
  }
  return names;
}

}  // namespace

struct TestCa::Keys {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = nullptr;
  ~Keys() {
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
};

void TestCertificate::WriteTo(const std::string& path) const {
  WriteFile(path + ".crt", certificate);
  WriteFile(path + ".key", key);
}

TestCa::TestCa(const std::string& name) : keys_(std::make_unique<Keys>()) {
  keys_->certificate = Start({.common_name = name}, keys_->key);
  X509_set_issuer_name(keys_->certificate, X509_get_subject_name(keys_->certificate));
  AddExtension(keys_->certificate, keys_->certificate, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(keys_->certificate, keys_->certificate, NID_subject_key_identifier, "hash");
  X509_sign(keys_->certificate, keys_->key, EVP_sha256());
  pem_ = PemOf(keys_->certificate);
}

TestCa::~TestCa() = default;

TestCertificate TestCa::Issue(const TestSubject& subject) const {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = Start(subject, key);
  X509_set_issuer_name(certificate, X509_get_subject_name(keys_->certificate));
  const std::string names = AlternativeNames(subject);
  if (!names.empty()) AddExtension(certificate, keys_->certificate, NID_subject_alt_name, names);
  X509_sign(certificate, keys_->key, EVP_sha256());
  TestCertificate issued{.certificate = PemOf(certificate), .key = PemOf(key)};
  X509_free(certificate);
  EVP_PKEY_free(key);
  return issued;
}

}  // namespace gdn
